"""What all writers have in common: which numbers and parameters a run has, and what happens when theirs fails."""

from __future__ import annotations

import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from thinwire import __version__
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.engine.recipe import Recipe
from thinwire.job.job import Job
from thinwire.storage import layout
from thinwire.training.callbacks import RunStart
from thinwire.training.result import Result

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opening:
    """What a writer is told of a run before its first round."""

    name: str
    parameters: Mapping[str, str | int | float]
    folder: Path | None  # None: nothing is kept
    goes_on: bool  # evaluations there are already will be written once more


@dataclass(frozen=True)
class Ending:
    """What a writer is told of a run that has not failed."""

    interrupted: bool
    round: int
    folder: Path | None
    report: Callable[[Path], Path | None]  # writes it there; None where there is none


class RunWriter(ABC):
    """A follower of one run at a time.

    What keeps it from beginning keeps the run from starting. What goes wrong later, such as a server that is away, is
    logged once and ends the writing alone: the run is worth more than its copy.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self._writing = False

    def begin(self, begun: RunStart) -> None:
        self.open(Opening(run_name(begun), parameters(begun.job), begun.folder, bool(begun.history)))
        for event in begun.history:
            self(event)

    def open(self, opening: Opening) -> None:
        """Begins to write; a run's followers are told by `begin`."""
        try:
            with redirect_stdout(sys.stderr):  # theirs for people; ours may be read by a program
                self._open(opening)
        except ThinwireError:
            raise
        except Exception as error:
            why = str(error).strip().rstrip(".")
            raise BadInput(f"{self.name} cannot be written to: {why}. Nothing was started") from error
        self._writing = True

    def __call__(self, event: dict[str, Any]) -> None:
        self._guard(lambda: self._write(scalars(event), int(event["round"])))

    def end(self, result: Result | None) -> None:
        self.close(None if result is None else _ending(result))

    def close(self, ending: Ending | None) -> None:
        """None where the run failed."""
        self._guard(lambda: self._close(ending))
        self._writing = False

    def _guard(self, write: Callable[[], None]) -> None:
        if not self._writing:
            return
        try:
            with redirect_stdout(sys.stderr):
                write()
        except Exception as error:  # noqa: BLE001  # a library and a server of others
            self._writing = False
            _log.warning("%s can no longer be written to (%s); the run goes on without it", self.name, error)

    @abstractmethod
    def _open(self, opening: Opening) -> None: ...

    @abstractmethod
    def _write(self, values: Mapping[str, float], round: int) -> None: ...

    @abstractmethod
    def _close(self, ending: Ending | None) -> None:
        """None where the run failed."""


def scalars(event: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an evaluation by their place, as test/accuracy and bytes/up; the round is the step."""
    found = dict(_leaves(event, ""))
    del found["round"]
    return {
        name: float(value)
        for name, value in found.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    }


def parameters(job: Job) -> dict[str, str | int | float]:
    """What the run was asked to do: the recipe part by part, and the settings beside it; no data, no paths."""
    settings = {
        "seed": job.seed,
        "epochs": job.epochs,
        "batch_size": job.batch_size,
        "eval_every": job.eval_every,
        "optimizer": str(job.optimizer),
        "feature_parties": ", ".join(party.name for party in job.parties),
        "label_party": job.label_party.name,
        "fusion": job.label_party.fusion,
        "rows": job.rows,
        "link": job.link,
        "training": str(job.training),
        "budget": job.budget,
    }
    return plain_parameters(job.recipe, settings)


def plain_parameters(recipe: Recipe, settings: Mapping[str, object]) -> dict[str, str | int | float]:
    """Numbers and words; what is None is left out."""
    parts = {f"recipe/{name}": value for name, value in _leaves(recipe.describe(), "")}
    found = {"recipe_digest": recipe.digest(), **settings, "thinwire": __version__, **parts}
    return {
        name: value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
        for name, value in found.items()
        if value is not None
    }


def run_name(begun: RunStart) -> str:
    """The run's folder, or its method and seed."""
    if begun.folder is not None:
        return begun.folder.resolve().name
    return f"{begun.job.recipe.name}-seed-{begun.job.seed}"


def with_report(ending: Ending, use: Callable[[Path], object]) -> None:
    """Hands over the run's report as a file, which is gone afterwards."""
    with TemporaryDirectory() as folder:
        report = ending.report(Path(folder) / layout.REPORT)
        if report is not None:
            use(report)


def _ending(result: Result) -> Ending:
    return Ending(result.interrupted, int(result.history[-1]["round"]), result.run_dir, result.report)


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{place}/{key}" if place else str(key))
    else:
        yield place, value
