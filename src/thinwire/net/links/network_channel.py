"""A party's channel over durable links: what a program posts is logged, what it takes is replayed after a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any

from thinwire.base.errors import ThinwireError
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Activity, Message, Stopwatch, TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import HEADER_SIZE
from thinwire.net.links.outgoing_log import OutgoingLog, append_answer, read_answer
from thinwire.net.links.peer_link import PeerLink

_SYNC_SECONDS = 1.0
_TELL_SECONDS = 10.0
_LOOK_SECONDS = 0.2
_BUSY = 6  # times the patience, for a peer that is connected


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a peer that is gone, or that sends nothing; and who hears of it meanwhile."""

    seconds: float
    waiting: Callable[[PartyName, Kind, Round, float, float], None]  # peer, kind, round, waited, left
    interrupted: Callable[[], None]  # raises where the wait must end


class NetworkChannel:
    """Implements `Channel`. One program uses it; frames are taken from each peer in the order it posted them."""

    def __init__(
        self,
        me: PartyName,
        links: Mapping[PartyName, PeerLink],
        ledger: Ledger,
        journal: OutgoingLog,
        patience: Patience,
        durable: bool = False,
    ) -> None:
        self.me = me
        self.links = dict(links)
        self.ledger = ledger
        self.waiting_for: PartyName | None = None
        self.stopwatch = Stopwatch(self._settle)  # in real seconds
        self._since = monotonic()  # time up to here is on it
        self._untimed_before = 0.0
        self._untimed_since: float | None = None  # where such a block began
        self._journal = journal
        self._answers = 0  # questions about time that the program has asked
        self._patience = patience
        self._durable = durable  # noised or masked messages are on the disk before they travel
        self._closed = Event()
        self._kept: list[dict[str, Any]] = []  # the states of the checkpoints that are on disk, oldest first
        self._syncing = Thread(target=self._sync, name="sync", daemon=True)
        self._syncing.start()

    def send(self, message: Message) -> None:
        """On disk, then on its way; does not wait until it is read."""
        if message.sender != self.me:
            raise TransportError(f"{self.me!r} cannot send as {message.sender!r}")
        with self._timed("send"):
            size = self._link(message.receiver).post(message.kind, message.round, message.body, self._durable)
        self.ledger.add(message.sender, message.receiver, message.kind, size)

    def receive(self, sender: PartyName, kind: Kind, round: Round) -> Message:
        """Waits for the message; names a peer that keeps it waiting, and gives it up after a while."""
        link = self._link(sender)
        with self._timed("wait"):
            message = link.take(kind, round, _LOOK_SECONDS)
            if message is None:
                message = self._wait(link, kind, round)
        self.ledger.add(sender, self.me, kind, HEADER_SIZE + len(message.body))
        return message

    def _wait(self, link: PeerLink, kind: Kind, round: Round) -> Message:
        patience = self._patience.seconds
        peer, began, told = link.ends.peer, monotonic(), monotonic()
        self.waiting_for = peer
        try:
            while True:
                self._patience.interrupted()
                message = link.take(kind, round, _LOOK_SECONDS)
                if message is not None:
                    return message
                waited = monotonic() - began
                # One that is here and sends nothing may compute, or wait itself: it has longer.
                silent = min(waited, monotonic() - link.last_frame)
                left = (_BUSY * patience if link.is_connected else patience) - silent
                if left <= 0:
                    raise PartyMissing(peer, f"{kind.name} of round {round} was next", silent)
                if monotonic() - told >= _TELL_SECONDS:
                    told = monotonic()
                    self._patience.waiting(peer, kind, round, waited, left)
        finally:
            self.waiting_for = None

    def ready(self, sender: PartyName, kind: Kind, round: Round) -> bool:
        """Whether the message is here; answered from the journal where a restarted program asks again."""
        return self._answered(lambda: self._link(sender).holds(kind, round))

    def away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        """Waits for the messages, or for the news that a party is away; from the journal likewise."""
        with self._timed("wait"):
            return self._answered(lambda: self._is_away(awaited))

    def _is_away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        began = monotonic()
        for sender, kind, round in awaited:
            while not self._link(sender).holds(kind, round, _LOOK_SECONDS):
                self._patience.interrupted()
                if monotonic() - began > _BUSY * self._patience.seconds:
                    raise PartyMissing(sender, f"{kind.name} of round {round} was next", monotonic() - began)
                if any(not link.is_connected or bool(link.news.get("away")) for link in self.links.values()):
                    return True
        return False

    @contextmanager
    def _timed(self, activity: Activity) -> Iterator[None]:
        """What was done since the last time, and what is done here."""
        self._settle()
        began = self._since
        try:
            yield
        finally:
            self._since = monotonic()
            self.stopwatch.add(activity, began, self._since)

    def _settle(self) -> None:
        now = monotonic()
        self.stopwatch.add(self.stopwatch.doing, self._since, now)
        self._since = now

    def _answered(self, question: Callable[[], bool]) -> bool:
        logged = read_answer(self._journal, self._answers)
        answer = question() if logged is None else bool(logged)
        if logged is None:
            append_answer(self._journal, int(answer))
        self._answers += 1
        return answer

    @contextmanager
    def pause_clock(self) -> Iterator[None]:
        """Real time passes anyway, and is told apart."""
        self._untimed_since = monotonic()
        try:
            yield
        finally:
            self._untimed_before, self._untimed_since = self.pause_seconds(), None

    def pause_seconds(self) -> float:
        """So far, in all such blocks of this process."""
        since = self._untimed_since
        return self._untimed_before + (0.0 if since is None else monotonic() - since)

    def count_steps(self, steps: int) -> None:
        """Real time passes anyway."""

    def sync(self) -> None:
        """On the disk, not only in memory; the journal first, since frames follow from its answers."""
        self._journal.sync()
        for link in self.links.values():
            link.log.sync()

    # Checkpoints ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where the program stands on every link, and what it has sent so far."""
        return {
            "links": {peer: link.cursors() for peer, link in self.links.items()},
            "answers": self._answers,
            "ledger": self.ledger.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Back to a checkpoint, before any connection."""
        for peer, link in self.links.items():
            link.go_on_from(state["links"][peer])
        self._answers = state["answers"]
        self.ledger.load(state["ledger"])
        self._kept = [state]

    def on_checkpoint(self, state: dict[str, Any]) -> None:
        """A checkpoint of this state is on disk: peers may forget what the one before it had taken in."""
        self._kept = [*self._kept[-1:], state]
        oldest = self._kept[0] if len(self._kept) > 1 else None
        for peer, link in self.links.items():
            link.log.roll()
            if oldest is not None:
                link.keep(oldest["links"][peer]["consumed"])
        self._journal.roll()
        if oldest is not None:
            self._journal.prune(oldest["answers"])

    # The end --------------------------------------------------------------------------------------------------

    def drain(self, seconds: float) -> None:
        """Waits until every connected peer has been handed everything."""
        deadline = monotonic() + seconds
        for link in self.links.values():
            link.drain(max(0.0, deadline - monotonic()))

    def close(self) -> None:
        self._closed.set()
        self._syncing.join()
        self._journal.close()
        for link in self.links.values():
            link.log.close()

    def _sync(self) -> None:
        """A power cut loses a second at most."""
        try:
            while not self._closed.wait(_SYNC_SECONDS):
                self.sync()
        except ThinwireError as error:
            for link in self.links.values():
                link.fail(error)

    def _link(self, peer: PartyName) -> PeerLink:
        if peer not in self.links:
            raise TransportError(f"{self.me!r} has no link to {peer!r}; it has links to {', '.join(self.links)}")
        return self.links[peer]


class PartyMissing(TransportError):
    """A peer has been gone, or silent, for too long."""

    def __init__(self, peer: PartyName, what: str, seconds: float) -> None:
        self.peer = peer
        super().__init__(
            f"{peer!r} has sent nothing for {seconds:.0f} s, and {what}; nothing is lost: run the same command "
            "again when it is back, and all parties resume from here"
        )
