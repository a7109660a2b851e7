"""A paper's claims, checked against what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan

from thinwire.lab.papers.schema import ExpectSection
from thinwire.lab.papers.statistics import CurveResult

_SLACK = 1e-9  # 0.734 - 0.784 is a little below -0.05


@dataclass(frozen=True)
class Verdict:
    """One claim, met or not, with the numbers that say so."""

    claim: str
    paper: str | None
    checked: str  # what was compared, in words
    value: float | None  # of the curve
    other: float | None  # of the curve it is compared with
    found: float | None  # what must be at least or at most the limit
    limit: str
    met: bool
    why: str  # in one line


def judged(expectations: Sequence[ExpectSection], results: Sequence[CurveResult]) -> list[Verdict]:
    """Every expectation with its verdict."""
    by_name = {result.name: result for result in results}
    return [_judge(one, by_name) for one in expectations]


def _judge(expect: ExpectSection, results: Mapping[str, CurveResult]) -> Verdict:
    value = _measured(expect, results[expect.curve], expect.metric)
    other = None
    if expect.of is not None:
        other = _measured(expect, results[expect.of], expect.of_metric or expect.metric)
    found = _compared(expect, value, other)
    limit = f"at least {expect.at_least:g}" if expect.at_least is not None else f"at most {expect.at_most:g}"
    met = found is not None and (
        found >= expect.at_least - _SLACK
        if expect.at_least is not None
        else found <= (expect.at_most or 0.0) + _SLACK
    )
    why = _why(expect, value, other, found)
    return Verdict(expect.claim, expect.paper, _checked(expect), value, other, found, limit, met, why)


def _measured(expect: ExpectSection, result: CurveResult, metric: str | None) -> float | None:
    if expect.measure == "reached":
        number = result.reached()
    elif expect.measure == "cost":
        number = result.cost(metric or "round")
    elif expect.measure == "best":
        number = result.best(metric or "")
    else:
        number = result.final(metric or "")
    return None if number is None or isnan(number.mean) else number.mean


def _compared(expect: ExpectSection, value: float | None, other: float | None) -> float | None:
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


def _checked(expect: ExpectSection) -> str:
    words = {"final": "last", "best": "best", "cost": "to the target:", "reached": "share of seeds at the target"}
    what = f"{words[expect.measure]} {expect.metric or ''}".strip()
    if expect.of is None:
        return f"{expect.curve}: {what}"
    forms = {"ratio": "over", "difference": "minus", "gap": "apart from"}
    theirs = expect.of if expect.of_metric in (None, expect.metric) else f"{expect.of} ({expect.of_metric})"
    return f"{what}: {expect.curve} {forms[expect.form]} {theirs}"


def _why(expect: ExpectSection, value: float | None, other: float | None, found: float | None) -> str:
    def said(number: float | None) -> str:
        if number is None:
            return "no value (diverged)"
        return "never (not every seed reached the target)" if isinf(number) else f"{number:.4g}"

    if expect.of is None:
        return f"{expect.curve}: {said(value)}"
    both = f"{expect.curve}: {said(value)}; {expect.of}: {said(other)}"
    return f"{both}; nothing to compare" if found is None else both
