"""What a program needs from whatever carries its bytes, and what can go wrong there.

::

    ThinwireError
      TransportError           a message that cannot be sent or received as asked
        Deadlock                 every party waits for another one
        Stopped                  this program was stopped because of another one, or of Ctrl-C
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeAlias

from thinwire.base.errors import ThinwireError
from thinwire.base.types import Kind, PartyName, Round


class Wait(NamedTuple):
    """A party that waits for a message."""

    party: PartyName
    sender: PartyName
    kind: Kind
    round: Round


class TransportError(ThinwireError):
    """A message cannot be sent or received as asked."""


class Deadlock(TransportError):
    """Nobody can move; `waits` holds who waits for what."""

    def __init__(self, waits: Sequence[Wait], ended: Collection[PartyName] = ()) -> None:
        self.waits = tuple(waits)
        told = (
            f"{wait.party!r} waits for {wait.kind.name} of round {wait.round} from {wait.sender!r}"
            + (", which has ended" if wait.sender in ended else "")
            for wait in waits
        )
        super().__init__("deadlock: " + "; ".join(told))


class Stopped(TransportError):
    """This program was stopped from outside; it did nothing wrong itself."""


Activity: TypeAlias = Literal["compute", "local", "wait", "send"]
Stretch: TypeAlias = tuple[Activity, float, float, int]  # what, from when to when, in which round

# A local step is an update without a message. On a simulated link sending goes on beside the rest.
ACTIVITIES: tuple[Activity, ...] = ("compute", "local", "wait", "send")
_KEPT = 600  # stretches; many more than a round has


class Stopwatch:
    """One party's; in seconds of whatever clock its channel keeps. Costs a dictionary entry a stretch."""

    __slots__ = ("_settle", "_stretches", "doing", "round", "seconds")

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        self._settle = settle  # puts the time up to now on this watch
        self.doing: Activity = "compute"  # what time is spent on that is neither waiting nor sending
        self.round = -1
        self.seconds: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self._stretches: deque[Stretch] = deque(maxlen=_KEPT)

    def begin(self, activity: Activity) -> None:
        """From here on time goes to this."""
        self._settle()
        self.doing = activity

    def add(self, activity: Activity, start: float, end: float) -> None:
        if end > start:
            self.seconds[activity] += end - start
            self._stretches.append((activity, start, end, self.round))

    def stretches(self) -> list[Stretch]:
        """The last ones, of rounds before this one and of this one."""
        return list(self._stretches)


@dataclass(frozen=True, slots=True)
class Message:
    """One body from one party to another; (sender, receiver, kind, round) names it."""

    sender: PartyName
    receiver: PartyName
    kind: Kind
    round: Round
    body: bytes | memoryview


class Channel(Protocol):
    """One party's end of its links: blocking, counts bytes, knows no tensors."""

    def send(self, message: Message) -> None:
        """Hands the message over; does not wait until it is read."""

    def receive(self, sender: PartyName, kind: Kind, round: Round) -> Message:
        """The message with exactly this sender, kind and round; waits for it as long as the channel deems right."""

    def ready(self, sender: PartyName, kind: Kind, round: Round) -> bool:
        """Whether `receive` would return at once."""

    def away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        """Waits for these messages; True, at once, where a party is away and so one of them may be long in coming."""

    def pause_clock(self) -> AbstractContextManager[None]:
        """What is done in this block costs no time on the link's clock; for evaluations."""

    def count_steps(self, steps: int) -> None:
        """This party took `steps` update steps since the last call; for channels that keep a clock."""


class NoChannel(Channel):
    """Of a party whose messages travel another way."""

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("this party has no channel of its own")

    send = receive = ready = away = pause_clock = count_steps = _refuse


class TimedChannel(Channel, Protocol):
    """One that notes what its party's time goes to."""

    @property
    def stopwatch(self) -> Stopwatch: ...
