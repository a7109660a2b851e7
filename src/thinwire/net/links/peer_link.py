"""A durable, ordered link to one peer: it outlives connections and processes.

Every frame has a number on its link and is on disk before it travels. Whoever connects says how many frames
it has; the other side goes on from there, with the bytes of its log. A frame that was already received is dropped,
a gap ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from time import monotonic
from typing import Any

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Message, TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import HEADER_SIZE, open_frame
from thinwire.net.grpc.service import BUDGETS, Role
from thinwire.net.links.outgoing_log import OutgoingLog
from thinwire.net.links.peer_end import ALIVE_SECONDS, Attachment, Events, LinkEnds, PeerEnd
from thinwire.net.links.records import Record, WholeFrame, frame_records, number_record, parse_number

_HANDING_SECONDS = 0.001  # most that a program waits until its frame is taken to be sent
_MAX_UNREAD = 256  # frames; a peer that runs further ahead waits
_MAX_UNREAD_BYTES = BUDGETS[Role.FEATURE_PARTY].unread_bytes


class PeerLink(PeerEnd):
    """This party's end of the link to one peer. Thread-safe: a program posts and takes, a connection carries."""

    _attached: AttachedLink | None

    def __init__(self, ends: LinkEnds, log: OutgoingLog, ledger: Ledger, events: Events) -> None:
        super().__init__(ends, ledger, events)
        self.log = log
        self.duplicates = 0
        self.news: dict[str, Any] = {}  # the newest that the peer told and that was believed, by topic
        self._arrived = Condition(self._lock)
        self._room = Condition(self._lock)  # for a reader that is far ahead of the program
        self._posted = 0  # frames the program has sent
        self._consumed = 0  # frames the program has taken
        self._received = 0  # frames that have come in
        self._sendable = log.next_sequence  # frames below this number may travel: they are safe on disk
        self._travelled = log.next_sequence  # frames below this number may have been sent before
        self._kept = 0  # frames that our checkpoints have taken in
        self._inbox: deque[Message] = deque()
        self._fresh: dict[int, tuple[bytes, bytes | memoryview]] = {}  # not sent yet; the log has them too
        self.last_frame = monotonic()  # has come in

    # The program's side -----------------------------------------------------------------------------------

    def post(self, kind: Kind, round: Round, body: bytes | memoryview, durable: bool) -> int:
        """Logs and hands over one frame; gives its size. A frame that the log holds travels as it stands there."""
        header = self._header(kind, round, body)
        self.require_no_failure()
        sequence = self._posted
        if sequence >= self.log.next_sequence:
            self.log.append(sequence, (header, body), durable)
            with self._lock:
                self._sendable = sequence + 1
                self._to_send.notify_all()
                if self._attached is not None and self._attached._next <= sequence:
                    self._fresh[sequence] = (header, body)
                    if self._attached.at_hand:
                        # Lets the thread that writes go first: what the program does next may keep it waiting.
                        self._to_send.wait(_HANDING_SECONDS)
        else:
            logged = self.log.find(sequence)  # None once the peer has kept it
            if logged is not None and logged[:HEADER_SIZE] != header:
                self._events("replay_differs", self.ends.peer, round=round, kind=kind.name)
        self._posted = sequence + 1
        return len(header) + len(body)

    def take(self, kind: Kind, round: Round, seconds: float) -> Message | None:
        """The next frame, which must be this one; None if it does not come within so many seconds."""
        with self._lock:
            if not self._arrived.wait_for(lambda: bool(self._inbox) or self.failure is not None, seconds):
                return None
            if not self._inbox:
                self.require_no_failure()
            message = self._inbox[0]
            if (message.kind, message.round) != (kind, round):
                raise WrongMessage(self.ends.peer, (kind, round), (message.kind, message.round))
            self._inbox.popleft()
            self._consumed += 1
            self._room.notify_all()
            return message

    def holds(self, kind: Kind, round: Round, seconds: float = 0.0) -> bool:
        """Has this frame come in, now or within so many seconds?"""
        with self._lock:
            return self._arrived.wait_for(lambda: self._holds(kind, round), seconds)

    def _holds(self, kind: Kind, round: Round) -> bool:
        if self.failure is not None and not self._inbox:
            raise self.failure
        return any((message.kind, message.round) == (kind, round) for message in self._inbox)

    def cursors(self) -> dict[str, int]:
        """Where the program stands, for its checkpoint."""
        return {"posted": self._posted, "consumed": self._consumed}

    def go_on_from(self, cursors: dict[str, int]) -> None:
        """Back to a checkpoint, before any connection."""
        self._posted, self._consumed, self._received = cursors["posted"], cursors["consumed"], cursors["consumed"]

    def keep(self, consumed: int) -> None:
        """Tells the peer that every checkpoint we may fall back to has consumed this many frames."""
        with self._lock:
            self._kept = consumed
            if self._attached is not None:
                self._attached.records.append(number_record(Record.KEPT, consumed))
            self._to_send.notify_all()

    # Failures and presence ----------------------------------------------------------------------------------

    def fail(self, error: ThinwireError) -> None:
        """Nothing more will come: whoever waits, or posts, gets this error."""
        with self._lock:
            self.failure = self.failure or error
            self._arrived.notify_all()
            self._to_send.notify_all()

    def require_no_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def away_seconds(self) -> float:
        """How long the peer has been gone; 0 while it is connected."""
        with self._lock:
            return 0.0 if self._attached is not None else monotonic() - self.away_since

    # The connection's side ------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return (
            len(self._inbox) >= _MAX_UNREAD or sum(len(message.body) for message in self._inbox) > _MAX_UNREAD_BYTES
        )

    def describe_state(self) -> dict[str, int]:
        with self._lock:
            return {"received": self._received, "kept": self._kept, "logged": self.log.next_sequence}

    def attach(self, hang_up: Callable[[], object], received: int, kept: int) -> AttachedLink:
        self.require_reachable(received)
        self.log.prune(min(kept, received))
        with self._lock:
            before = self._attached
            self._attached = AttachedLink(self, hang_up, received)
            self._forget_connection()
            self._to_send.notify_all()
        if before is not None:
            before.end("replaced by a new connection")
        # After a power cut our log may lack what the peer has: the program makes the same frames again.
        self._events("connected", self.ends.peer, resend_from=received, logged=self.log.next_sequence)
        return self._attached

    def require_reachable(self, received: int) -> None:
        """Refuses a peer that needs frames which we have forgotten."""
        if received < self.log.first_sequence:
            raise Unreachable(self.ends.peer, received, self.log.first_sequence, self.log.next_sequence)

    def _forget_connection(self) -> None:
        self._fresh.clear()
        self._arrived.notify_all()

    def _put(self, sequence: int, header: bytes, body: bytes, attached: AttachedLink) -> None:
        """One whole frame, in order; waits while the program is far behind."""
        frame = open_frame(header, body, self.max_body)
        if (frame.run, frame.sender, frame.receiver) != (self.ends.run, self._peer, self._me):
            raise Malformed(
                f"{self.ends.peer!r} sent a frame of run {frame.run:016x} from party {frame.sender} to party "
                f"{frame.receiver}; expected run {self.ends.run:016x} from {self._peer} to {self._me}"
            )
        message = Message(self.ends.peer, self.ends.me, frame.kind, frame.round, frame.body)
        with self._lock:
            while self._is_full() and self.failure is None and not attached.ended:
                attached.hear()
                self._room.wait(1.0)
            if sequence != self._received:  # a connection that replaced this one was faster
                return
            self._inbox.append(message)
            self._received += 1
            self.last_frame = monotonic()
            self._arrived.notify_all()


class AttachedLink(Attachment):
    """A link while it is connected: frames out of its log, frames into its inbox."""

    _link: PeerLink

    def __init__(self, link: PeerLink, hang_up: Callable[[], object], next_sequence: int) -> None:
        super().__init__(link, hang_up)
        self.at_hand = False  # the thread that writes has nothing to do, under the link's lock
        self._next = next_sequence

    def idle(self) -> bool:
        return not self.records and self._next >= self._link._sendable

    def outgoing(self) -> Iterator[bytes]:
        try:
            yield from self._outgoing()
        except ThinwireError as error:  # the log cannot be read: no connection will cure that
            self._link.fail(error)
            self.end(str(error))

    def _outgoing(self) -> Iterator[bytes]:
        link = self._link
        while True:
            fresh = None
            with link._lock:
                self.at_hand = True
                link._to_send.wait_for(lambda: self.ended or not self.idle(), ALIVE_SECONDS)
                self.at_hand = False
                records = list(self.records)
                self.records.clear()
                due = self._next < link._sendable
                if due:
                    fresh = link._fresh.pop(self._next, None)
                    link._to_send.notify_all()
            if self.ended:
                return
            yield from records
            if due:
                yield from self._frame(fresh)
            elif not records:
                yield bytes([Record.ALIVE])

    def _frame(self, fresh: tuple[bytes, bytes | memoryview] | None) -> Iterator[bytes]:
        link, sequence = self._link, self._next
        if fresh is None:
            logged = memoryview(link.log.read(sequence))
            header, body = logged[:HEADER_SIZE], logged[HEADER_SIZE:]
        else:
            header, body = memoryview(fresh[0]), memoryview(fresh[1])
        if sequence < link._travelled:
            kind = open_frame(header, body).kind
            link._ledger.add(link.ends.me, link.ends.peer, kind, len(header) + len(body), again=True)
        yield from frame_records(sequence, header, body)
        with link._lock:
            link._travelled = max(link._travelled, sequence + 1)
            link._fresh.pop(sequence, None)  # posted while it was read from the log
            self._next = sequence + 1

    def _handle(self, record: bytes) -> None:
        expected = self._link._received
        match record[0]:
            case Record.KEPT:
                self._link.log.prune(min(parse_number(record), self._next))
            case Record.FRAME if (sequence := parse_number(record)) > expected:
                raise Malformed(f"frame {sequence} came where {expected} was next: one was lost or out of order")
            case _:
                super()._handle(record)

    def _take(self, whole: WholeFrame | None) -> None:
        if whole is None:
            return
        if whole.sequence < self._link._received:
            self._link.duplicates += 1
            self._link._events("duplicate", self._link.ends.peer)
        else:
            self._link._put(whole.sequence, whole.header, whole.body, self)


class WrongMessage(TransportError):
    """The peer's next message is not the one this party's program expects."""

    def __init__(self, peer: PartyName, expected: tuple[Kind, Round], got: tuple[Kind, Round]) -> None:
        (kind, round), (came, at) = expected, got
        super().__init__(
            f"{peer!r} sent {came.name} of round {at} where {kind.name} of round {round} was next; its program is "
            "at a different stage: do both run the same version and job?"
        )


class Unreachable(TransportError):
    """The peer needs frames that our log does not hold."""

    def __init__(self, peer: PartyName, received: int, first: int, end: int) -> None:
        super().__init__(
            f"{peer!r} goes on from frame {received}, our log holds {first} to {end}: one of the two run folders is "
            "out of date. Restore the newest folder, or start a new run in new folders"
        )
