"""What seeds say together, and when a claim is met."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from thinwire.lab.papers.experiment import ExpectSection
from thinwire.lab.papers.results import ClaimVerdict, CurveResult, check_claims
from thinwire.lab.papers.runs import ExperimentRun, value_at

TARGET = ("accuracy", 0.8)


def outcome(seed: int, accuracies: list[float], diverged: str | None = None) -> ExperimentRun:
    history = [
        {
            "round": 10 * place,
            "epoch": float(place),
            "test": {"accuracy": value},
            "train": {"loss": 1 - value},
            "bytes": {"total": 100 * place},
            "diagnostics": {"a": {"cosine_quantiles": [0.25, 0.5]}},
        }
        for place, value in enumerate(accuracies)
    ]
    return ExperimentRun("curve", seed, history, {}, diverged)


def curve(name: str, *runs: list[float], diverged: str | None = None) -> CurveResult:
    found = tuple(outcome(seed, values, diverged) for seed, values in enumerate(runs))
    return CurveResult(name, found, TARGET)


def verdict(results: list[CurveResult], **expect: Any) -> ClaimVerdict:
    section = ExpectSection.model_validate({"claim": "it holds", "curve": "a", **expect})
    return check_claims([section], results)[0]


FAST = curve("a", [0.1, 0.9, 0.9], [0.1, 0.7, 0.8])
SLOW = curve("b", [0.1, 0.2, 0.8], [0.1, 0.2, 0.8])
NEVER = curve("c", [0.1, 0.2, 0.8], [0.1, 0.2, 0.3])


def test_means_and_deviations_are_over_seeds() -> None:
    final = FAST.final("test.accuracy")
    assert final is not None
    assert final.mean == pytest.approx(0.85)
    assert final.deviation == pytest.approx(0.1 / 2**0.5)
    best_loss = SLOW.best("train.loss")
    assert best_loss is not None
    assert best_loss.mean == pytest.approx(0.2)  # of a loss the lowest is the best
    assert [(point.x, round(point.y, 3)) for point in FAST.points("round", "test.accuracy")] == [
        (0, 0.1),
        (10, 0.8),
        (20, 0.85),
    ]


def test_a_cost_is_that_of_the_first_evaluation_at_the_target() -> None:
    cost = FAST.cost("bytes.total")
    assert cost is not None
    assert cost.mean == (100 + 200) / 2
    never = NEVER.cost("bytes.total")
    assert never is not None
    assert never.mean == inf
    reached = NEVER.success_rate()
    assert reached is not None
    assert reached.mean == 0.5


def test_values_are_found_by_their_place() -> None:
    event = FAST.runs[0].history[0]
    assert value_at(event, "diagnostics.a.cosine_quantiles.1") == 0.5
    assert value_at(event, "diagnostics.a.cosine_quantiles.7") is None
    assert value_at(event, "test.auc") is None


@pytest.mark.parametrize(
    ("expect", "found", "met"),
    [
        ({"measure": "cost", "metric": "round", "form": "ratio", "of": "b", "at_most": 0.75}, 0.75, True),
        ({"measure": "cost", "metric": "round", "form": "ratio", "of": "b", "at_most": 0.74}, 0.75, False),
        (
            {"measure": "final", "metric": "test.accuracy", "form": "difference", "of": "b", "at_least": 0.1},
            0.05,
            False,
        ),
        ({"measure": "final", "metric": "test.accuracy", "form": "gap", "of": "b", "at_most": 0.07}, 0.0625, True),
        ({"measure": "best", "metric": "test.accuracy", "at_least": 0.85}, 0.85, True),
        ({"measure": "reached", "at_least": 1}, 1.0, True),
        ({"measure": "cost", "metric": "round", "form": "ratio", "of": "c", "at_most": 0.5}, 0.0, True),
        ({"curve": "c", "measure": "cost", "metric": "round", "form": "ratio", "of": "a", "at_most": 9}, inf, False),
        ({"curve": "c", "measure": "cost", "metric": "round", "form": "ratio", "of": "a", "at_least": 9}, inf, True),
    ],
)
def test_a_claim_is_met_or_not(expect: dict[str, Any], found: float, met: bool) -> None:
    one = verdict([FAST, SLOW, NEVER], **expect)
    assert one.found == pytest.approx(found)
    assert one.met is met


@pytest.mark.parametrize(("value", "met"), [(0.734, True), (0.733, False)])
def test_exactly_at_the_limit_is_within_it(value: float, met: bool) -> None:
    results = [curve("a", [value]), curve("b", [0.784])]  # 0.734 - 0.784 is no float
    found = verdict(results, measure="best", metric="test.accuracy", form="difference", of="b", at_least=-0.05)
    assert found.met is met


@pytest.mark.parametrize(
    ("paper_value", "met", "lenient"),
    [(0.5, False, True), (0.75, True, True), (1.5, True, False), (None, True, False)],
)
def test_a_lenient_limit_is_judged_at_the_papers_value(paper_value: float | None, met: bool, lenient: bool) -> None:
    cost = {"measure": "cost", "metric": "round", "form": "ratio", "of": "b", "at_most": 1.0}
    one = verdict([FAST, SLOW], **cost, paper_value=paper_value)  # 0.75
    assert (one.met, one.within, one.lenient) == (met, True, lenient)
    assert ("the paper's" in one.limit) is lenient
    assert one.word == ("met" if met else "not met, within the lenient limit")


def test_a_lower_bound_is_lenient_below_the_papers_value() -> None:
    gain = {"measure": "final", "metric": "test.accuracy", "form": "difference", "of": "b", "at_least": -0.1}
    assert not verdict([FAST, SLOW], **gain, paper_value=0.08).met  # 0.05
    assert verdict([FAST, SLOW], **gain, paper_value=0.04).met


def test_where_nothing_can_be_said_nothing_is_met() -> None:
    lost = curve("a", [0.1, 0.2], diverged="the loss is nan")
    one = verdict([lost, SLOW], measure="final", metric="test.accuracy", at_most=1)
    assert (one.found, one.met) == (None, False)
    assert "diverged" in one.why
    both = [curve("a", [0.1]), curve("b", [0.1])]
    one = verdict(both, measure="cost", metric="round", form="ratio", of="b", at_most=5)
    assert (one.found, one.met) == (None, False)
