"""What the seeds of a curve say together, and a paper's claims checked against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan
from typing import Any

from thinwire.lab.papers.experiment import ExpectSection, Experiment, ExperimentTarget
from thinwire.lab.papers.runs import ExperimentRun, value_at
from thinwire.report.record import Evaluation
from thinwire.report.summary import MeanValue
from thinwire.report.svg.line_chart import Point
from thinwire.training.result import better, meets


@dataclass(frozen=True)
class CurveResult:
    """All runs of one curve."""

    name: str
    runs: tuple[ExperimentRun, ...]  # in the order of the seeds
    target: tuple[str, float] | None

    def final(self, place: str) -> MeanValue | None:
        """At the last evaluation; None where a run diverged or has no such value."""
        if any(run.diverged for run in self.runs):
            return None
        return MeanValue.of([value_at(run.history[-1], place) for run in self.runs])

    def best(self, place: str) -> MeanValue | None:
        """The best value of each run, whichever way is better."""
        sign = better(place.rsplit(".", 1)[-1])
        each = [[value for value in run.at(place) if value is not None] for run in self.runs]
        return MeanValue.of([max(values, key=lambda value: sign * value) if values else None for values in each])

    def cost(self, place: str) -> MeanValue | None:
        """What it took to reach the target: infinite where one seed did not reach it."""
        if self.target is None:
            return None
        reached = [_find_reached(run, self.target) for run in self.runs]
        if any(event is None for event in reached):
            return MeanValue(inf, 0.0, len(self.runs))
        return MeanValue.of([value_at(event, place) for event in reached if event is not None])

    def success_rate(self) -> MeanValue | None:
        """The share of the seeds that reached the target."""
        if self.target is None:
            return None
        return MeanValue.of([float(_find_reached(run, self.target) is not None) for run in self.runs])

    def points(self, x: str, y: str) -> list[Point]:
        """One for every evaluation that all runs have."""
        found = []
        for events in zip(*(run.history for run in self.runs), strict=False):
            across, up = (MeanValue.of([value_at(event, place) for event in events]) for place in (x, y))
            if across is not None and up is not None:
                found.append(Point(across.mean, up.mean, up.deviation))
        return found


def _find_reached(run: ExperimentRun, target: tuple[str, float]) -> dict[str, Any] | None:
    """The first evaluation at the target."""
    return next((event for event in run.history if meets(Evaluation.model_validate(event), target)), None)


def collect_results(experiment: Experiment, outcomes: Sequence[ExperimentRun]) -> list[CurveResult]:
    """The curves in the order of the file, their runs in the order of the seeds."""
    by_curve = {
        curve.name: tuple(
            one for seed in experiment.seeds for one in outcomes if (one.curve, one.seed) == (curve.name, seed)
        )
        for curve in experiment.curves
    }
    target = find_target(experiment, by_curve)
    return [CurveResult(name, runs, target) for name, runs in by_curve.items()]


def find_target(experiment: Experiment, by_curve: dict[str, tuple[ExperimentRun, ...]]) -> tuple[str, float] | None:
    """The metric and value to reach, where the experiment has one."""
    asked = experiment.target
    if asked is None or isinstance(asked, ExperimentTarget):
        return None if asked is None else (asked.metric, asked.value)
    best = CurveResult(asked.best_of, by_curve[asked.best_of], None).best(f"test.{asked.metric}")
    return None if best is None else (asked.metric, best.mean - better(asked.metric) * asked.less)


# A paper's claims, checked against what was measured --------------------------------------------------------------


_SLACK = 1e-9  # 0.734 - 0.784 is a little below -0.05


@dataclass(frozen=True)
class ClaimVerdict:
    """One claim, met or not, with the numbers that say so."""

    claim: str
    paper: str | None
    checked: str  # what was compared, in words
    value: float | None  # of the curve
    other: float | None  # of the curve it is compared with
    found: float | None  # what must be at least or at most the limit
    limit: str
    met: bool  # at the paper's own value, where the limit is lenient
    within: bool  # the limit, lenient or not
    lenient: bool
    why: str  # in one line

    @property
    def word(self) -> str:
        """The verdict, as it stands in tables."""
        if self.met:
            return "met"
        return "not met, within the lenient limit" if self.within else "not met"


def check_claims(expectations: Sequence[ExpectSection], results: Sequence[CurveResult]) -> list[ClaimVerdict]:
    """Every expectation with its verdict."""
    by_name = {result.name: result for result in results}
    return [_check_claim(one, by_name) for one in expectations]


def _check_claim(expect: ExpectSection, results: Mapping[str, CurveResult]) -> ClaimVerdict:
    value = _measure(expect, results[expect.curve], expect.metric)
    other = None
    if expect.of is not None:
        other = _measure(expect, results[expect.of], expect.of_metric or expect.metric)
    found = _compare(expect, value, other)
    within = _keeps(expect, found, _limit(expect))
    met = _keeps(expect, found, expect.paper_value) if expect.is_lenient else within
    return ClaimVerdict(
        claim=expect.claim,
        paper=expect.paper,
        checked=_describe_comparison(expect),
        value=value,
        other=other,
        found=found,
        limit=_describe_limit(expect),
        met=met,
        within=within,
        lenient=expect.is_lenient,
        why=_explain(expect, value, other, found),
    )


def _limit(expect: ExpectSection) -> float | None:
    return expect.at_most if expect.at_least is None else expect.at_least


def _keeps(expect: ExpectSection, found: float | None, limit: float | None) -> bool:
    if found is None or limit is None:
        return False
    return found <= limit + _SLACK if expect.at_least is None else found >= limit - _SLACK


def _describe_limit(expect: ExpectSection) -> str:
    side = "at most" if expect.at_least is None else "at least"
    if not expect.is_lenient:
        return f"{side} {_limit(expect):g}"
    return f"{side} {expect.paper_value:g}, the paper's (the file's limit {_limit(expect):g} is lenient)"


def _measure(expect: ExpectSection, result: CurveResult, metric: str | None) -> float | None:
    if expect.measure == "reached":
        number = result.success_rate()
    elif expect.measure == "cost":
        number = result.cost(metric or "round")
    elif expect.measure == "best":
        number = result.best(metric or "")
    else:
        number = result.final(metric or "")
    return None if number is None or isnan(number.mean) else number.mean


def _compare(expect: ExpectSection, value: float | None, other: float | None) -> float | None:
    """What the limit is for; None where nothing can be said."""
    if value is None or expect.form == "value":
        return value
    if other is None or (isinf(value) and isinf(other)):
        return None
    if expect.form == "difference":
        return value - other
    if isinf(other):
        return 0.0 if expect.form == "ratio" else inf
    if not other:
        return None
    return value / other if expect.form == "ratio" else abs(value - other) / abs(other)


def _describe_comparison(expect: ExpectSection) -> str:
    words = {"final": "last", "best": "best", "cost": "to the target:", "reached": "share of seeds at the target"}
    what = f"{words[expect.measure]} {expect.metric or ''}".strip()
    if expect.of is None:
        return f"{expect.curve}: {what}"
    forms = {"ratio": "over", "difference": "minus", "gap": "apart from"}
    theirs = expect.of if expect.of_metric in (None, expect.metric) else f"{expect.of} ({expect.of_metric})"
    return f"{what}: {expect.curve} {forms[expect.form]} {theirs}"


def _explain(expect: ExpectSection, value: float | None, other: float | None, found: float | None) -> str:
    def said(number: float | None) -> str:
        if number is None:
            return "no value (diverged)"
        return "never (not every seed reached the target)" if isinf(number) else f"{number:.4g}"

    if expect.of is None:
        return f"{expect.curve}: {said(value)}"
    both = f"{expect.curve}: {said(value)}; {expect.of}: {said(other)}"
    return f"{both}; nothing to compare" if found is None else both
