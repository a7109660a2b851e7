"""The sentences at the top of a report: each where it holds, and none elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from report.records import made_up
from thinwire.report.record import BaselineScore, Evaluation, Quality, RunRecord
from thinwire.report.rendering import report_html
from thinwire.report.warnings import list_warnings


def run_of(held_out: list[float], train: list[float], score: float = 0.8, **changes: Any) -> RunRecord:
    """One with these losses, and this accuracy on the test rows at the end."""
    events = [
        Evaluation(round=n, epoch=n, train={"loss": mine}, validation={"loss": theirs, "accuracy": 0.8})
        for n, (theirs, mine) in enumerate(zip(held_out, train, strict=True))
    ]
    last = events[-1].model_copy(update={"test": {"accuracy": score}})
    run = made_up()
    about = run.about.model_copy(update={"metrics": ("accuracy",), "better": {"accuracy": 1}})
    return replace(run, about=about, events=(*events[:-1], last), baselines=(), quality=None, **changes)


FALLING = [1.0, 0.8, 0.6, 0.5, 0.4, 0.3]
RISING = [1.0, 0.8, 0.7, 0.75, 0.8, 0.9]


def test_a_good_run_has_none() -> None:
    assert list_warnings(run_of(FALLING, FALLING)) == []
    assert 'class="warnings"' not in report_html([run_of(FALLING, FALLING)])


def test_overfitting_needs_a_loss_that_rises_while_the_training_loss_falls() -> None:
    (said,) = list_warnings(run_of(RISING, FALLING))
    assert said.startswith("Overfitting: the loss on held-out rows rose from 0.7 at epoch 2 to 0.9 at epoch 5")
    assert list_warnings(run_of(RISING, RISING)) == []
    assert list_warnings(run_of(RISING[:4], FALLING[:4])) == []  # too few evaluations


def test_a_nearly_perfect_score_may_be_leakage() -> None:
    (said,) = list_warnings(run_of(FALLING, FALLING, score=0.9995))
    assert said.startswith("Possible leakage: accuracy 0.9995 on test rows is nearly perfect.")
    assert list_warnings(run_of(FALLING, FALLING, score=0.998)) == []


@pytest.mark.parametrize(("value", "count"), [(0.85, 1), (0.75, 0)])
def test_a_better_baseline_is_named(value: float, count: int) -> None:
    baseline = BaselineScore(
        name="logistic_regression", columns="all parties", metric="accuracy", value=value, seconds=1.0
    )
    found = list_warnings(replace(run_of(FALLING, FALLING), baselines=(baseline,)))
    assert len(found) == count
    assert all(one.startswith("Better baseline: Logistic regression") for one in found)


@pytest.mark.parametrize(("counts", "warned"), [((970, 30), True), ((900, 100), False)])
def test_accuracy_on_a_rare_class(counts: tuple[int, int], warned: bool) -> None:
    quality = Quality(task="binary", round=5, rows=1000, class_counts=counts, classes=("paid", "default"))
    found = list_warnings(replace(run_of(FALLING, FALLING), quality=quality))
    expected = ["Class imbalance: 30 of 1,000 test rows are 'default', so accuracy says little about that class."]
    assert [one.split(". Look")[0] + "." for one in found] == (expected if warned else [])


def test_they_stand_at_the_top_of_the_page() -> None:
    html = report_html([run_of(RISING, FALLING)])
    assert html.index('class="warnings"') < html.index('class="tiles"')
