"""The runs of a diagnosis: centralised, svfl, the recipe, and the recipe with one axis put back at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thinwire.base.errors import Diverged
from thinwire.engine.methods import svfl
from thinwire.engine.privacy.accounting.exposure import TrainedOnRawRows
from thinwire.job.job import Job
from thinwire.lab.ablation.axes import Variant, variants
from thinwire.lab.ablation.centralised import train_centrally
from thinwire.training.train import train

CENTRALISED, SVFL, RECIPE = "centralised", "svfl", "recipe"


@dataclass(frozen=True, eq=False)
class Planned:
    """One run to make: a name, or the axis that it puts back."""

    name: str
    seed: int
    job: Job
    variant: Variant | None = None


@dataclass(frozen=True)
class Outcome:
    """Where one run ended."""

    name: str
    seed: int
    value: float | None  # of the first metric, at the last evaluation; None where the run diverged
    earlier: float | None = None  # three quarters of the way
    bytes: int | None = None
    error: str | None = None


def planned(job: Job, seed: int) -> list[Planned]:
    """Without targets and byte budgets, which would end some runs earlier than others."""
    job = replace(_fresh(job), target=None, byte_budget=None, link_seconds_budget=None, diagnostics=False)
    plain = replace(job, recipe=svfl(), training=TrainedOnRawRows(), budget=None)
    runs = [Planned(CENTRALISED, seed, plain), Planned(SVFL, seed, plain), Planned(RECIPE, seed, job)]
    return runs + [Planned(variant.axis, seed, variant.of(job), variant) for variant in variants(job)]


def outcome(run: Planned, on_round: Callable[[int], None] | None = None) -> Outcome:
    """Makes the run; the weights that the job was given stay as they are. Ctrl-C raises."""
    job = _fresh(run.job)
    metric = next(iter(job.metrics), "loss")
    try:
        if run.name == CENTRALISED:
            return Outcome(run.name, run.seed, train_centrally(job, on_round)[metric])
        result = train(job, callbacks=[], on_round=on_round)
    except Diverged as error:
        return Outcome(run.name, run.seed, None, error=str(error))
    if result.interrupted:
        raise KeyboardInterrupt
    values = [_value(event, metric) for event in result.history]
    return Outcome(run.name, run.seed, values[-1], _before_the_end(result.history, values), result.bytes.total)


def _value(event: dict[str, Any], metric: str) -> float:
    return float((event["test"] or event["train"])[metric])


def _before_the_end(history: Sequence[dict[str, Any]], values: Sequence[float]) -> float | None:
    """At the evaluation three quarters of the way, where there are enough of them to tell."""
    if len(values) < 5:
        return None
    most = 0.75 * history[-1]["round"]
    return [value for event, value in zip(history, values, strict=True) if event["round"] <= most][-1]


def _fresh(job: Job) -> Job:
    """The same job with copies of its modules: training changes them in place."""
    label = job.label_party
    return replace(
        job,
        parties=[replace(party, bottom=copy.deepcopy(party.bottom)) for party in job.parties],
        label_party=replace(
            label,
            top=copy.deepcopy(label.top),
            bottom=copy.deepcopy(label.bottom),
            class_weights=None,  # the loss has them already
        ),
    )
