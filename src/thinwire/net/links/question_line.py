"""Questions and answers with one peer: nothing is kept, and what is unanswered when a connection ends is lost.

Frames have the number of their question. Whoever asked hears of a lost connection at once, and may ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.types import Kind, PartyName
from thinwire.engine.channel.base import TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import HEADER_SIZE, open_frame
from thinwire.net.links.peer_end import ALIVE_SECONDS, MOST_WAITING, Attachment, Events, LinkEnds, PeerEnd
from thinwire.net.links.records import Record, WholeFrame, frame_records


class NotConnected(TransportError):
    """The peer is not there."""

    def __init__(self, peer: PartyName) -> None:
        self.peer = peer
        super().__init__(f"{peer!r} is not connected")


class QuestionLine(PeerEnd):
    """`take` gets every frame's number and body, in the thread that reads."""

    def __init__(
        self, ends: LinkEnds, ledger: Ledger, events: Events, take: Callable[[int, bytes | memoryview], None]
    ) -> None:
        super().__init__(ends, ledger, events)
        self._take = take

    def send(self, number: int, body: bytes) -> None:
        """Hands one frame over; raises NotConnected where nobody is there to take it."""
        records = list(frame_records(0, self._header(Kind.PREDICTION, number, body), body))
        with self._lock:
            attached = self._attached
            if attached is None:
                raise NotConnected(self.ends.peer)
            if len(attached.records) >= MOST_WAITING:
                raise TransportError(self._explain_waiting())
            attached.records.extend(records)
            self._to_send.notify_all()
        self._ledger.add(self.ends.me, self.ends.peer, Kind.PREDICTION, HEADER_SIZE + len(body))

    def tell(self, news: dict[str, Any]) -> None:
        """News, if the peer is there. One that takes nothing is hung up on: it hears all anew when it calls again."""
        attached = self._attached
        if attached is not None and len(attached.records) >= MOST_WAITING:
            attached.end(self._explain_waiting())
        super().tell(news)

    def _explain_waiting(self) -> str:
        return f"{self.ends.peer!r} takes nothing: {MOST_WAITING} records wait for it"

    # What a listener or a dialler needs ---------------------------------------------------------------------------

    def describe_state(self) -> dict[str, int]:
        return {"received": 0, "kept": 0}

    def attach(self, hang_up: Callable[[], object], received: int, kept: int) -> Attachment:
        attached = _Attached(self, hang_up)
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

    def _put(self, whole: WholeFrame) -> None:
        frame = open_frame(whole.header, whole.body, self.max_body)
        expected = (self.ends.run, self._peer, self._me, Kind.PREDICTION)
        if (frame.run, frame.sender, frame.receiver, frame.kind) != expected:
            raise Malformed(f"{self.ends.peer!r} sent a frame that does not answer a question of this run")
        self._ledger.add(self.ends.peer, self.ends.me, Kind.PREDICTION, HEADER_SIZE + len(whole.body))
        self._take(frame.round, frame.body)


class _Attached(Attachment):
    _link: QuestionLine

    def outgoing(self) -> Iterator[bytes]:
        line = self._link
        while True:
            with line._lock:
                line._to_send.wait_for(lambda: self.records or self.ended, ALIVE_SECONDS)
                records = list(self.records)
                self.records.clear()
                line._to_send.notify_all()
            if self.ended:
                return
            yield from records or [bytes([Record.ALIVE])]

    def _take(self, whole: WholeFrame | None) -> None:
        if whole is not None:
            self._link._put(whole)
