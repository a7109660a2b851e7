"""One end of what two parties say to each other, and a connection that carries it: durable links, question lines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Condition, Lock
from time import monotonic
from typing import Any

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import MAX_BODY, Frame, frame_header
from thinwire.net.links.records import FrameAssembler, Record, WholeFrame, json_record, parse_json

ALIVE_SECONDS = 2.0  # an idle side says that often that it is there
MOST_WAITING = 4096  # records that the other side has not taken yet
SILENCE_SECONDS = 8.0  # and after that long without a word its connection is given up

Events = Callable[..., None]  # (event, peer, **facts), for logs and metrics; facts are numbers and names only


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """Which run a link belongs to, and who is at its ends."""

    run: int
    me: PartyName
    peer: PartyName
    parties: tuple[PartyName, ...]  # in the job's order, the label party last


class PeerEnd(ABC):
    """This party's end of what it has to say to one peer; outlives connections. Thread-safe."""

    def __init__(self, ends: LinkEnds, ledger: Ledger, events: Events) -> None:
        self.ends = ends
        self.max_body = MAX_BODY  # bytes that the peer may announce
        self.failure: ThinwireError | None = None
        self.away_since = monotonic()
        self._ledger = ledger
        self._events = events
        self._me, self._peer = ends.parties.index(ends.me), ends.parties.index(ends.peer)
        self._lock = Lock()
        self._to_send = Condition(self._lock)
        self._attached: Attachment | None = None

    @property
    def is_connected(self) -> bool:
        return self._attached is not None

    @abstractmethod
    def describe_state(self) -> dict[str, int]:
        """What to say when connecting."""

    @abstractmethod
    def attach(self, hang_up: Callable[[], object], received: int, kept: int) -> Attachment:
        """Takes up a connection to a peer that has `received` of our frames and `kept` them in its checkpoints."""

    @abstractmethod
    def fail(self, error: ThinwireError) -> None:
        """Nothing more will come."""

    def tell(self, news: dict[str, Any]) -> None:
        """Sends news, if the peer is there."""
        with self._lock:
            if self._attached is not None and len(self._attached.records) < MOST_WAITING:  # or it reads nothing
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

    def _header(self, kind: Kind, round: Round, body: bytes | memoryview) -> bytes:
        return frame_header(Frame(self.ends.run, self._me, self._peer, kind, round, attempt=0, body=body), MAX_BODY)

    def _detach(self, attached: Attachment, why: str) -> None:
        with self._lock:
            mine = self._attached is attached
            if mine:
                self._attached = None
                self.away_since = monotonic()
                self._forget_connection()
            self._to_send.notify_all()
        if mine:
            self._events("disconnected", self.ends.peer, why=why)

    def _forget_connection(self) -> None:  # noqa: B027  a line may have nothing to forget
        """What was meant for the connection that is gone; under the lock."""


class Attachment(ABC):
    """A peer's end while it is connected: records out, records in. Over for good once ended."""

    def __init__(self, link: PeerEnd, hang_up: Callable[[], object]) -> None:
        self.records: deque[bytes] = deque()  # to send, under the link's lock
        self.ended = False
        self._link = link
        self._hang_up = hang_up
        self._last_heard = monotonic()
        self._assembly = FrameAssembler()  # of the frame that is coming in

    def end(self, why: str) -> None:
        """Ends this connection, not the link."""
        if not self.ended:
            self.ended = True
            self._link._detach(self, why)
            self._hang_up()

    def idle(self) -> bool:
        return not self.records

    def hear(self) -> None:
        """A sign of life."""
        self._last_heard = monotonic()

    def silent_seconds(self) -> float:
        return monotonic() - self._last_heard

    @abstractmethod
    def outgoing(self) -> Iterator[bytes]:
        """Records to send, until the connection ends; for the thread that writes."""

    def incoming(self, record: bytes) -> None:
        """One record from the peer. Raises WireError on anything that cannot be; then the connection must end."""
        self.hear()
        if record and not self.ended:
            self._handle(record)

    def _handle(self, record: bytes) -> None:
        match record[0]:
            case Record.FRAME:
                self._take(self._assembly.begin(record, self._link.max_body))
            case Record.MORE:
                self._take(self._assembly.add(record[1:]))
            case Record.ALIVE:
                pass
            case Record.NEWS:
                self._link._events("news", self._link.ends.peer, told=parse_json(record))
            case other:
                raise Malformed(f"record kind {other} in the middle of a connection")

    @abstractmethod
    def _take(self, whole: WholeFrame | None) -> None:
        """A frame that has come in; None while more of it is to come."""
