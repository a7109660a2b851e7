"""A sweep: every combination of some settings' values with every seed, each run made, resumed or kept."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.base.errors import BadInput, BadParameter, ThinwireError
from thinwire.job.job_file import inline
from thinwire.lab.runner import can_resume, run_each, train_to_end
from thinwire.lab.sweep.page import format_setting, pool_runs
from thinwire.storage import layout

if TYPE_CHECKING:
    from thinwire.training.callbacks import RunStart

_LONGEST_NAME = 80
_WORD = re.compile(r"[A-Za-z_][\w-]*")


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: a job file, and `key=value` settings as --set takes them.

    Args:
        job: a job file.
        settings: `key=value` settings of the run.
        point: what the sweep varies besides the seed; runs of one point are averaged.
        seed: the job's own unless given.

    Examples:
        >>> tw.Trial("job.toml", point=(("recipe.reuse", 4),), seed=1).overrides
        ('recipe.reuse=4', 'job.seed=1')
    """

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
    """A grid of runs: every combination of `values`, each with every seed.

    Args:
        job: a job file.
        values: a list of values for each key of the job file.
        seeds: one run per seed and combination; the job's own seed where none is given.
        settings: `key=value` settings of every run, as --set takes them.

    Raises:
        BadParameter: a key has no list of values, or a value or seed appears twice.

    Examples:
        >>> len(tw.Grid("job.toml", {"recipe.reuse": [2, 4, 6]}, seeds=[0, 1, 2]).trials())
        9
    """

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

    @property
    def pruning(self) -> dict[str, Any] | None:
        """Where the run was ended early, and at which score; None where it was not."""
        return None if self.summary is None else self.summary.get("pruned")

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
    prune: bool = False,
) -> SweepResult:
    """Runs every trial in a folder of its own below `out`, `workers` at a time.

    Called again with the same `out`, it keeps finished runs and resumes stopped ones. A run that fails is a row with
    its error; the others continue. With `prune`, a run stops early if it is worse than the median of the finished
    runs was at the same epoch (`MedianRule`).

    Args:
        jobs: a `Grid`, or the trials themselves.
        out: folder of all runs.
        workers: runs at a time.
        executor: "processes", or "ray" with the extra of that name.
        on_done: called with each result as it ends.
        prune: stop bad runs early.

    Returns:
        A row for each run, and means over seeds.

    Raises:
        BadInput: no run at all, or two identical ones.

    Examples:
        >>> found = tw.sweep(tw.Grid("job.toml", {"job.epochs": [1, 2]}), out="sweep", workers=1)
        >>> [run.error for run in found.runs]
        [None, None]
    """
    trials = jobs.trials() if isinstance(jobs, Grid) else list(jobs)
    if not trials:
        raise BadInput("a sweep needs at least one run")
    if len({trial.folder for trial in trials}) < len(trials):
        raise BadInput("a sweep's runs must differ; two of them have the same job and settings")
    found: dict[Trial, TrialResult] = {}
    folders = [str(Path(out).resolve() / trial.folder) for trial in trials]
    compared = tuple(folders) if prune else ()
    # A worker of a cluster began in a folder of its own.
    placed = {replace(trial, job=str(Path(trial.job).resolve())): trial for trial in trials}
    items = [(trial, folder, compared) for trial, folder in zip(placed, folders, strict=True)]
    for _, ended in run_each(_made, items, workers, executor):
        one = replace(ended, trial=placed[ended.trial])
        found[one.trial] = one
        if on_done is not None:
            on_done(one)
        if one.was_interrupted:
            raise KeyboardInterrupt
    return SweepResult([found[trial] for trial in trials])


def _made(item: tuple[Trial, str, tuple[str, ...]]) -> TrialResult:
    """In a worker: the run of this folder, brought to its end."""
    trial, folder, compared = item[0], Path(item[1]), [Path(one) for one in item[2]]
    try:
        return _run(trial, folder, compared)
    except KeyboardInterrupt:
        return TrialResult(trial, folder, None)
    except ThinwireError as error:
        return TrialResult(trial, folder, None, str(error))


def _run(trial: Trial, folder: Path, compared: Sequence[Path]) -> TrialResult:
    from thinwire.job.job_loader import JobSource
    from thinwire.job.job_snapshot import require_same_job, save_job
    from thinwire.storage.run_directory import RunDirectory

    source = JobSource(trial.job, trial.overrides)
    text, job = source.resolve(), source.load()
    resume = can_resume(folder)
    if resume:
        require_same_job(folder, text, job)
        if (folder / layout.DONE).exists() and (folder / layout.JOB).read_text() == text:
            kept = TrialResult(trial, folder, json.loads((folder / layout.DONE).read_text()), kept=True)
            if kept.pruning is None or compared:
                return kept
    else:
        save_job(folder, text, job)
    rule = MedianRule(compared, next(iter(job.metrics), "loss"), job.epochs)
    result = train_to_end(job, [rule] if compared else [], out=folder, resume=resume)
    summary = {**result.summary(), **({} if rule.pruned is None else {"pruned": rule.pruned})}
    directory = RunDirectory(folder)
    directory.write(layout.JOB, text.encode())  # it may have gone on for longer
    directory.write(layout.DONE, json.dumps(summary).encode())
    return TrialResult(trial, folder, summary)


class MedianRule:
    """A callback that ends a run early: Optuna's median pruner over the runs of a sweep that have come to their end.

    What it knows are the folders of the runs, so it needs no server, holds after a restart, and is the same on a
    cluster whose machines share them. Runs are compared at the same epoch, on the rows that steer.
    """

    FINISHED = 3  # runs, before any is ended
    WARM_UP = 0.2  # of the epochs, in which none is

    def __init__(self, folders: Sequence[Path], metric: str, epochs: float) -> None:
        self.pruned: dict[str, Any] | None = None
        self._waiting = list(folders)
        self._metric = metric
        self._epochs = epochs
        self._finished: list[dict[int, float]] = []  # scores by hundredths of an epoch
        self._own: dict[int, float] = {}

    def begin(self, begun: RunStart) -> None:
        self._own = self._read_curve(begun.history)

    def __call__(self, event: dict[str, Any]) -> bool:
        self._own |= self._read_curve([event])
        if event["epoch"] >= self._epochs or not self._own:
            return False
        self._read_finished()
        if self._is_worse_than_median():
            value = self._own[max(self._own)]
            self.pruned = {"epoch": event["epoch"], "round": event["round"], "metric": self._metric, "value": value}
        return self.pruned is not None

    def end(self, result: object) -> None:
        """Nothing is to be closed."""

    def _read_curve(self, events: Sequence[dict[str, Any]]) -> dict[int, float]:
        from thinwire.report.record import Evaluation

        found = {one.epoch: one.scores.get(self._metric) for one in map(Evaluation.model_validate, events)}
        return {round(100 * epoch): value for epoch, value in found.items() if value is not None}

    def _read_finished(self) -> None:
        """Those that were ended early do not count: the median is of what whole runs did."""
        from thinwire.report.folder import read_run

        for folder in [one for one in self._waiting if (one / layout.DONE).exists()]:
            self._waiting.remove(folder)
            if "pruned" not in json.loads((folder / layout.DONE).read_text()):
                self._finished.append(self._read_curve([one.to_dict() for one in read_run(folder).events]))

    def _is_worse_than_median(self) -> bool:
        import optuna

        from thinwire.training.result import better

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        pruner = optuna.pruners.MedianPruner(self.FINISHED, int(100 * self.WARM_UP * self._epochs))
        study = optuna.create_study(direction="maximize" if better(self._metric) > 0 else "minimize", pruner=pruner)
        for curve in filter(None, self._finished):
            study.add_trial(optuna.trial.create_trial(value=curve[max(curve)], intermediate_values=curve))
        running = optuna.trial.TrialState.RUNNING
        return pruner.prune(study, optuna.trial.create_trial(state=running, intermediate_values=self._own))


def _point(runs: list[TrialResult]) -> dict[str, Any]:
    errors = [f"{one.trial.label}: {one.error}" for one in runs if one.error is not None]
    pooled = pool_runs([one.figures() for one in runs if one.summary is not None and one.pruning is None], errors)
    pruned = [{"seed": one.trial.seed, **one.pruning, "run_dir": str(one.folder)} for one in runs if one.pruning]
    return {"settings": dict(runs[0].trial.point), **pooled, "pruned": pruned}
