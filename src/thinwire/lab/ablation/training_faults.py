"""What a run's own evaluations say of its training: overfitting, too few or too many epochs, a better baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from typing import Literal, TypeAlias

from torch import nn

from thinwire.job.job import Job
from thinwire.report.baseline_figures import describe_better_baselines
from thinwire.report.record import BaselineScore, Evaluation
from thinwire.training.result import better

Kind = Literal["overfitting", "too_little_regularisation", "too_few_epochs", "too_many_epochs", "better_baseline"]

_SHARES = ("accuracy", "accuracy@5", "auc", "f1")  # of rows, more or less
_FAR = 0.05  # that a share is worse on held-out rows
_WORSE = 0.01  # that a share ends below its best
_FAR_RELATIVE, _WORSE_RELATIVE = 0.25, 0.02  # the same of losses and errors
_RISE = 0.05  # of the loss on held-out rows above its lowest
_STILL_GAINING = 0.05  # of all that was gained, in the last quarter
_FEW = 5  # evaluations: too few for a curve


Chance: TypeAlias = Callable[[float], float]  # from a share of rows to what chance may do to it


def estimate_resolution(share: float, rows: int) -> float:
    """Two standard errors of the difference of two shares of `rows` test rows: what one seed can tell at best."""
    kept = min(max(share, 1 / (rows + 2)), 1 - 1 / (rows + 2))
    return 2 * sqrt(2 * kept * (1 - kept) / rows)


def choose_chance(job: Job, metric: str) -> Chance | None:
    """What the choice of test rows alone may do to a difference, where the metric is a share of them."""
    if metric not in _SHARES:
        return None
    labels = job.label_party.labels if job.label_party.test_labels is None else job.label_party.test_labels
    rows = len(labels)
    if metric in ("auc", "f1"):  # these count the rarer class
        rows = max(1, int(labels.long().bincount().min()))
    return partial(estimate_resolution, rows=rows)


# Findings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingFault:
    """One thing that is wrong with a training, and what to do about it."""

    kind: Kind
    says: str


@dataclass(frozen=True)
class FinishedRun:
    """What a run leaves to be looked at."""

    evaluations: Sequence[Evaluation]
    metric: str
    training_score: float | None = None  # at the end; None where there are no held-out rows
    margin: float = 0.0  # what the choice of test rows alone may do to a score
    regularisation: str = ""  # what the job has, in words
    baselines: Sequence[BaselineScore] = ()

    @property
    def sign(self) -> int:
        return better(self.metric)

    @property
    def is_held_out(self) -> bool:
        """Are scores on rows that were not trained on?"""
        return self.training_score is not None

    def curve(self, name: str) -> list[tuple[Evaluation, float]]:
        """On held-out rows where there are any."""
        return [(one, value) for one in self.evaluations if (value := one.scores.get(name)) is not None]


def find_faults(run: FinishedRun) -> list[TrainingFault]:
    """The most important first."""
    overfitting = _find_overfitting(run)
    regularisation = [] if overfitting is None else [_advise_regularisation(run)]
    found = [overfitting, *regularisation, _find_too_many_epochs(run), _find_too_few_epochs(run)]
    found.append(_find_better_baseline(run))
    return [one for one in found if one is not None]


def _find_overfitting(run: FinishedRun) -> TrainingFault | None:
    clauses = [clause for clause in (_describe_gap(run), _describe_rise(run)) if clause]
    return TrainingFault("overfitting", f"Overfitting: {'; and '.join(clauses)}.") if clauses else None


def _describe_gap(run: FinishedRun) -> str:
    curve = run.curve(run.metric)
    if run.training_score is None or not curve:
        return ""
    held_out = curve[-1][1]
    gap = run.sign * (run.training_score - held_out)
    if gap <= max(_tolerate(run.metric, held_out, _FAR, _FAR_RELATIVE), run.margin):
        return ""
    return f"{run.metric} is {run.training_score:.4f} on training rows and {held_out:.4f} on held-out rows"


def _describe_rise(run: FinishedRun) -> str:
    """The loss on held-out rows rises while the training loss falls."""
    losses = run.curve("loss")
    if not run.is_held_out or len(losses) < _FEW:
        return ""
    (lowest, low), (last, high) = min(losses, key=lambda one: one[1]), losses[-1]
    before, after = lowest.train.get("loss"), last.train.get("loss")
    if high <= (1 + _RISE) * low or before is None or after is None or after >= before:
        return ""
    return (
        f"the loss on held-out rows rose from {low:.4g} at epoch {lowest.epoch:g} to {high:.4g} while the training "
        f"loss fell from {before:.4g} to {after:.4g}"
    )


def _advise_regularisation(run: FinishedRun) -> TrainingFault:
    return TrainingFault(
        "too_little_regularisation",
        f"Too little regularisation: {run.regularisation}. Use more weight decay or dropout, smaller models, or "
        "early stopping.",
    )


def _find_too_many_epochs(run: FinishedRun) -> TrainingFault | None:
    curve = run.curve(run.metric)
    if not run.is_held_out or len(curve) < _FEW:
        return None
    (best, high), (last, end) = max(curve, key=lambda one: run.sign * one[1]), curve[-1]
    drop = run.sign * (high - end)
    if best.round > last.round / 2 or drop <= _tolerate(run.metric, high, _WORSE, _WORSE_RELATIVE):
        return None
    return TrainingFault(
        "too_many_epochs",
        f"Too many epochs: {run.metric} on held-out rows was best at epoch {best.epoch:g} of {last.epoch:g} "
        f"({high:.4f}) and ended at {end:.4f}. Use early stopping, or fewer epochs.",
    )


def _find_too_few_epochs(run: FinishedRun) -> TrainingFault | None:
    curve = run.curve(run.metric)
    if len(curve) < _FEW or max(run.sign * value for _, value in curve[:-1]) >= run.sign * curve[-1][1]:
        return None
    last, end = curve[-1]
    earlier = [value for one, value in curve if one.round <= 0.75 * last.round][-1]
    gained, in_all = run.sign * (end - earlier), run.sign * (end - curve[0][1])
    if gained <= _STILL_GAINING * in_all:
        return None
    return TrainingFault(
        "too_few_epochs",
        f"Too few epochs: {run.metric} was best at the last evaluation ({end:.4f}) and still improving, by "
        f"{gained:.4f} over the last quarter. Train for more epochs.",
    )


def _find_better_baseline(run: FinishedRun) -> TrainingFault | None:
    curve = run.curve(run.metric)
    said = describe_better_baselines(run.baselines, curve[-1][1] if curve else None, run.sign)
    if not said:
        return None
    return TrainingFault(
        "better_baseline",
        f"A better baseline: {' '.join(said)} Look at the models and their settings before the recipe.",
    )


def _tolerate(metric: str, value: float, share: float, relative: float) -> float:
    return share if metric in (*_SHARES, "r2") else relative * abs(value)


def describe_regularisation(job: Job) -> str:
    """Weight decay and dropout of a job, in words."""
    specs = [party.optimizer or job.optimizer for party in job.everyone]
    decays = sorted({float(getattr(spec, "weight_decay", 0.0)) for spec in specs})
    parts = [part for module in job.modules().values() for part in module.modules()]
    dropout = any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in parts)
    decay = " to ".join(f"{value:g}" for value in dict.fromkeys((decays[0], decays[-1])))
    return f"weight_decay is {decay}, and {'some models have' if dropout else 'no model has'} dropout"
