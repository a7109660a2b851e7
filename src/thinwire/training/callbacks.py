"""What may look on while a run goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from thinwire.job.job import Job
    from thinwire.training.result import Result

# Gets each evaluation; one that returns True ends the run there, as a finished one.
Callback = Callable[[dict[str, Any]], bool | None]


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

    def __call__(self, event: dict[str, Any]) -> bool | None: ...

    def end(self, result: Result | None) -> None:
        """None where the run failed."""


@contextmanager
def follow_run(callbacks: Sequence[Callback], begun: RunStart, result: Callable[[], Result | None]) -> Iterator[None]:
    """Around one run: every follower that has begun is told of the end, however it comes."""
    with ExitStack() as stack:
        for follower in callbacks:
            if isinstance(follower, Follower):
                follower.begin(begun)
                stack.callback(lambda one: one.end(result()), follower)
        yield
