"""A durable, ordered link to one peer: it outlives connections and processes.

Every frame has a number on its link and is on disk before it travels. Whoever connects says how many frames
it has; the other side goes on from there, with the bytes of its log. A frame that is there already is dropped,
a gap ends the connection. What carries the records (gRPC, or a test) is a `Connection`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Condition, Lock
from time import monotonic
from typing import Any, Protocol

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Message, TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import HEADER_SIZE, MAX_BODY, Frame, frame_header, open_frame
from thinwire.net.links.outgoing_log import OutgoingLog
from thinwire.net.links.records import (
    FrameAssembler,
    Record,
    WholeFrame,
    frame_records,
    json_record,
    number_record,
    parse_json,
    parse_number,
)


class Connection(Protocol):
    """One attachment of a line to something that carries records; over for good once ended."""

    def end(self, why: str) -> None: ...


class Attachment(Protocol):
    """A line while it is connected: records out, records in."""

    def end(self, why: str) -> None: ...

    def outgoing(self) -> Iterator[bytes]:
        """Records to send, until the connection ends; for the thread that writes."""

    def incoming(self, record: bytes) -> None:
        """One record from the peer. Raises WireError on anything that cannot be; then the connection must end."""

    def silent_seconds(self) -> float: ...


class LinkProtocol(Protocol):
    """This party's end of what it has to say to one peer; outlives connections."""

    def describe_state(self) -> dict[str, int]:
        """What to say when connecting."""

    def attach(self, connection: Connection, received: int, kept: int) -> Attachment: ...

    def fail(self, error: ThinwireError) -> None:
        """Nothing more will come."""


ALIVE_SECONDS = 2.0  # an idle side says that often that it is there
SILENCE_SECONDS = 8.0  # and after that long without a word its connection is given up
_HANDING_SECONDS = 0.001  # most that a program waits until its frame is taken to be sent
_MAX_UNREAD, _MAX_UNREAD_BYTES = 256, 64 << 20  # frames; a peer that runs further ahead waits

Events = Callable[..., None]  # (event, peer, **facts), for logs and metrics; facts are numbers and names only


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Which run a link belongs to, and who is at its ends."""

    run: int
    me: PartyName
    peer: PartyName
    parties: tuple[PartyName, ...]  # in the job's order, the label party last


class PeerLink:
    """This party's end of the link to one peer. Thread-safe: a program posts and takes, a connection carries."""

    def __init__(self, ends: LinkEnds, log: OutgoingLog, ledger: Ledger, events: Events) -> None:
        self.ends = ends
        self.log = log
        self.max_body = MAX_BODY  # bytes that a peer may announce
        self.duplicates = 0
        self.news: dict[str, Any] = {}  # the newest that the peer told and that was believed, by topic
        self._ledger = ledger
        self._events = events
        self._me = ends.parties.index(ends.me)
        self._peer = ends.parties.index(ends.peer)
        self._lock = Lock()
        self._to_send = Condition(self._lock)
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
        self._attached: AttachedLink | None = None
        self._failure: ThinwireError | None = None
        self._away_since = monotonic()
        self._last_frame = monotonic()

    # The program's side -----------------------------------------------------------------------------------

    def post(self, kind: Kind, round: Round, body: bytes | memoryview, durable: bool) -> int:
        """Logs and hands over one frame; gives its size. A frame that the log holds travels as it stands there."""
        frame = Frame(self.ends.run, self._me, self._peer, kind, round, attempt=0, body=body)
        header = frame_header(frame, MAX_BODY)
        self.require_no_failure()
        sequence = self._posted
        if sequence >= self.log.next_sequence:
            self.log.append(sequence, (header, body), durable)
            with self._lock:
                self._sendable = sequence + 1
                self._to_send.notify_all()
                if self._attached is not None and self._attached.is_before(sequence):
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
        deadline = monotonic() + seconds
        with self._lock:
            while not self._inbox:
                if self._failure is not None:
                    raise self._failure
                left = deadline - monotonic()
                if left <= 0 or not self._arrived.wait(left):
                    return None
            message = self._inbox[0]
            if (message.kind, message.round) != (kind, round):
                raise WrongMessage(self.ends.peer, (kind, round), (message.kind, message.round))
            self._inbox.popleft()
            self._consumed += 1
            self._room.notify_all()
            return message

    def holds(self, kind: Kind, round: Round) -> bool:
        """Has this frame come in?"""
        with self._lock:
            return self._holds(kind, round)

    def await_frame(self, kind: Kind, round: Round, seconds: float) -> bool:
        """Has it come in, now or within so many seconds?"""
        with self._lock:
            return self._arrived.wait_for(lambda: self._holds(kind, round), seconds)

    def _holds(self, kind: Kind, round: Round) -> bool:
        if self._failure is not None and not self._inbox:
            raise self._failure
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

    def tell(self, news: dict[str, Any]) -> None:
        """Sends news, if the peer is there."""
        with self._lock:
            if self._attached is not None:
                self._attached.records.append(json_record(Record.NEWS, news))
            self._to_send.notify_all()

    def drain(self, seconds: float) -> bool:
        """Waits until all that was posted and told has been handed to the connection."""
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            with self._lock:
                if self._attached is None or self._attached.idle():
                    return self._attached is not None
                self._to_send.wait(0.05)
        return False

    # Failures and presence ----------------------------------------------------------------------------------

    def fail(self, error: ThinwireError) -> None:
        """Nothing more will come: whoever waits, or posts, gets this error."""
        with self._lock:
            self._failure = self._failure or error
            self._arrived.notify_all()
            self._to_send.notify_all()

    def require_no_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def is_connected(self) -> bool:
        return self._attached is not None

    def away_seconds(self) -> float:
        """How long the peer has been gone; 0 while it is connected."""
        with self._lock:
            return 0.0 if self._attached is not None else monotonic() - self._away_since

    def idle_seconds(self) -> float:
        """How long no frame has come in."""
        return monotonic() - self._last_frame

    # The connection's side ------------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        return (
            len(self._inbox) >= _MAX_UNREAD or sum(len(message.body) for message in self._inbox) > _MAX_UNREAD_BYTES
        )

    def describe_state(self) -> dict[str, int]:
        """What to say when connecting."""
        with self._lock:
            return {"received": self._received, "kept": self._kept}

    def attach(self, connection: Connection, received: int, kept: int) -> AttachedLink:
        """Takes up a connection to a peer that has `received` of our frames and `kept` them in its checkpoints."""
        self.require_reachable(received)
        self.log.prune(min(kept, received))
        with self._lock:
            before = self._attached
            self._attached = AttachedLink(self, connection, received)
            self._fresh.clear()
            self._arrived.notify_all()
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

    def _detach(self, attached: AttachedLink, why: str) -> None:
        with self._lock:
            if self._attached is not attached:
                return
            self._attached = None
            self._away_since = monotonic()
            self._fresh.clear()
            self._arrived.notify_all()
            self._to_send.notify_all()
        self._events("disconnected", self.ends.peer, why=why)

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
            while self._is_full() and self._failure is None and not attached.ended:
                attached.hear()
                self._room.wait(1.0)
            if sequence != self._received:  # a connection that replaced this one was faster
                return
            self._inbox.append(message)
            self._received += 1
            self._last_frame = monotonic()
            self._arrived.notify_all()


class AttachedLink:
    """A link while it is connected: records out, records in."""

    def __init__(self, link: PeerLink, connection: Connection, next_sequence: int) -> None:
        self.records: deque[bytes] = deque()  # control records to send, under the link's lock
        self.ended = False
        self.at_hand = False  # the thread that writes has nothing to do, under the link's lock
        self._link = link
        self._connection = connection
        self._next = next_sequence
        self._last_heard = monotonic()
        self._assembly = FrameAssembler()  # of the frame that is coming in

    def end(self, why: str) -> None:
        """Ends this connection, not the link."""
        if not self.ended:
            self.ended = True
            self._link._detach(self, why)
            self._connection.end(why)

    def is_before(self, sequence: int) -> bool:
        """Has this frame not been sent here yet?"""
        return self._next <= sequence

    def idle(self) -> bool:
        return not self.records and self._next >= self._link._sendable

    def hear(self) -> None:
        """A sign of life."""
        self._last_heard = monotonic()

    def silent_seconds(self) -> float:
        return monotonic() - self._last_heard

    def outgoing(self) -> Iterator[bytes]:
        """Records to send, until the connection ends; for the thread that writes."""
        try:
            yield from self._outgoing()
        except ThinwireError as error:  # the log cannot be read: no connection will cure that
            self._link.fail(error)
            self.end(str(error))

    def _has_work(self) -> bool:
        return bool(self.records) or self.ended or self._next < self._link._sendable

    def _outgoing(self) -> Iterator[bytes]:
        link = self._link
        while True:
            fresh = None
            with link._lock:
                self.at_hand = True
                link._to_send.wait_for(self._has_work, ALIVE_SECONDS)
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

    def incoming(self, record: bytes) -> None:
        """One record from the peer. Raises WireError on anything that cannot be; then the connection must end."""
        self.hear()
        if self.ended or not record:
            return
        match record[0]:
            case Record.FRAME:
                self._begin_frame(record)
            case Record.MORE:
                self._take(self._assembly.add(record[1:]))
            case Record.ALIVE:
                pass
            case Record.KEPT:
                self._link.log.prune(min(parse_number(record), self._next))
            case Record.NEWS:
                self._link._events("news", self._link.ends.peer, told=parse_json(record))
            case other:
                raise Malformed(f"record kind {other} in the middle of a connection")

    def _begin_frame(self, record: bytes) -> None:
        sequence = parse_number(record)
        expected = self._link._received
        if sequence > expected:
            raise Malformed(f"frame {sequence} came where {expected} was next: one was lost or out of order")
        self._take(self._assembly.begin(record, self._link.max_body))

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
            f"{peer!r} sent {came.name} of round {at} where {kind.name} of round {round} was next; its program is at "
            "another stage: do both run the same version and job?"
        )


class Unreachable(TransportError):
    """The peer needs frames that our log does not hold."""

    def __init__(self, peer: PartyName, received: int, first: int, end: int) -> None:
        super().__init__(
            f"{peer!r} goes on from frame {received}, our log holds {first} to {end}: one of the two run folders is "
            "older than what it has told the other. Bring back the newest folder, or begin a new run in new folders"
        )
