"""Where a party's time goes: seconds by activity, and the last stretches one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

__all__ = ["ACTIVITIES", "Activity", "Stopwatch", "Stretch"]

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

    def spent(self, activity: Activity, start: float, end: float) -> None:
        if end > start:
            self.seconds[activity] += end - start
            self._stretches.append((activity, start, end, self.round))

    def stretches(self) -> list[Stretch]:
        """The last ones, of rounds before this one and of this one."""
        return list(self._stretches)
