"""What the runs say together: what each axis costs, in a table and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from thinwire.job.job import Job
from thinwire.lab.ablation.axes import Variant
from thinwire.lab.ablation.differences import Chance, Difference, difference, resolution
from thinwire.lab.ablation.running import CENTRALISED, RECIPE, SVFL, Outcome
from thinwire.lab.ablation.wording import sentences
from thinwire.training.result import better

_SHARES = ("accuracy", "accuracy@5", "auc", "f1")  # of rows, more or less


@dataclass(frozen=True)
class Line:
    """All seeds of one kind of run."""

    name: str
    value: float | None  # the mean; None where every seed diverged
    deviation: float
    bytes: float | None
    against_recipe: Difference | None  # above 0: better than the recipe
    failed: int  # seeds that diverged
    variant: Variant | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Lines in the order of the runs, and the differences between the three that matter most."""

    metric: str
    method: str
    seeds: int
    lines: tuple[Line, ...]
    gap: Difference | None  # centralised - recipe
    splitting: Difference | None  # centralised - svfl
    still_rising: float | None  # how much the recipe gained over its last quarter

    @classmethod
    def of(cls, job: Job, variants: Sequence[Variant], outcomes: Sequence[Outcome]) -> Diagnosis:
        """Of the runs that have been made; some may be missing."""
        metric = next(iter(job.metrics), "loss")
        sign = better(metric)
        names = list(dict.fromkeys(outcome.name for outcome in outcomes))
        values = {
            name: {one.seed: sign * one.value for one in outcomes if one.name == name and one.value is not None}
            for name in names
        }
        chance = _chance(job, metric)
        by_axis = {variant.axis: variant for variant in variants}
        ours = values.get(RECIPE, {})
        lines = tuple(
            _line(
                [one for one in outcomes if one.name == name],
                by_axis.get(name),
                None if name == RECIPE else difference(values[name], ours, chance),
            )
            for name in names
        )
        rising = [sign * (one.value - one.earlier) for one in outcomes if _has_ends(one)]  # type: ignore[operator]
        return cls(
            metric=metric,
            method=job.recipe.name,
            seeds=len({one.seed for one in outcomes}),
            lines=lines,
            gap=difference(values.get(CENTRALISED, {}), ours, chance),
            splitting=difference(values.get(CENTRALISED, {}), values.get(SVFL, {}), chance),
            still_rising=sum(rising) / len(rising) if rising else None,
        )

    def line(self, name: str) -> Line | None:
        return next((line for line in self.lines if line.name == name), None)

    def said(self) -> list[str]:
        """In plain words: what costs what, and what to try next."""
        return sentences(self)

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "method": self.method,
            "seeds": self.seeds,
            "gap": _plain(self.gap),
            "splitting": _plain(self.splitting),
            "runs": [
                {
                    "name": line.name,
                    "value": line.value,
                    "deviation": line.deviation,
                    "bytes": line.bytes,
                    "better_than_recipe": _plain(line.against_recipe),
                    "failed": line.failed,
                    "axis": None if line.variant is None else line.variant.what,
                    "instead": None if line.variant is None else line.variant.instead,
                }
                for line in self.lines
            ],
            "said": self.said(),
        }


def _line(outcomes: Sequence[Outcome], variant: Variant | None, against: Difference | None) -> Line:
    values = [one.value for one in outcomes if one.value is not None]
    sent = [one.bytes for one in outcomes if one.bytes is not None]
    mean = sum(values) / len(values) if values else None
    squares = sum((value - mean) ** 2 for value in values) if mean is not None else 0.0
    deviation = (squares / (len(values) - 1)) ** 0.5 if len(values) > 1 else 0.0
    failed = sum(one.value is None for one in outcomes)
    return Line(outcomes[0].name, mean, deviation, sum(sent) / len(sent) if sent else None, against, failed, variant)


def _chance(job: Job, metric: str) -> Chance | None:
    """What the choice of test rows alone may do to a difference, where the metric is a share of them."""
    if metric not in _SHARES:
        return None
    labels = job.label_party.labels if job.label_party.test_labels is None else job.label_party.test_labels
    rows = len(labels)
    if metric in ("auc", "f1"):  # these count the rarer class
        rows = max(1, int(labels.long().bincount().min()))
    return partial(resolution, rows=rows)


def _has_ends(one: Outcome) -> bool:
    return one.name == RECIPE and one.value is not None and one.earlier is not None


def _plain(found: Difference | None) -> dict[str, float | bool | None] | None:
    if found is None:
        return None
    margin = found.margin if found.margin < float("inf") else None
    return {"mean": found.mean, "margin": margin, "clear": found.is_clear}
