"""Scorecards over several parties: scikit-learn's coefficients on the same weight of evidence, points that add up."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import thinwire as tw
from thinwire.base.errors import BadInput, IncompatibleRecipe
from thinwire.job.job_loader import load_job
from thinwire.privacy import LabelDP, Marvell, MaxNorm
from thinwire.training.result import Result
from thinwire.training.scorecards import ScorecardRow

ROWS = 1500
SVFL = tw.methods.svfl()


def make_rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(ROWS, 7))
    table[:, 3:] += 0.6 * table[:, :-3]
    score = table @ [0.6, -0.4, 0.3, 0.5, 0.0, 0.4, -0.3] - 1
    table[rng.random(ROWS) < 0.2, 1] = np.nan
    return table.astype(np.float32), (rng.random(ROWS) < 1 / (1 + np.exp(-score))).astype(np.int64)


TABLE, LABELS = make_rows()


def make_job(**settings: Any) -> tw.Job:
    """Two parties, and columns of the label party's own."""
    card = {"inference": settings.pop("inference", False), "min_iv": settings.pop("min_iv", 0.0)}
    card["l2"] = l2 = settings.pop("l2", 0.0)
    parties = [
        tw.FeatureParty("bank", TABLE[:, :3], tw.learners.Scorecard(3, **card)),
        tw.FeatureParty("shop", TABLE[:, 3:5], tw.learners.Scorecard(2, **card)),
    ]
    own = {"features": TABLE[:, 5:], "bottom": tw.learners.Scorecard(2, **card)}
    loss, weights = settings.pop("loss", tw.losses.binary_cross_entropy), settings.pop("sample_weight", None)
    top = settings.pop("top", tw.learners.ScorecardTop(l2=l2))
    bureau = tw.LabelParty("bureau", LABELS, top, loss=loss, sample_weight=weights, **own)
    return tw.Job(parties, bureau, **{"recipe": SVFL, "epochs": 40, "metrics": [], **settings})


def encode(job: tw.Job) -> Any:
    cards: list[Any] = [party.bottom for party in job.everyone]
    parts = [card.encode_kept(party.features) for card, party in zip(cards, job.everyone, strict=True)]
    return torch.cat(parts, dim=1).double().numpy()


def list_coefficients(result: Result) -> Any:
    """The intercept last."""
    rows = [row for table in result.coefficients.values() for row in table.rows]
    return np.array([row.coefficient for row in sorted(rows, key=lambda row: row.column == "intercept")])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"l2": 3.0},
        {"loss": tw.models.with_class_weights(tw.losses.binary_cross_entropy, [1, 3])},
        {"sample_weight": np.random.default_rng(1).uniform(0.5, 2, ROWS)},
    ],
    ids=["plain", "l2", "class weights", "sample weights"],
)
def test_coefficients_are_scikit_learns_on_the_same_weight_of_evidence(settings: dict[str, Any]) -> None:
    job = make_job(**settings)
    result = tw.train(job, callbacks=[])
    weights = settings.get("sample_weight", np.where(LABELS == 1, 3.0 if "loss" in settings else 1.0, 1.0))
    penalty = 1 / settings["l2"] if "l2" in settings else np.inf
    central = LogisticRegression(C=penalty, solver="newton-cholesky", tol=1e-10, max_iter=1000)
    central.fit(encode(job), LABELS, sample_weight=weights)
    found = list_coefficients(result)
    np.testing.assert_allclose(found, [*central.coef_[0], central.intercept_[0]], atol=1e-4)
    assert result.summary()["rounds"] <= 3 + 2  # as many as the widest party has columns, one before and one after


def test_the_points_of_all_parties_add_up_to_the_score() -> None:
    job = make_job(inference=True)
    result = tw.train(job, callbacks=[])
    base, *others = result.scorecards["bureau"]
    assert (base.column, base.bin, base.rows) == ("(base)", "every row", None)
    rows = [*result.scorecards["bank"], *result.scorecards["shop"], *others]
    columns = encode(job)
    names = ["column 0", "column 1", "column 2", "column 0", "column 1", "column 0", "column 1"]
    owners = [*["bank"] * 3, *["shop"] * 2, *["bureau"] * 2]
    cards = {name: [row for row in result.scorecards[name] if row.rows] for name in set(owners)}
    score = np.full(ROWS, base.points)
    for place, (name, owner) in enumerate(zip(names, owners, strict=True)):
        bins: list[Any] = [row for row in cards[owner] if row.column == name]
        points = {np.float32(row.woe): row.points for row in bins}
        score += [points[np.float32(one)] for one in columns[:, place]]
        assert sum(row.rows for row in bins) == ROWS
        assert sum(row.iv for row in bins) == pytest.approx(bins[0].column_iv)
    modules: list[Any] = [party.bottom for party in job.everyone]
    log_odds = sum(card(party.features) for card, party in zip(modules, job.everyone, strict=True))
    log_odds = (log_odds + job.label_party.top.intercept)[:, 0].detach().double().numpy()
    factor = 20 / np.log(2)
    np.testing.assert_allclose(score, 600 - factor * np.log(50) - factor * log_odds, rtol=1e-5)
    assert {row.bin for row in rows if row.column == "column 1"} >= {"missing"}
    noted = result.coefficients["bank"].rows[0]
    assert noted.note.startswith("information value 0.")
    assert noted.in_units is None
    assert noted.error is not None


def test_without_a_column_that_counts_there_is_only_the_base() -> None:
    result = tw.train(make_job(min_iv=9.0, inference=True), callbacks=[])
    assert result.summary()["rounds"] == 2
    assert list_coefficients(result)[-1] == pytest.approx(np.log(LABELS.mean() / (1 - LABELS.mean())), abs=1e-6)
    assert {row.points for row in result.scorecards["bank"]} == {0.0}
    assert {row.note.split(": ")[1] for row in result.coefficients["bank"].rows} == {"left out, under min_iv"}


def test_a_run_that_was_stopped_goes_on_to_the_same_bit(tmp_path: Path) -> None:
    whole = tw.train(make_job(inference=True), callbacks=[])
    for stop in (1, 2):
        out = tmp_path / str(stop)
        tw.train(make_job(inference=True, epochs=stop), callbacks=[], out=out)
        resumed = tw.train(make_job(inference=True), callbacks=[], out=out, resume=True)
        assert (resumed.coefficients, resumed.scorecards) == (whole.coefficients, whole.scorecards)
        assert resumed.bytes == whole.bytes


REFUSED: dict[str, tuple[type[Exception], str, Callable[[], tw.Job]]] = {
    f"{defence}": (
        IncompatibleRecipe,
        f"counts labels by the first derivative, which {type(defence).__name__}.*changes; use linear",
        lambda defence=defence: make_job(recipe=replace(SVFL, defence=defence)),
    )
    for defence in (LabelDP(2.0), MaxNorm(), Marvell(1.0))
} | {
    "values": (BadInput, "one of the losses binary_cross_entropy$", lambda: make_job(loss=tw.losses.squared_error)),
    "a linear top": (
        BadInput,
        r"'bank': Scorecard and ScorecardTop belong together, .*got Scorecard under RegressionTop",
        lambda: make_job(top=tw.learners.RegressionTop()),
    ),
    "other points": (
        BadInput,
        "'bank': points_to_double_odds is 20, and 40 in the top model",
        lambda: make_job(top=tw.learners.ScorecardTop(points_to_double_odds=40)),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_count_wrongly_is_refused_before_anything_starts(what: str) -> None:
    error, says, build = REFUSED[what]
    with pytest.raises(error, match=says):
        build().check()


JOB = """
job = { epochs = 30, metrics = ["auc"] }
recipe = { method = "svfl" }
party = [{ name = "bank", features = { file = "bank.csv" }, prepare = {}, model = { name = "scorecard" } }]
[label_party]
name = "bureau"
labels = { file = "bureau.csv", column = "default" }
top = { name = "scorecard_top", base_score = 500 }
loss = "binary_cross_entropy"
"""


def test_a_job_file_gives_tables_in_the_columns_own_words(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    words = rng.choice(["clerk", "driver", "poet"], ROWS, p=[0.6, 0.38, 0.02])
    income, owner = np.round(rng.normal(40_000, 9000, ROWS), -2), rng.random(ROWS) < 0.5
    risk = (words == "driver") * 1.5 - (income - 40_000) / 9000 - owner
    default = rng.random(ROWS) < 1 / (1 + np.exp(1 - risk))
    rows = [
        f"{'' if place % 9 == 0 else int(one)},{word},{'yes' if own else 'no'}"
        for place, (one, word, own) in enumerate(zip(income, words, owner, strict=True))
    ]
    (tmp_path / "bank.csv").write_text("\n".join(["income,job,owner", *rows]) + "\n")
    (tmp_path / "bureau.csv").write_text("\n".join(["default", *map(str, default.astype(int))]) + "\n")
    (tmp_path / "job.toml").write_text(JOB)
    result = tw.train(load_job(tmp_path / "job.toml"), callbacks=[], out=tmp_path / "run")
    with (tmp_path / "run" / "models" / "bank.scorecard.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(ScorecardRow._fields)
    bins = {name: [row["bin"] for row in table if row["column"] == name] for name in ("income", "job", "owner")}
    assert bins["job"] == ["unseen, poet", "clerk", "driver"]
    assert bins["owner"] == ["false", "true"]
    assert bins["income"][0].startswith("<= ")
    assert bins["income"][-1] == "missing"
    assert bins["income"][0].endswith("00")  # a row's own value
    edges = [one.split(" ")[-1] for one in bins["income"][:-2]]
    assert all(one.startswith(f"> {low}") for one, low in zip(bins["income"][1:-1], edges, strict=True))
    (base,) = (tmp_path / "run" / "models" / "bureau.scorecard.csv").read_text().splitlines()[1:]
    assert base.startswith("(base),every row,,,,,,,,")
    top: Any = result.models["top"]
    expected = 500 - 20 / np.log(2) * (np.log(50) + float(top.intercept))
    assert float(base.split(",")[-1]) == pytest.approx(expected, rel=1e-6)
    assert [float(row["points"]) for row in table] == pytest.approx(
        [row.points for row in result.scorecards["bank"]], rel=1e-6
    )
    assert "information value" in (tmp_path / "run" / "report.html").read_text()
