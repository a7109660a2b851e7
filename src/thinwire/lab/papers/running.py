"""All runs of an experiment: curves by seeds, in this process or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from thinwire.lab.datasets.vertical import VerticalData
from thinwire.lab.papers.building import job_of
from thinwire.lab.papers.experiment import Experiment, Size, at_size
from thinwire.lab.papers.files import read_experiment
from thinwire.lab.papers.loading import loaded
from thinwire.lab.papers.runs import Outcome, Watch, finished, made
from thinwire.lab.sweep import each


@dataclass(frozen=True)
class Plan:
    """An experiment to run, in words that another process understands."""

    name: str  # of the experiment, or its file
    size: Size
    seeds: tuple[int, ...] | None
    data: str | None  # the folder of the data sets
    out: Path

    def experiment(self) -> Experiment:
        name, file = read_experiment(self.name)
        return at_size(name, file, self.size, self.seeds)

    def folder(self, curve: str, seed: int) -> Path:
        return self.out / "runs" / curve / f"seed-{seed}"


Started = Callable[[str, int, int], Watch]  # (curve, seed, rounds): who wants to know of this run


@lru_cache(maxsize=1)
def data_of(plan: Plan) -> VerticalData:
    """The experiment's rows, split; read once in a process."""
    return loaded(plan.experiment(), plan.data)


def run_all(plan: Plan, jobs: int, started: Started) -> Iterator[Outcome]:
    """Each run as it ends; those that are finished already come first."""
    experiment = plan.experiment()
    pairs = [(curve.name, seed) for seed in experiment.seeds for curve in experiment.curves]
    if jobs == 1:
        for curve, seed in pairs:
            yield _run(plan, curve, seed, started)
        return
    data_of(plan)  # missing files are said before any process starts
    for _, done in each(_run_alone, [(plan, curve, seed) for curve, seed in pairs], jobs):
        yield done


def _run_alone(asked: tuple[Plan, str, int]) -> Outcome:
    return _run(*asked, lambda *_: Watch())


def _run(plan: Plan, name: str, seed: int, started: Started) -> Outcome:
    experiment = plan.experiment()
    curve = next(curve for curve in experiment.curves if curve.name == name)
    job = job_of(experiment, curve, seed, data_of(plan))
    folder = plan.folder(curve.folder, seed)
    done = finished(folder, name, seed) is not None
    watch = Watch() if done else started(name, seed, job.batching().rounds)
    return made(folder, name, job, experiment.about.formula, watch)
