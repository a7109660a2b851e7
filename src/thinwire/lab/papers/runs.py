"""The runs of an experiment, curves by seeds: trained, resumed where they stopped, read where they are finished.

Beside the bytes that were really sent stand those that the paper counts:

efvfl   the uplink alone: 4 bytes per value, times the share kept (top-k, its indices left out) or (bits + 1) / 32
cvfl    every party's symbols and the top model to each of the M parties: M (B sum P_m + |theta_0|) at b bits; in its
        private variant (Q = 1) symbols up and plain derivatives down
pbm     log2 M + log2 b bits per value up, plain derivatives down
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput, Diverged, NotFinite
from thinwire.engine.compress import QSGD, Compressor, HexLattice, Identity, PoissonBinomial, TopK, Uniform
from thinwire.engine.privacy import Labels
from thinwire.job.job import Job
from thinwire.lab.datasets.vertical import VerticalData
from thinwire.lab.papers.experiment import Experiment, Formula, Size, read_experiment, resolve_size
from thinwire.lab.papers.jobs import build_job, load_data
from thinwire.lab.runner import can_resume, run_each, train_to_end
from thinwire.storage import layout
from thinwire.storage.json_file import read_lines
from thinwire.storage.run_directory import RunDirectory

_PLAIN = 32  # bits of a float


@dataclass(frozen=True)
class PaperBytes:
    """What a paper's formula says of one job."""

    formula: Formula
    parties: int
    width: int  # of all parties' embeddings together
    top_parameters: int
    bits: float  # a value, as the paper counts the compressor
    shared: bool  # labels
    trials: int

    @classmethod
    def of(cls, formula: Formula | None, job: Job) -> PaperBytes | None:
        """None where the paper has no formula, or none for this compressor."""
        compressor = job.recipe.uplink.compressor
        bits = paper_bits(compressor)
        if formula is None or bits is None:
            return None
        widths = job.check()
        return cls(
            formula,
            parties=len(job.parties),
            width=sum(widths[party.name] for party in job.parties),
            top_parameters=sum(parameter.numel() for parameter in job.label_party.top.parameters()),
            bits=bits,
            shared=job.recipe.labels is Labels.SHARED,
            trials=compressor.trials if isinstance(compressor, PoissonBinomial) else 1,
        )

    def after(self, rows: int, rounds: int) -> float:
        """Bytes after this many rounds, which took this many rows in all."""
        values = rows * self.width
        if self.formula == "efvfl":
            return values * self.bits / 8
        if self.formula == "cvfl" and self.shared:
            return self.parties * (values + rounds * self.top_parameters) * self.bits / 8
        if self.formula == "cvfl":
            return values * (self.bits + _PLAIN) / 8
        up = log2(self.parties) + log2(self.trials) if self.trials > 1 else _PLAIN
        return values * (up + _PLAIN) / 8


def paper_bits(compressor: Compressor) -> float | None:
    """Bits a value, as the papers say it; None for compressors they do not have."""
    match compressor:
        case Identity():
            return float(_PLAIN)
        case TopK(fraction=float() as fraction):
            return _PLAIN * fraction
        case QSGD(bits=int() as bits):
            return bits + 1.0  # a sign too
        case Uniform(bits=int() as levels):
            return float(levels)
        case HexLattice(bits=int() | float() as cells):
            return float(cells)
        case PoissonBinomial(trials=trials):
            return log2(trials + 1)
    return None


# The runs of an experiment, curves by seeds: trained, resumed where they stopped, read where they are finished ----


@dataclass(frozen=True)
class ExperimentRun:
    """What one run gave: its evaluations, with the paper's bytes and the authors' gradient norm beside ours."""

    curve: str
    seed: int
    history: list[dict[str, Any]]
    summary: Mapping[str, Any]
    diverged: str | None = None  # why the run ended before its time

    def at(self, place: str) -> list[float | None]:
        """The values at a place of every evaluation, such as "test.accuracy"; None where there is none."""
        return [value_at(event, place) for event in self.history]


@dataclass(frozen=True)
class RunObserver:
    """Who is told of a run's rounds and evaluations."""

    on_round: Callable[[int], None] | None = None
    on_event: Callable[[dict[str, Any]], None] | None = None


def value_at(event: Mapping[str, Any], place: str) -> float | None:
    """A number by its place; list items by their index."""
    part: Any = event
    for key in place.split("."):
        if isinstance(part, Mapping):
            part = part.get(key)
        elif isinstance(part, list) and key.isdigit() and int(key) < len(part):
            part = part[int(key)]
        else:
            return None
    return float(part) if isinstance(part, (int, float)) else None


def complete_run(folder: Path, curve: str, job: Job, formula: Formula | None, watch: RunObserver) -> ExperimentRun:
    """The run of `folder`, brought to its end; a finished one is read and not run again."""
    print_of = _fingerprint(job)
    done = read_finished_run(folder, curve, job.seed)
    if done is not None:
        if done.summary["job"] != print_of:
            different = sorted(key for key in print_of if done.summary["job"].get(key) != print_of[key])
            raise BadInput(
                f"{folder} holds a run with other settings ({', '.join(different)} differ); use a different --out, "
                "or remove that folder"
            )
        return done
    diverged = None
    callbacks = [] if watch.on_event is None else [watch.on_event]
    resume = can_resume(folder)
    summary: dict[str, Any] = {}
    try:
        summary = train_to_end(job, callbacks, folder, resume, watch.on_round).summary()
    except (Diverged, NotFinite) as error:  # the second where a compressor meets it first
        diverged = str(error)
    events = read_lines(folder / layout.EVENTS)
    history = _with_columns(events, job, formula)
    summary = {**summary, "job": print_of}
    kept = {"history": history, "summary": summary, "diverged": diverged}
    RunDirectory(folder).write(layout.DONE, json.dumps(kept).encode())
    shutil.rmtree(folder / layout.CHECKPOINTS, ignore_errors=True)  # surrogates of all rows: large
    return ExperimentRun(curve, job.seed, history, summary, diverged)


def read_finished_run(folder: Path, curve: str, seed: int) -> ExperimentRun | None:
    """The run of this folder, where it is at its end."""
    path = folder / layout.DONE
    if not path.exists():
        return None
    kept = json.loads(path.read_text())
    return ExperimentRun(curve, seed, kept["history"], kept["summary"], kept["diverged"])


def _fingerprint(job: Job) -> dict[str, str]:
    """What must be the same for a finished run to stand."""
    batches = job.divide_rows()
    return {**job.digests(), "rounds": str(batches.rounds), "metrics": " ".join(job.metrics)}


def _with_columns(events: list[dict[str, Any]], job: Job, formula: Formula | None) -> list[dict[str, Any]]:
    """The paper's bytes, and the gradient norm relative to the first step, as EF-VFL's authors show it."""
    count = PaperBytes.of(formula, job)
    first = next((norm for event in events if event["round"] and (norm := _gradient(event))), None)
    per_epoch = job.divide_rows().rounds_per_epoch
    history = []
    for event in events:
        more: dict[str, Any] = {}
        if count is not None:
            more["paper_bytes"] = count.after(_rows_seen(job, event["round"], per_epoch), event["round"])
        norm = _gradient(event)
        if first and norm is not None and per_epoch == 1:
            more["gradient_norm_since_first_step"] = norm / first
        history.append({**event, **more})
    return history


def _gradient(event: Mapping[str, Any]) -> float | None:
    return value_at(event, "diagnostics.squared_gradient_norm")


def _rows_seen(job: Job, rounds: int, per_epoch: int) -> int:
    """How many rows the first rounds take; an epoch's last batch may be short."""
    epochs, more = divmod(rounds, per_epoch)
    return epochs * job.rows + min(more * (job.batch_size or job.rows), job.rows)


# All runs of an experiment: curves by seeds, in this process or in several ----------------------------------------


@dataclass(frozen=True)
class ExperimentPlan:
    """An experiment to run, in words that another process understands."""

    name: str  # of the experiment, or its file
    size: Size
    seeds: tuple[int, ...] | None
    data: str | None  # the folder of the data sets
    out: Path
    curves: tuple[str, ...] | None = None  # all of this size

    def experiment(self) -> Experiment:
        name, file = read_experiment(self.name)
        return resolve_size(name, file, self.size, self.seeds, self.curves)

    def folder(self, curve: str, seed: int) -> Path:
        return self.out / "runs" / curve / f"seed-{seed}"


StartObserver = Callable[[str, int, int], RunObserver]  # (curve, seed, rounds): who wants to know of this run


@lru_cache(maxsize=1)
def load_plan_data(plan: ExperimentPlan) -> VerticalData:
    """The experiment's rows, split; read once in a process."""
    return load_data(plan.experiment(), plan.data)


def run_all(plan: ExperimentPlan, jobs: int, started: StartObserver) -> Iterator[ExperimentRun]:
    """Each run as it ends; those that are finished already come first."""
    experiment = plan.experiment()
    pairs = [(curve.name, seed) for seed in experiment.seeds for curve in experiment.curves]
    if jobs == 1:
        for curve, seed in pairs:
            yield _run(plan, curve, seed, started)
        return
    load_plan_data(plan)  # missing files are said before any process starts
    for _, done in run_each(_run_alone, [(plan, curve, seed) for curve, seed in pairs], jobs):
        yield done


def _run_alone(asked: tuple[ExperimentPlan, str, int]) -> ExperimentRun:
    return _run(*asked, lambda *_: RunObserver())


def _run(plan: ExperimentPlan, name: str, seed: int, started: StartObserver) -> ExperimentRun:
    experiment = plan.experiment()
    curve = next(curve for curve in experiment.curves if curve.name == name)
    job = build_job(experiment, curve, seed, load_plan_data(plan))
    folder = plan.folder(curve.folder, seed)
    done = read_finished_run(folder, name, seed) is not None
    watch = RunObserver() if done else started(name, seed, job.divide_rows().rounds)
    return complete_run(folder, name, job, experiment.about.formula, watch)
