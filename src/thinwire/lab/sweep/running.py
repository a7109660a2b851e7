"""A sweep: its runs made, resumed where they were stopped, kept where they are finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.lab.sweep.executing import each
from thinwire.lab.sweep.grid import Grid, Trial
from thinwire.lab.sweep.tallying import averaged
from thinwire.storage import layout


@dataclass(frozen=True)
class Tried:
    """One run of a sweep: its summary as `thinwire train --json` prints it, or why there is none."""

    trial: Trial
    folder: Path
    summary: dict[str, Any] | None
    error: str | None = None
    kept: bool = False  # it was finished before

    @property
    def interrupted(self) -> bool:
        return self.summary is None and self.error is None

    def figures(self) -> dict[str, Any]:
        """What is compared: at the target where it was reached, else at the end."""
        if self.summary is None:
            raise BadInput(f"{self.trial.said}: there is no result; {self.error or 'it was stopped'}")
        said, target = self.summary, self.summary["target"]
        scores, best = said["test"] or said["train"], said["best"]
        return {
            "seed": self.trial.seed,
            "reached": None if target is None else target["reached_round"] is not None,
            "rounds": said["rounds"],
            "bytes_up": said["bytes"]["up"],
            "bytes_down": said["bytes"]["down"],
            "link_seconds": said["link_seconds"],
            "best": best["value"],
            "last": scores.get(best["metric"]),
            "run_dir": str(self.folder),
        }


@dataclass(frozen=True)
class Swept:
    """All runs, in the order in which they were asked for."""

    runs: list[Tried]

    def points(self) -> list[dict[str, Any]]:
        """Runs that differ in the seed alone, together: means and deviations, for a table or for --json."""
        grouped: dict[tuple[Any, ...], list[Tried]] = {}
        for one in self.runs:
            grouped.setdefault((one.trial.job, one.trial.settings, _hashable(one.trial)), []).append(one)
        return [_point(runs) for runs in grouped.values()]


def sweep(
    jobs: Grid | Sequence[Trial],
    out: str | Path,
    workers: int = 2,
    executor: str = "processes",
    on_done: Callable[[Tried], None] | None = None,
) -> Swept:
    """Makes every run in a folder of its own below `out`, `workers` at a time.

    Called again with the same `out`, finished runs are kept, and stopped ones go on. A run that fails is a row with
    its error; the others go on. `on_done` hears of each as it ends.
    """
    trials = jobs.trials() if isinstance(jobs, Grid) else list(jobs)
    if not trials:
        raise BadInput("a sweep needs one run at least")
    if len({trial.folder for trial in trials}) < len(trials):
        raise BadInput("a sweep's runs must differ; two of them have the same job and settings")
    found: dict[Trial, Tried] = {}
    pairs = [(trial, str(Path(out).resolve() / trial.folder)) for trial in trials]
    for _, one in each(_made, pairs, workers, executor):
        found[one.trial] = one
        if on_done is not None:
            on_done(one)
        if one.interrupted:
            raise KeyboardInterrupt
    return Swept([found[trial] for trial in trials])


def _made(pair: tuple[Trial, str]) -> Tried:
    """In a worker: the run of this folder, brought to its end."""
    trial, folder = pair[0], Path(pair[1])
    try:
        return _run(trial, folder)
    except KeyboardInterrupt:
        return Tried(trial, folder, None)
    except ThinwireError as error:
        return Tried(trial, folder, None, str(error))


def _run(trial: Trial, folder: Path) -> Tried:
    from thinwire.job.job_loader import load_job, resolve_job
    from thinwire.job.job_snapshot import require_same_job, save_job
    from thinwire.storage.run_directory import RunDirectory
    from thinwire.training.train import train

    text = resolve_job(trial.job, trial.overrides)
    job = load_job(trial.job, trial.overrides)
    resume = any((folder / layout.CHECKPOINTS).glob("*"))
    if resume:
        require_same_job(folder, text, job)
        if (folder / layout.DONE).exists() and (folder / layout.JOB).read_text() == text:
            return Tried(trial, folder, json.loads((folder / layout.DONE).read_text()), kept=True)
    elif folder.exists():
        shutil.rmtree(folder)  # stopped before its first checkpoint
    if not resume:
        save_job(folder, text, job)
    result = train(job, callbacks=[], out=folder, resume=resume)
    if result.interrupted:
        return Tried(trial, folder, None)
    directory = RunDirectory(folder)
    directory.write(layout.JOB, text.encode())  # it may have gone on for longer
    directory.write(layout.DONE, json.dumps(result.summary()).encode())
    return Tried(trial, folder, result.summary())


def _hashable(trial: Trial) -> tuple[tuple[str, str], ...]:
    return tuple((key, json.dumps(value)) for key, value in trial.point)


def _point(runs: list[Tried]) -> dict[str, Any]:
    figures = [one.figures() for one in runs if one.summary is not None]
    mean, deviation = averaged(figures)
    return {
        "settings": dict(runs[0].trial.point),
        "runs": figures,
        "errors": [f"{one.trial.said}: {one.error}" for one in runs if one.error is not None],
        "reached": sum(bool(one["reached"]) for one in figures),
        "mean": mean,
        "std": deviation,
    }
