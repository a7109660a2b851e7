"""Questions and answers with one peer: nothing is kept, and what is unanswered when a connection ends is lost.

Frames have the number of their question. Whoever asked hears of a lost connection at once, and may ask again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition, Lock
from time import monotonic
from typing import Any

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.types import Kind, PartyName
from thinwire.engine.channel.base import TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import HEADER_SIZE, MAX_BODY, Frame, frame_header, open_frame
from thinwire.net.links.peer_link import ALIVE_SECONDS, Connection, Events, LinkEnds
from thinwire.net.links.records import FrameAssembler, Record, WholeFrame, frame_records, json_record, parse_json

_MOST_WAITING = 4096  # records that nobody has taken yet


class NotConnected(TransportError):
    """The peer is not there."""

    def __init__(self, peer: PartyName) -> None:
        self.peer = peer
        super().__init__(f"{peer!r} is not connected")


class QuestionLine:
    """Implements `PeerEnd`. `take` gets every frame's number and body, in the thread that reads."""

    def __init__(
        self, ends: LinkEnds, ledger: Ledger, events: Events, take: Callable[[int, bytes | memoryview], None]
    ) -> None:
        self.ends = ends
        self.max_body = MAX_BODY  # bytes that the peer may announce
        self.failure: ThinwireError | None = None
        self.away_since = monotonic()
        self._ledger = ledger
        self._events = events
        self._take = take
        self._me, self._peer = ends.parties.index(ends.me), ends.parties.index(ends.peer)
        self._lock = Lock()
        self._to_send = Condition(self._lock)
        self._attached: _Attached | None = None

    @property
    def is_connected(self) -> bool:
        return self._attached is not None

    def send(self, number: int, body: bytes) -> None:
        """Hands one frame over; raises NotConnected where nobody is there to take it."""
        frame = Frame(self.ends.run, self._me, self._peer, Kind.PREDICTION, number, 0, body)
        header = frame_header(frame, MAX_BODY)
        self._post(frame_records(0, header, body))
        self._ledger.add(self.ends.me, self.ends.peer, Kind.PREDICTION, HEADER_SIZE + len(body))

    def tell(self, news: dict[str, Any]) -> None:
        """A word beside the questions, if the peer is there."""
        if self.is_connected:
            self._post(iter([json_record(Record.NEWS, news)]))

    def _post(self, records: Iterator[bytes]) -> None:
        whole = list(records)
        with self._lock:
            attached = self._attached
            if attached is None:
                raise NotConnected(self.ends.peer)
            if len(attached.waiting) > _MOST_WAITING:
                raise TransportError(f"{self.ends.peer!r} takes nothing: {_MOST_WAITING} records wait for it")
            attached.waiting.extend(whole)
            self._to_send.notify_all()

    def drain(self, seconds: float) -> None:
        """Waits until all has been handed to the connection."""
        with self._lock:
            self._to_send.wait_for(lambda: self._attached is None or not self._attached.waiting, seconds)

    # What a listener or a dialler needs ---------------------------------------------------------------------------

    def describe_state(self) -> dict[str, int]:
        return {"received": 0, "kept": 0}

    def attach(self, connection: Connection, received: int, kept: int) -> _Attached:
        attached = _Attached(self, connection)
        before = self._attached
        if before is not None:
            before.end("replaced by a new connection")  # what was asked over it is lost, and that is said
        with self._lock:
            self._attached = attached
        self._events("connected", self.ends.peer)
        return attached

    def fail(self, error: ThinwireError) -> None:
        self.failure = self.failure or error
        self._events("failed", self.ends.peer, why=str(error))

    def _detach(self, attached: _Attached, why: str) -> None:
        with self._lock:
            mine = self._attached is attached
            if mine:
                self._attached = None
                self.away_since = monotonic()
            self._to_send.notify_all()
        if mine:
            self._events("disconnected", self.ends.peer, why=why)

    def _put(self, whole: WholeFrame) -> None:
        frame = open_frame(whole.header, whole.body, self.max_body)
        expected = (self.ends.run, self._peer, self._me, Kind.PREDICTION)
        if (frame.run, frame.sender, frame.receiver, frame.kind) != expected:
            raise Malformed(f"{self.ends.peer!r} sent a frame that is no answer of this run")
        self._ledger.add(self.ends.peer, self.ends.me, Kind.PREDICTION, HEADER_SIZE + len(whole.body))
        self._take(frame.round, frame.body)


class _Attached:
    """Implements `Attachment`."""

    def __init__(self, line: QuestionLine, connection: Connection) -> None:
        self.waiting: deque[bytes] = deque()  # under the line's lock
        self.ended = False
        self._line = line
        self._connection = connection
        self._last_heard = monotonic()
        self._assembly = FrameAssembler()

    def end(self, why: str) -> None:
        if not self.ended:
            self.ended = True
            self._line._detach(self, why)
            self._connection.end(why)

    def silent_seconds(self) -> float:
        return monotonic() - self._last_heard

    def outgoing(self) -> Iterator[bytes]:
        line = self._line
        while True:
            with line._lock:
                line._to_send.wait_for(lambda: self.waiting or self.ended, ALIVE_SECONDS)
                records = list(self.waiting)
                self.waiting.clear()
                line._to_send.notify_all()
            if self.ended:
                return
            yield from records or [bytes([Record.ALIVE])]

    def incoming(self, record: bytes) -> None:
        self._last_heard = monotonic()
        if self.ended or not record:
            return
        match record[0]:
            case Record.FRAME:
                whole = self._assembly.begin(record, self._line.max_body)
            case Record.MORE:
                whole = self._assembly.add(record[1:])
            case Record.ALIVE:
                return
            case Record.NEWS:
                self._line._events("news", self._line.ends.peer, told=parse_json(record))
                return
            case other:
                raise Malformed(f"record kind {other} in the middle of a connection")
        if whole is not None:
            self._line._put(whole)
