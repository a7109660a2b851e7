"""What may look on while a run goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from thinwire.job.job import Job
    from thinwire.training.result import Result

Callback = Callable[[dict[str, Any]], None]  # gets each evaluation


@dataclass(frozen=True, eq=False)
class RunStart:
    """A run before its first round."""

    job: Job
    folder: Path | None  # None: nothing is kept
    history: Sequence[dict[str, Any]] = ()  # evaluations there are already, of a run that is resumed


@runtime_checkable
class Follower(Protocol):
    """A callback that hears of the beginning and the end too; one that cannot begin keeps the run from starting."""

    def begin(self, begun: RunStart) -> None: ...

    def __call__(self, event: dict[str, Any]) -> None: ...

    def end(self, result: Result | None) -> None:
        """None where the run failed."""


class FollowerScope:
    """A context around one run: every follower that has begun is told of the end, however it comes."""

    def __init__(self, callbacks: Sequence[Callback], begun: RunStart) -> None:
        self._followers = [callback for callback in callbacks if isinstance(callback, Follower)]
        self._begun = begun
        self._result: Result | None = None
        self._stack = ExitStack()

    def __enter__(self) -> FollowerScope:
        with ExitStack() as stack:
            for follower in self._followers:
                follower.begin(self._begun)
                stack.callback(self._end, follower)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()

    def finish(self, result: Result) -> Result:
        """What the followers will be told."""
        self._result = result
        return result

    def _end(self, follower: Follower) -> None:
        follower.end(self._result)
