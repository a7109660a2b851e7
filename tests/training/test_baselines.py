"""Baselines: scikit-learn's own figures on the same rows, computed here once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, mean_absolute_error, r2_score, roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch import nn

import thinwire as tw
from report.records import small_job
from thinwire.report.record import ALL_PARTIES
from thinwire.training import baselines

ROWS, TEST = slice(200), slice(200, None)


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """300 rows of 5 columns, and a sum of them with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    return x, x @ [1.0, -1.0, 0.5, 2.0, 0.3] + rng.normal(size=300)


def job(labels: np.ndarray, outputs: int, own: int = 2, **settings: Any) -> tw.Job:
    """Bank has the first columns, the label party shop the last `own`."""
    x, _ = table()
    bank, shop = x[:, : 5 - own], x[:, 5 - own :]
    torch.manual_seed(0)
    given: dict[str, Any] = {"epochs": 1, "batch_size": 50, "baselines": True, **settings}
    loss = given.pop("loss", tw.losses.cross_entropy)
    held: dict[str, Any] = {}
    if own:
        held = {"features": shop[ROWS], "test_features": shop[TEST], "bottom": nn.Linear(own, 3)}
    return tw.Job(
        [tw.FeatureParty("bank", bank[ROWS], nn.Linear(5 - own, 3), bank[TEST])],
        tw.LabelParty("shop", labels[ROWS], nn.Linear(3, outputs), labels[TEST], loss=loss, **held),
        tw.methods.svfl(),
        **given,
    )


def train_baselines(job: tw.Job) -> dict[tuple[str, str], float]:
    found = tw.train(job, callbacks=[]).summary()["baselines"]
    assert all(one["seconds"] > 0 for one in found)
    assert {one["metric"] for one in found} == {job.metrics[0]}
    return {(one["columns"], one["name"]): one["value"] for one in found}


def scale(training: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaler = StandardScaler().fit(training)
    return scaler.transform(training), scaler.transform(test)


@pytest.mark.parametrize(("outputs", "loss"), [(2, "cross_entropy"), (1, "binary_cross_entropy")])
def test_two_classes_alone_and_together(outputs: int, loss: str) -> None:
    x, value = table()
    labels = (value > 1).astype(int)
    found = train_baselines(job(labels, outputs, metrics=["auc"], loss=getattr(tw.losses, loss)))
    columns = {"shop": slice(3, 5), ALL_PARTIES: slice(5)}
    assert found.keys() == {(who, name) for who in columns for name in ("logistic_regression", "boosted_trees")}
    for who, part in columns.items():
        training, test = scale(x[ROWS, part], x[TEST, part])
        line = LogisticRegression().fit(training, labels[ROWS]).predict_proba(test)[:, 1]
        trees = HistGradientBoostingClassifier(random_state=0).fit(x[ROWS, part], labels[ROWS])
        assert found[who, "logistic_regression"] == pytest.approx(roc_auc_score(labels[TEST], line), abs=1e-3)
        boosted = trees.predict_proba(x[TEST, part])[:, 1]
        assert found[who, "boosted_trees"] == pytest.approx(roc_auc_score(labels[TEST], boosted), abs=1e-9)
    assert found[ALL_PARTIES, "logistic_regression"] > found["shop", "logistic_regression"]


def test_several_classes_of_which_training_rows_lack_one() -> None:
    x, value = table()
    labels = np.digitize(value, [-1, 1])
    labels[299] = 3
    found = train_baselines(job(labels, 4, metrics=["accuracy"]))
    trees = HistGradientBoostingClassifier(random_state=0).fit(x[ROWS], labels[ROWS])
    expected = accuracy_score(labels[TEST], trees.predict(x[TEST]))
    assert found[ALL_PARTIES, "boosted_trees"] == pytest.approx(expected)


@pytest.mark.parametrize(("metric", "compute"), [("r2", r2_score), ("mae", mean_absolute_error)])
def test_numbers(metric: str, compute: Any) -> None:
    x, value = table()
    value = value.astype(np.float32)
    found = train_baselines(job(value, 1, metrics=[metric], loss=tw.losses.squared_error))
    training, test = scale(x[ROWS], x[TEST])
    line = Ridge().fit(training, value[ROWS]).predict(test)
    trees = HistGradientBoostingRegressor(random_state=0).fit(x[ROWS], value[ROWS]).predict(x[TEST])
    assert found[ALL_PARTIES, "ridge_regression"] == pytest.approx(compute(value[TEST], line), rel=1e-3)
    assert found[ALL_PARTIES, "boosted_trees"] == pytest.approx(compute(value[TEST], trees), rel=1e-3)


def test_a_label_party_without_columns_has_its_class_prior() -> None:
    labels = (table()[1] > 1).astype(int)
    found = train_baselines(job(labels, 2, own=0, metrics=["auc"]))
    assert found["shop", "class_prior"] == 0.5
    assert found.keys() == {
        ("shop", "class_prior"),
        (ALL_PARTIES, "logistic_regression"),
        (ALL_PARTIES, "boosted_trees"),
    }
    loss = train_baselines(job(table()[1].astype(np.float32), 1, 0, metrics=["mae"], loss=tw.losses.squared_error))
    truth = table()[1].astype(np.float32)
    assert loss["shop", "mean_label"] == pytest.approx(np.abs(truth[TEST] - truth[ROWS].mean()).mean(), rel=1e-4)


def test_many_rows_are_sampled_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MOST_ROWS", 120)
    labels = (table()[1] > 1).astype(int)
    result = tw.train(job(labels, 2), callbacks=[])
    assert {one.rows for one in result.baselines} == {120}
    assert {one.note for one in result.baselines} == {"trained on 120 of 200 rows, sampled at random"}
    again = tw.train(job(labels, 2), callbacks=[])
    assert [one.value for one in again.baselines] == [one.value for one in result.baselines]


def test_a_baseline_that_cannot_be_trained_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def fit(self, *_: object) -> None:
            raise ValueError("too many columns")

    monkeypatch.setattr(baselines, "_estimators", lambda *_: {"broken": Broken()})
    result = tw.train(job((table()[1] > 1).astype(int), 2), callbacks=[])
    assert [(one.value, one.note) for one in result.baselines] == [(None, "not trained: too many columns")] * 2


def test_they_cost_nothing_unless_asked_for() -> None:
    result = tw.train(small_job(), callbacks=[])
    assert result.summary()["baselines"] == []
    assert result.summary()["importance"] is None


def test_they_are_in_the_runs_folder_for_its_report(tmp_path: Path) -> None:
    from thinwire.report.folder import read_run

    result = tw.train(job((table()[1] > 1).astype(int), 2), callbacks=[], out=tmp_path)
    assert list(read_run(tmp_path).baselines) == result.baselines
    assert len(json.loads((tmp_path / "result.json").read_text())["baselines"]) == 4
    assert result.record is not None
    assert result.record.baselines == tuple(result.baselines)


def test_ctrl_c_while_they_are_trained_skips_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("thinwire.training.train.score_baselines", stop)
    result = tw.train(job((table()[1] > 1).astype(int), 2), callbacks=[], out=tmp_path)
    assert (result.baselines, result.interrupted) == ([], False)
    assert json.loads((tmp_path / "result.json").read_text())["baselines"] == []
    assert (tmp_path / "report.html").is_file()


def test_runs_of_the_lab_train_none() -> None:
    from thinwire.lab.runner import train_to_end

    asked = job((table()[1] > 1).astype(int), 2, importance=True)
    result = train_to_end(asked)
    assert (result.baselines, result.importance) == ([], None)
    assert asked.baselines, "the job itself is as it was"
