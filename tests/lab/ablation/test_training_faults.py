"""Findings from curves that were drawn by hand: each is found where it is, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from integrations.jobs import small_job
from thinwire.lab.ablation import AblationResult, Diagnosis
from thinwire.lab.ablation.diagnosis import merge_findings
from thinwire.lab.ablation.training_faults import FinishedRun, TrainingFault, describe_regularisation, find_faults
from thinwire.report.record import BaselineScore, Evaluation

FALLING = (0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1)


def evaluations(auc: Sequence[float], loss: Sequence[float] = FALLING, held_out: bool = True) -> list[Evaluation]:
    scores = [{"auc": one, "loss": other} for one, other in zip(auc, loss, strict=True)]
    return [
        Evaluation.model_validate(
            {
                "round": 10 * place,
                "epoch": place,
                "train": {"loss": FALLING[place]} if held_out else score,
                "test": score if held_out else {},
            }
        )
        for place, score in enumerate(scores)
    ]


def kinds(*arguments: Any, **given: Any) -> list[str]:
    return [one.kind for one in find_faults(FinishedRun(*arguments, **given))]


SETTLED = (0.5, 0.7, 0.8, 0.83, 0.84, 0.84, 0.841, 0.841)
RISING = (0.5, 0.55, 0.6, 0.65, 0.7, 0.74, 0.78, 0.82)
PEAKED = (0.5, 0.8, 0.86, 0.85, 0.84, 0.83, 0.82, 0.81)


def test_a_run_that_settled_has_nothing_wrong() -> None:
    assert kinds(evaluations(SETTLED), "auc", 0.85) == []


def test_training_rows_scored_far_above_held_out_ones_are_overfitting() -> None:
    found = find_faults(FinishedRun(evaluations(SETTLED), "auc", 0.99, regularisation="weight_decay is 0"))
    assert [one.kind for one in found] == ["overfitting", "too_little_regularisation"]
    assert "auc is 0.9900 on training rows and 0.8410 on held-out rows" in found[0].says
    assert "weight_decay is 0" in found[1].says
    assert kinds(evaluations(SETTLED), "auc", 0.99, margin=0.2) == [], "few test rows may do that by chance"


def test_a_loss_that_rises_on_held_out_rows_alone_is_overfitting() -> None:
    rising = (0.7, 0.5, 0.45, 0.46, 0.5, 0.55, 0.6, 0.66)
    found = find_faults(FinishedRun(evaluations(SETTLED, rising), "auc", 0.86))
    assert [one.kind for one in found] == ["overfitting", "too_little_regularisation"]
    assert "rose from 0.45 at epoch 2 to 0.66 while the training loss fell from 0.4 to 0.1" in found[0].says


def test_best_long_before_the_end_is_too_many_epochs() -> None:
    found = find_faults(FinishedRun(evaluations(PEAKED), "auc", 0.84))
    assert [one.kind for one in found] == ["too_many_epochs"]
    assert "best at epoch 2 of 7 (0.8600) and ended at 0.8100" in found[0].says


def test_best_at_the_end_and_still_improving_is_too_few_epochs() -> None:
    found = find_faults(FinishedRun(evaluations(RISING), "auc", 0.83))
    assert [one.kind for one in found] == ["too_few_epochs"]
    assert "(0.8200)" in found[0].says
    assert kinds(evaluations(RISING, held_out=False), "auc") == ["too_few_epochs"], "training rows tell that too"


@pytest.mark.parametrize("curve", [SETTLED, RISING, PEAKED])
def test_few_evaluations_are_no_curve(curve: Sequence[float]) -> None:
    assert kinds(evaluations(curve)[:4], "auc", 0.86) == [] or curve[3] < 0.8


def test_errors_are_better_where_they_are_lower() -> None:
    errors = (9.0, 5.0, 4.0, 4.3, 4.8, 5.1, 5.4, 5.8)
    curve = [
        one.model_copy(update={"test": {"mae": value}})
        for one, value in zip(evaluations(SETTLED), errors, strict=True)
    ]
    assert kinds(curve, "mae", 5.5) == ["too_many_epochs"]
    assert "overfitting" in kinds(curve, "mae", 1.0)


def baseline(name: str, value: float, columns: str = "all parties") -> BaselineScore:
    return BaselineScore(name=name, columns=columns, metric="auc", value=value, seconds=1.0)


def test_a_better_baseline_is_named_and_a_worse_one_is_not() -> None:
    compared = [baseline("boosted_trees", 0.84), baseline("logistic_regression", 0.921)]
    found = find_faults(FinishedRun(evaluations(SETTLED), "auc", 0.85, baselines=compared))
    assert [one.kind for one in found] == ["better_baseline"]
    says = found[0].says
    assert (
        "Logistic regression on the joined table reaches AUC 0.9210: the federated model is 0.0800 below it" in says
    )
    assert "oosted trees" not in says
    alone = find_faults(
        FinishedRun(evaluations(SETTLED), "auc", 0.85, baselines=[baseline("boosted_trees", 0.9, "shop")])
    )
    assert "Boosted trees on the columns of shop alone" in alone[0].says


def test_regularisation_in_words() -> None:
    job = small_job()
    assert describe_regularisation(job) == "weight_decay is 0, and no model has dropout"
    job.parties[0].optimizer = tw.SGD(lr=0.1, weight_decay=0.01)
    job.parties[0].bottom = nn.Sequential(job.parties[0].bottom, nn.Dropout(0.2))
    assert describe_regularisation(job) == "weight_decay is 0 to 0.01, and some models have dropout"


def test_seeds_are_counted() -> None:
    one, other = TrainingFault("overfitting", "Overfitting."), TrainingFault("too_few_epochs", "Too few epochs.")
    assert merge_findings([[one]]) == (one,)
    assert [found.says for found in merge_findings([[one], [other, one]])] == [
        "Overfitting. (Found with 2 of 2 seeds.)",
        "Too few epochs. (Found with 1 of 2 seeds.)",
    ]


def test_a_diagnosis_says_its_findings() -> None:
    outcomes = [
        AblationResult("centralised", 0, 0.9),
        AblationResult("recipe", 0, 0.8, findings=(TrainingFault("overfitting", "Overfitting: as it is."),)),
    ]
    found = Diagnosis.of(small_job(), [], outcomes)
    assert "Overfitting: as it is." in found.describe()
    assert found.to_json()["findings"] == [{"kind": "overfitting", "says": "Overfitting: as it is."}]


def test_noise_learned_by_heart_is_found_in_a_real_run() -> None:
    """Labels that follow from nothing: whatever is learned is overfitting."""
    from thinwire.lab.ablation import plan_runs, run_ablation

    torch.manual_seed(0)
    x, y = torch.randn(460, 20), torch.arange(460) % 2
    party = tw.FeatureParty("bank", x[:60], nn.Sequential(nn.Linear(20, 32), nn.Tanh()), x[60:])
    label = tw.LabelParty("shop", y[:60], nn.Linear(32, 2), y[60:])
    job = tw.Job([party], label, tw.methods.svfl(), tw.Adam(lr=0.05), epochs=20, batch_size=20, baselines=True)
    run = next(run for run in plan_runs(job, 0) if run.name == "recipe")
    found = {one.kind: one.says for one in run_ablation(run).findings}
    assert {"overfitting", "too_little_regularisation"} <= found.keys()
