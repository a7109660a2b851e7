"""A sweep: every combination of some settings' values with every seed, each run made, resumed or kept."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput, BadParameter, ThinwireError
from thinwire.job.job_file import inline
from thinwire.lab.runner import can_resume, run_each, train_to_end
from thinwire.lab.sweep.page import format_setting, pool_runs
from thinwire.storage import layout

_LONGEST_NAME = 80
_WORD = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True)
class Trial:
    """One run to make: a job file, and `key=value` settings as --set takes them."""

    job: str
    settings: tuple[str, ...] = ()
    point: tuple[tuple[str, Any], ...] = ()  # what is varied, beside the seed; runs of one point are averaged
    seed: int | None = None  # None: the job's

    @property
    def overrides(self) -> tuple[str, ...]:
        given = tuple(f"{key}={inline(value)}" for key, value in self.point)
        return (*self.settings, *given, *(() if self.seed is None else (f"job.seed={self.seed}",)))

    @property
    def label(self) -> str:
        """For people."""
        seed = [] if self.seed is None else [f"seed {self.seed}"]
        return (
            ", ".join([*(f"{key} {format_setting(value)}" for key, value in self.point), *seed])
            or Path(self.job).stem
        )

    @property
    def folder(self) -> str:
        """Of its run, below the sweep's: readable, and its own whatever the values are."""
        words = [*(f"{key.rpartition('.')[2]}={format_setting(value)}" for key, value in self.point)]
        words += [] if self.seed is None else [f"seed={self.seed}"]
        readable = re.sub(r"[^A-Za-z0-9=.-]+", "_", ",".join(words) or "run").strip(".")[:_LONGEST_NAME]
        digest = hashlib.sha256("\n".join((Path(self.job).stem, *self.overrides)).encode()).hexdigest()
        return f"{readable}-{digest[:8]}"


@dataclass(frozen=True)
class Grid:
    """`Grid("job.toml", {"recipe.reuse": [2, 4, 6]}, seeds=[0, 1, 2])`: nine runs."""

    job: str | Path
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seeds: Sequence[int] = ()  # none: the job's
    settings: Sequence[str] = ()  # of every run

    def __post_init__(self) -> None:
        for key, values in self.values.items():
            if isinstance(values, str) or not isinstance(values, Sequence) or not values:
                raise BadParameter(
                    f"grid {key}: needs a list with at least one value, such as [2, 4, 6]; got {values!r}"
                )
            if len({inline(value) for value in values}) < len(values):
                raise BadParameter(f"grid {key}: a value appears twice: {list(values)}")
        if len(set(self.seeds)) < len(self.seeds):
            raise BadParameter(f"seeds: one appears twice: {list(self.seeds)}")

    def trials(self) -> list[Trial]:
        """In the order of the keys and values, the seeds of a point together."""
        points = itertools.product(*([(key, value) for value in values] for key, values in self.values.items()))
        return [
            Trial(str(self.job), tuple(self.settings), tuple(point), seed)
            for point in points
            for seed in (self.seeds or (None,))
        ]


def read_axis(text: str) -> tuple[str, list[Any]]:
    """`recipe.reuse=2,4,6`: a key and its values, which are TOML; single words need no quotes."""
    key, equals, given = text.partition("=")
    wrong = BadParameter(f"--grid {text}: write KEY=VALUE,VALUE as in --grid recipe.reuse=2,4,6")
    if not equals or not key.strip() or not given.strip():
        raise wrong
    try:
        values = tomllib.loads(f"values = [{given}]")["values"]
    except tomllib.TOMLDecodeError:
        values = [word.strip() for word in given.split(",")]
        if not all(_WORD.fullmatch(word) for word in values):
            raise wrong from None
    return key.strip(), values


# A sweep: its runs made, resumed where they were stopped, kept where they are finished ----------------------------


@dataclass(frozen=True)
class TrialResult:
    """One run of a sweep: its summary as `thinwire train --json` prints it, or why there is none."""

    trial: Trial
    folder: Path
    summary: dict[str, Any] | None
    error: str | None = None
    kept: bool = False  # it was finished before

    @property
    def was_interrupted(self) -> bool:
        return self.summary is None and self.error is None

    def figures(self) -> dict[str, Any]:
        """What is compared: at the target where it was reached, else at the end."""
        if self.summary is None:
            raise BadInput(f"{self.trial.label}: there is no result; {self.error or 'it was stopped'}")
        said, target = self.summary, self.summary["target"]
        delivered, metric = said["delivered"], said["best"]["metric"]
        return {
            "seed": self.trial.seed,
            "reached": None if target is None else target["reached_round"] is not None,
            "rounds": said["rounds"],
            "bytes_up": said["bytes"]["up"],
            "bytes_down": said["bytes"]["down"],
            "bytes_all": said["bytes"]["all"],
            "bytes_training": said["bytes"]["total"],
            "link_seconds": said["link_seconds"],
            "best": said["best"]["value"],
            "delivered": delivered["value"],
            "test": said["test"].get(metric),
            "run_dir": str(self.folder),
        }


@dataclass(frozen=True)
class SweepResult:
    """All runs, in the order in which they were asked for."""

    runs: list[TrialResult]

    def points(self) -> list[dict[str, Any]]:
        """Runs that differ in the seed alone, together: means and standard deviations, for a table or for --json."""
        grouped: dict[tuple[Any, ...], list[TrialResult]] = {}
        for one in self.runs:
            grouped.setdefault((one.trial.job, one.trial.settings, json.dumps(one.trial.point)), []).append(one)
        return [_point(runs) for runs in grouped.values()]


def sweep(
    jobs: Grid | Sequence[Trial],
    out: str | Path,
    workers: int = 2,
    executor: str = "processes",
    on_done: Callable[[TrialResult], None] | None = None,
) -> SweepResult:
    """Makes every run in a folder of its own below `out`, `workers` at a time.

    Called again with the same `out`, finished runs are kept, and stopped ones go on. A run that fails is a row with
    its error; the others go on. `on_done` hears of each as it ends.
    """
    trials = jobs.trials() if isinstance(jobs, Grid) else list(jobs)
    if not trials:
        raise BadInput("a sweep needs at least one run")
    if len({trial.folder for trial in trials}) < len(trials):
        raise BadInput("a sweep's runs must differ; two of them have the same job and settings")
    found: dict[Trial, TrialResult] = {}
    pairs = [(trial, str(Path(out).resolve() / trial.folder)) for trial in trials]
    for _, one in run_each(_made, pairs, workers, executor):
        found[one.trial] = one
        if on_done is not None:
            on_done(one)
        if one.was_interrupted:
            raise KeyboardInterrupt
    return SweepResult([found[trial] for trial in trials])


def _made(pair: tuple[Trial, str]) -> TrialResult:
    """In a worker: the run of this folder, brought to its end."""
    trial, folder = pair[0], Path(pair[1])
    try:
        return _run(trial, folder)
    except KeyboardInterrupt:
        return TrialResult(trial, folder, None)
    except ThinwireError as error:
        return TrialResult(trial, folder, None, str(error))


def _run(trial: Trial, folder: Path) -> TrialResult:
    from thinwire.job.job_loader import JobSource
    from thinwire.job.job_snapshot import require_same_job, save_job
    from thinwire.storage.run_directory import RunDirectory

    source = JobSource(trial.job, trial.overrides)
    text, job = source.resolve(), source.load()
    resume = can_resume(folder)
    if resume:
        require_same_job(folder, text, job)
        if (folder / layout.DONE).exists() and (folder / layout.JOB).read_text() == text:
            return TrialResult(trial, folder, json.loads((folder / layout.DONE).read_text()), kept=True)
    else:
        save_job(folder, text, job)
    result = train_to_end(job, out=folder, resume=resume)
    directory = RunDirectory(folder)
    directory.write(layout.JOB, text.encode())  # it may have gone on for longer
    directory.write(layout.DONE, json.dumps(result.summary()).encode())
    return TrialResult(trial, folder, result.summary())


def _point(runs: list[TrialResult]) -> dict[str, Any]:
    errors = [f"{one.trial.label}: {one.error}" for one in runs if one.error is not None]
    pooled = pool_runs([one.figures() for one in runs if one.summary is not None], errors)
    return {"settings": dict(runs[0].trial.point), **pooled}
