"""What the runs say together: what each axis costs, how sure that is, in a table and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, sqrt
from typing import Any

from thinwire.job.job import Job
from thinwire.lab.ablation.ablation_runs import CENTRALISED, RECIPE, SVFL, AblationResult, Variant
from thinwire.lab.ablation.training_faults import Chance, TrainingFault, choose_chance
from thinwire.report.summary import MeanValue
from thinwire.training.result import better

# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond the table its last value, which is the wider one.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclass(frozen=True)
class Difference:
    """The mean over seeds, and the interval that the true one lies in (95 %); above 0 is better."""

    mean: float
    margin: float  # infinite where nothing is known about chance

    @property
    def is_clear(self) -> bool:
        return abs(self.mean) > self.margin


def compare_seeds(ours: Mapping[int, float], theirs: Mapping[int, float], chance: Chance | None) -> Difference | None:
    """ours - theirs, seed by seed: the same first weights and batches, so what seeds have in common cancels.

    `chance` gives the margin where there is one seed alone. None where no seed has both.
    """
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    found = MeanValue.of(pairs)
    if found is None:
        return None
    if found.count == 1:
        (middle,) = [(ours[seed] + theirs[seed]) / 2 for seed in ours if seed in theirs]
        return Difference(found.mean, inf if chance is None else chance(middle))
    return Difference(found.mean, _T[min(found.count - 1, len(_T)) - 1] * found.deviation / sqrt(found.count))


# What the runs say together: what each axis costs, in a table and in words ----------------------------------------


@dataclass(frozen=True)
class DiagnosisLine:
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
    lines: tuple[DiagnosisLine, ...]
    gap: Difference | None  # centralised - recipe
    splitting: Difference | None  # centralised - svfl
    still_rising: float | None  # how much the recipe gained over its last quarter
    findings: tuple[TrainingFault, ...] = ()  # of the recipe's own training, over all seeds

    @classmethod
    def of(cls, job: Job, variants: Sequence[Variant], outcomes: Sequence[AblationResult]) -> Diagnosis:
        """Of the runs that have been made; some may be missing."""
        metric = next(iter(job.metrics), "loss")
        sign = better(metric)
        names = list(dict.fromkeys(outcome.name for outcome in outcomes))
        values = {
            name: {one.seed: sign * one.value for one in outcomes if one.name == name and one.value is not None}
            for name in names
        }
        chance = choose_chance(job, metric)
        by_axis = {variant.axis: variant for variant in variants}
        ours = values.get(RECIPE, {})
        lines = tuple(
            _line(
                [one for one in outcomes if one.name == name],
                by_axis.get(name),
                None if name == RECIPE else compare_seeds(values[name], ours, chance),
            )
            for name in names
        )
        ends = [(one.earlier, one.value) for one in outcomes if one.name == RECIPE]
        rising = [sign * (now - then) for then, now in ends if now is not None and then is not None]
        return cls(
            metric=metric,
            method=job.recipe.name,
            seeds=len({one.seed for one in outcomes}),
            lines=lines,
            gap=compare_seeds(values.get(CENTRALISED, {}), ours, chance),
            splitting=compare_seeds(values.get(CENTRALISED, {}), values.get(SVFL, {}), chance),
            still_rising=sum(rising) / len(rising) if rising else None,
            findings=merge_findings([one.findings for one in outcomes if one.name == RECIPE]),
        )

    def line(self, name: str) -> DiagnosisLine | None:
        return next((line for line in self.lines if line.name == name), None)

    def describe(self) -> list[str]:
        """In plain words: what costs what, and what to try next."""
        axes = [line for line in self.lines if line.variant is not None]
        axes.sort(key=lambda line: -line.against_recipe.mean if line.against_recipe is not None else 0.0)
        costs = [*_gap(self), *_splitting(self), *map(_axis, axes), *_together(self, axes)]
        return [*costs, *_describe_chance(self), *(one.says for one in self.findings), *_next(self, axes)]

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
            "findings": [{"kind": one.kind, "says": one.says} for one in self.findings],
            "said": self.describe(),
        }


def merge_findings(by_seed: Sequence[Sequence[TrainingFault]]) -> tuple[TrainingFault, ...]:
    """Each kind once, in the words of the first seed that has it; with several seeds, how many have it."""
    kinds = dict.fromkeys(one.kind for findings in by_seed for one in findings)
    merged = []
    for kind in kinds:
        same = [one for findings in by_seed for one in findings if one.kind == kind]
        seeds = f" (Found with {len(same)} of {len(by_seed)} seeds.)" if len(by_seed) > 1 else ""
        merged.append(TrainingFault(kind, same[0].says + seeds))
    return tuple(merged)


def _line(outcomes: Sequence[AblationResult], variant: Variant | None, against: Difference | None) -> DiagnosisLine:
    found = MeanValue.of([one.value for one in outcomes if one.value is not None])
    sent = MeanValue.of([one.bytes for one in outcomes if one.bytes is not None])
    return DiagnosisLine(
        outcomes[0].name,
        None if found is None else found.mean,
        0.0 if found is None else found.deviation,
        None if sent is None else sent.mean,
        against,
        sum(one.value is None for one in outcomes),
        variant,
    )


def _plain(found: Difference | None) -> dict[str, float | bool | None] | None:
    if found is None:
        return None
    margin = found.margin if found.margin < float("inf") else None
    return {"mean": found.mean, "margin": margin, "clear": found.is_clear}


# A diagnosis in plain words. What is not statistically significant is said to be so, and nothing is built on it -----


_RISING = 0.25  # of the gap, gained over the last quarter of the rounds: more of them would help


def _gap(found: Diagnosis) -> list[str]:
    ours, central = found.line(RECIPE), found.line(CENTRALISED)
    if ours is None or central is None:
        return ["There are not enough runs to draw a conclusion."]
    if ours.value is None:
        return [f"The recipe ({found.method}) diverged: its loss is not finite."]
    if found.gap is None or central.value is None:
        return ["Centralised training itself diverged: lower the learning rate."]
    said = f"{found.metric}: {central.value:.4f} centralised, {ours.value:.4f} with your recipe ({found.method})"
    if not found.gap.is_clear:
        return [f"{said}. The difference, {_size(found.gap)}, is not statistically significant."]
    if found.gap.mean < 0:
        return [f"{said}. Your recipe is better, by {_size(found.gap)}: there is no cost to explain."]
    return [f"{said}. Your recipe is worse, by {_size(found.gap)}."]


def _splitting(found: Diagnosis) -> list[str]:
    plain = found.line(SVFL)
    if found.splitting is None or plain is None or plain.value is None:
        return []
    if found.splitting.is_clear:
        more = "costs" if found.splitting.mean > 0 else "gains"
        return [
            f"Splitting the network between parties, without compression (svfl), {more} {_size(found.splitting)}. "
            "Where models use randomness, such as dropout, each party draws its own."
        ]
    return [f"Splitting the network between parties has no significant cost: svfl ends at {plain.value:.4f}."]


def _axis(line: DiagnosisLine) -> str:
    if line.variant is None:
        return ""
    what = line.variant.what[0].upper() + line.variant.what[1:]
    if line.value is None:
        return f"{what}: without it ({line.variant.instead}) the run diverged."
    change = line.against_recipe
    if change is None:
        return f"{what}: without it ({line.variant.instead}) the run ends at {line.value:.4f}, and does not diverge."
    if not change.is_clear:
        return f"{what}: no statistically significant cost ({_signed(change)} with {line.variant.instead})."
    if change.mean > 0:
        return f"{what} costs {_size(change)}: with {line.variant.instead} the run ends at {line.value:.4f}."
    return f"{what} helps, by {_size(change)}: with {line.variant.instead} the run ends at {line.value:.4f}."


def _together(found: Diagnosis, axes: list[DiagnosisLine]) -> list[str]:
    """Axes put back one at a time need not add up."""
    plain = found.line(SVFL)
    costs = [line.against_recipe.mean for line in axes if line.against_recipe and line.against_recipe.is_clear]
    whole = None if plain is None else plain.against_recipe
    if whole is None or not whole.is_clear or whole.mean <= 0 or len(axes) < 2:
        return []
    if not costs:
        return [
            "No single axis has a significant effect: the cost comes from their interaction, or there are too "
            "few seeds."
        ]
    return [f"All axes together cost {whole.mean:.4f}; the axes with a significant cost add up to {sum(costs):.4f}."]


def _describe_chance(found: Diagnosis) -> list[str]:
    if found.seeds > 1:
        return [
            f"Intervals are 95 % confidence intervals over {found.seeds} seeds; they do not cover other test rows."
        ]
    if found.gap is None or isinf(found.gap.margin):
        return ["One seed gives no estimate of the variance of this metric; use --seeds 0,1,2."]
    return [
        f"With one seed, differences below about {found.gap.margin:.4f} may be noise of these test rows, and the "
        "seed-to-seed variance is unknown; use --seeds 0,1,2."
    ]


def _next(found: Diagnosis, axes: list[DiagnosisLine]) -> list[str]:
    gap = found.gap
    if gap is None or not gap.is_clear or gap.mean <= 0:
        if found.gap is not None:
            return ["Next: change the models, the columns or the learning rate; the recipe is not the bottleneck."]
        return []
    tried = []
    costly = next((line for line in axes if line.against_recipe and line.against_recipe.is_clear), None)
    if costly is not None and costly.variant is not None and costly.against_recipe and costly.against_recipe.mean > 0:
        tried.append(costly.variant.advice)
    if found.still_rising is not None and found.still_rising > _RISING * gap.mean:
        tried.append("more epochs: the recipe was still improving at the end")
    if not tried:
        tried.append("more seeds, for a clearer answer; or svfl, if bytes do not matter")
    return [f"Next: {'; or '.join(tried)}."]


def _size(change: Difference) -> str:
    return _signed(Difference(abs(change.mean), change.margin), "")


def _signed(change: Difference, sign: str = "+") -> str:
    low, high = change.mean - change.margin, change.mean + change.margin
    return f"{change.mean:{sign}.4f}" + ("" if isinf(change.margin) else f" ({low:.4f} to {high:.4f})")
