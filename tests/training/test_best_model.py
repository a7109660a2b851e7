"""Validation rows choose the model that a run delivers, and when to stop; test rows are evaluated once at the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.errors import BadInput, IncompatibleRecipe
from thinwire.engine.privacy.defences import LabelDP
from thinwire.job.checks import keeps_best
from thinwire.predict.run import load_run
from thinwire.report.record import Evaluation
from thinwire.training.result import judge

ROWS, HELD_OUT = 24, 200
CUT = {"rows": slice(0, ROWS), "validation": slice(ROWS, ROWS + HELD_OUT), "test": slice(ROWS + HELD_OUT, None)}


def overtraining_job(**settings: Any) -> tw.Job:
    """Few rows with noisy labels: the model that fits them best is not the best one."""
    rng = torch.Generator().manual_seed(1)
    x = torch.randn(ROWS + 2 * HELD_OUT, 6, generator=rng)
    y = (x[:, 0] + x[:, 3] + 1.5 * torch.randn(len(x), generator=rng) > 0).long()
    torch.manual_seed(0)
    parties = [_party("bank", x[:, :3]), _party("shop", x[:, 3:])]
    label = tw.LabelParty(
        "clinic", y[CUT["rows"]], nn.Linear(4, 2), y[CUT["test"]], validation_labels=y[CUT["validation"]]
    )
    usual = {"optimizer": tw.Adam(lr=0.1), "batch_size": 8, "epochs": 12, "metrics": ["auc"]}
    return tw.Job(parties, label, **{"recipe": tw.methods.svfl(), **usual, **settings})


def _party(name: str, x: Tensor) -> tw.FeatureParty:
    bottom = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))
    return tw.FeatureParty(name, x[CUT["rows"]], bottom, x[CUT["test"]], validation_features=x[CUT["validation"]])


def weights(models: dict[str, nn.Module]) -> dict[str, dict[str, Tensor]]:
    return {name: {key: value.clone() for key, value in one.state_dict().items()} for name, one in models.items()}


def require_equal(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> None:
    for name, tensors in one.items():
        for key, tensor in tensors.items():
            assert torch.equal(tensor, other[name][key]), (name, key)


def scores(job: tw.Job, rows: str) -> float:
    """The AUC that the job's modules have now, computed here."""
    from sklearn.metrics import roc_auc_score

    tables = [getattr(party, f"{rows}_features") for party in job.parties]
    with torch.no_grad():
        h = sum(party.bottom.eval()(table) for party, table in zip(job.parties, tables, strict=True))
        outputs = job.label_party.top(h)
    return float(roc_auc_score(getattr(job.label_party, f"{rows}_labels"), outputs[:, 1] - outputs[:, 0]))


def test_the_models_have_the_weights_of_the_best_evaluation() -> None:
    job = overtraining_job()
    seen: dict[int, dict[str, dict[str, Tensor]]] = {}
    result = tw.train(job, [lambda event: seen.update({event["round"]: weights(job.modules())})])
    curve = {one["round"]: one["validation"]["auc"] for one in result.history}
    best = max(curve, key=curve.__getitem__)
    assert 0 < best < 36  # or this job shows nothing
    said = result.summary()
    assert said["delivered"] == {"round": best, "metric": "auc", "value": curve[best]}
    assert said["best"] == {"metric": "auc", "value": curve[best], "round": best}
    require_equal(weights(result.models), seen[best])
    assert said["validation"]["auc"] == pytest.approx(scores(job, "validation"), abs=1e-6)
    assert said["test"]["auc"] == pytest.approx(scores(job, "test"), abs=1e-6)


def test_test_rows_are_looked_at_once() -> None:
    result = tw.train(overtraining_job(), [])
    assert [one["test"] for one in result.history[:-1]] == [{}] * 12
    assert set(result.history[-1]["test"]) == {"loss", "auc"}
    sent = {(one["sender"], one["kind"]): one["messages"] for one in result.ledger.entries()}
    assert (sent["bank", "TEST"], sent["bank", "EVALUATION"]) == (1, 13)
    assert result.bytes.evaluation > 0
    assert result.summary()["bytes"]["all"] == result.bytes.total + result.bytes.evaluation


def test_the_last_model_may_be_delivered() -> None:
    job = overtraining_job(deliver="last")
    seen: list[dict[str, dict[str, Tensor]]] = []
    result = tw.train(job, [lambda _: seen.append(weights(job.modules()))])
    require_equal(weights(result.models), seen[-1])
    assert result.summary()["delivered"]["round"] == 36
    assert result.summary()["test"]["auc"] == pytest.approx(scores(job, "test"), abs=1e-6)


def test_training_stops_when_the_validation_score_no_longer_improves() -> None:
    whole = tw.train(overtraining_job(), [])
    stopped = tw.train(overtraining_job(patience=2), [])
    assert stopped.history[-1]["round"] < 36
    curve = [one["validation"]["auc"] for one in stopped.history]
    assert curve == [one["validation"]["auc"] for one in whole.history[: len(curve)]]
    assert curve.index(max(curve)) == len(curve) - 3
    assert stopped.history[-1]["test"]


def test_both_last_and_delivered_weights_are_on_disk(tmp_path: Path) -> None:
    job = overtraining_job()
    last: list[dict[str, dict[str, Tensor]]] = []
    result = tw.train(job, [lambda _: last.append(weights(job.modules()))], out=tmp_path / "run")
    fresh = overtraining_job().modules()
    require_equal(weights(dict(load_run(tmp_path / "run", fresh).models)), weights(result.models))
    require_equal(weights(dict(load_run(tmp_path / "run", fresh, weights="last").models)), last[-1])
    with pytest.raises(BadInput, match="'delivered' or 'last'"):
        load_run(tmp_path / "run", fresh, weights="best")


class _Killed(Exception):
    """As a power cut."""


def _kill_at(evaluation: int) -> Callable[[dict[str, Any]], None]:
    made = iter(range(100))

    def look(_: dict[str, Any]) -> None:
        if next(made) == evaluation:
            raise _Killed

    return look


@pytest.mark.parametrize("averaging", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_run_killed_at_any_evaluation_delivers_the_same(tmp_path: Path, averaging: bool) -> None:
    recipe = tw.methods.efvfl(tw.compress.TopK(0.5), labels="private")
    optimizer = tw.Adam(lr=0.1, averaging=averaging)
    make = partial(overtraining_job, epochs=6, patience=3, recipe=recipe, optimizer=optimizer)
    whole = tw.train(make(), [], out=tmp_path / "whole")
    for evaluation in range(len(whole.history)):
        folder = tmp_path / f"killed {evaluation}"
        with pytest.raises(_Killed):
            tw.train(make(), [_kill_at(evaluation)], out=folder)
        again = tw.train(make(), [], out=folder, resume=True)
        require_equal(weights(whole.models), weights(again.models))
        kept = ("rounds", "bytes", "validation", "test", "delivered")
        assert {key: again.summary()[key] for key in kept} == {key: whole.summary()[key] for key in kept}
        lines = (folder / "events.jsonl").read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [one["round"] for one in whole.history]


def test_a_longer_run_goes_on_from_the_last_weights(tmp_path: Path) -> None:
    straight = tw.train(overtraining_job(epochs=8), [])
    tw.train(overtraining_job(epochs=4), [], out=tmp_path / "run")
    longer = tw.train(overtraining_job(epochs=8), [], out=tmp_path / "run", resume=True)
    require_equal(weights(straight.models), weights(longer.models))
    curves = [[one["validation"] for one in result.history] for result in (straight, longer)]
    assert curves[0] == curves[1]


def test_what_steers_needs_rows_to_steer_by() -> None:
    job = overtraining_job()
    bare = job.label_party.without_held_out_rows()
    parties = [tw.FeatureParty(one.name, one.features, one.bottom) for one in job.parties]
    with pytest.raises(BadInput, match=r"patience needs validation rows: set \[job\] split"):
        tw.Job(parties, bare, tw.methods.svfl(), patience=3)
    with pytest.raises(BadInput, match="has no validation rows, but there are 200 validation labels"):
        tw.Job(parties, job.label_party, tw.methods.svfl())
    for wrong in ({"patience": 0}, {"deliver": "first"}):
        with pytest.raises(BadInput, match=next(iter(wrong))):
            overtraining_job(**wrong)


def test_a_guarantee_that_does_not_count_evaluations_is_not_steered_by() -> None:
    job = overtraining_job()
    summed = tw.methods.pbm(8, 0.2)
    budget = tw.privacy.Budget(8.0, 1e-5)
    assert keeps_best(job.recipe, job.settings, 10)
    assert not keeps_best(job.recipe, job.settings, 0)
    assert not keeps_best(summed, job.settings, 10)
    assert keeps_best(summed, replace(job.settings, budget=budget), 10)
    noised = replace(tw.methods.svfl(), defence=LabelDP(1.0))
    assert not keeps_best(noised, replace(job.settings, budget=budget), 10)
    with pytest.raises(IncompatibleRecipe, match="patience depends on the validation labels"):
        tw.train(overtraining_job(patience=2, recipe=noised), [])


@pytest.mark.parametrize(
    ("losses", "verdicts"),
    [
        ((0.6, 0.5, 0.5, 0.4), ["best", "best", "", "stop"]),
        ((0.6, 0.5, 0.4, 0.3), ["best", "best", "best", ""]),  # few validation rows have few different scores
    ],
    ids=["same loss", "lower loss"],
)
def test_a_tie_is_a_gain_where_the_loss_is_lower(losses: tuple[float, ...], verdicts: list[str]) -> None:
    settings = overtraining_job(patience=2).settings
    history = [
        Evaluation(round=round, epoch=round, validation={"auc": auc, "loss": loss})
        for round, (auc, loss) in enumerate(zip((0.5, 0.7, 0.7, 0.6), losses, strict=True))
    ]
    found = [judge(settings, history[: count + 1], True) for count in range(4)]
    assert ["best" * one.best + "stop" * one.stop for one in found] == verdicts


@pytest.mark.parametrize("deliver", ["best", "last"])
def test_averaged_weights_are_evaluated_and_delivered(deliver: str, tmp_path: Path) -> None:
    """Training itself is the same to the bit: the averages follow from the weights of a run without them."""
    plain = overtraining_job(eval_every=1, epochs=4)
    seen: list[dict[str, dict[str, Tensor]]] = []
    tw.train(plain, [lambda _: seen.append(weights(plain.modules()))])
    averages = [seen[0]]
    for t, now in enumerate(seen[1:], start=1):
        averages.append({name: _average(averages[-1][name], now[name], 9 / (t + 8)) for name in now})
    adam = tw.Adam(lr=0.1, averaging=True)
    job = overtraining_job(eval_every=1, epochs=4, deliver=deliver, optimizer=adam)
    shown: list[dict[str, dict[str, Tensor]]] = []
    result = tw.train(job, [lambda _: shown.append(weights(job.modules()))], out=tmp_path / "run")
    for expected, found in zip(averages, shown, strict=True):
        require_equal(expected, found)
    require_equal(weights(result.models), averages[result.summary()["delivered"]["round"]])
    assert result.summary()["test"]["auc"] == pytest.approx(scores(job, "test"), abs=1e-6)
    last = load_run(tmp_path / "run", overtraining_job().modules(), weights="last")
    require_equal(weights(dict(last.models)), averages[-1])


def _average(before: dict[str, Tensor], now: dict[str, Tensor], part: float) -> dict[str, Tensor]:
    """Of parameters; buffers are the present ones."""
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    return {key: now[key] if key.endswith(buffers) else before[key].lerp(now[key], part) for key in now}


def test_a_job_without_averaging_is_the_job_it_was() -> None:
    assert "averaging" not in overtraining_job().digests()["optimizers"]
    averaged = overtraining_job(optimizer=tw.Adam(lr=0.1, averaging=True))
    assert "averaging=True" in averaged.digests()["optimizers"]
    with pytest.raises(BadInput, match="averaging must be True or False"):
        tw.SGD(lr=0.1, averaging="yes")  # type: ignore[arg-type]
