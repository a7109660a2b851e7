"""Importance: models whose weights are known, so that every figure can be computed here by other means."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from report.records import small_job
from thinwire.base.errors import BadInput, IncompatibleRecipe
from thinwire.data.prepare import Preparation, Settings
from thinwire.engine.compress import RowScale
from thinwire.engine.models.metrics import metric
from thinwire.engine.privacy.defences import LabelDP
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.protocols.evaluation import ColumnTable
from thinwire.engine.recipe import Recipe
from thinwire.job.checks import check_column_importance
from thinwire.job.settings import RunSettings
from thinwire.report.record import Importance
from thinwire.training.importance import Ablation, FusedModel, list_columns

ROWS = torch.randn(400, 5, generator=torch.Generator().manual_seed(3)) + 1
WEIGHTS = {"bank": torch.tensor([[3.0, 0.0, 1.0]]), "shop": torch.tensor([[0.5, 0.0]])}
PARTS = {"bank": slice(3), "shop": slice(3, 5)}


def bottom(name: str) -> nn.Module:
    found = nn.Linear(WEIGHTS[name].shape[1], 1, bias=False)
    found.load_state_dict({"weight": WEIGHTS[name]})
    return found


def value_of(rows: torch.Tensor) -> torch.Tensor:
    return sum((rows[:, PARTS[name]] @ WEIGHTS[name].T)[:, 0] for name in PARTS)  # type: ignore[return-value]


def measure() -> Importance:
    """A model that is right about every row: mean squared error 0."""
    labels, score = value_of(ROWS), metric("mse").compute
    model = FusedModel(nn.Identity(), "sum", "mse", -1, lambda outputs: score(outputs, labels))
    ablation = Ablation(model, {name: ROWS[:, part] @ WEIGHTS[name].T for name, part in PARTS.items()})
    columns = {}
    for name, part in PARTS.items():
        places = {f"column {at}": [at] for at in range(ROWS[:, part].shape[1])}
        columns[name] = ColumnTable(ROWS[:, part], places).measure(bottom(name), partial(ablation.lose, name))
    return ablation.measure(columns)


def permuted_error(columns: list[int]) -> float:
    errors = []
    for seed in range(3):
        order = torch.randperm(400, generator=torch.Generator().manual_seed(seed))
        changed = ROWS.clone()
        changed[:, columns] = ROWS[order][:, columns]
        errors.append(float((value_of(changed) - value_of(ROWS)).double().square().mean()))
    return sum(errors) / 3


def test_a_permuted_party_costs_what_its_part_of_the_sum_varies() -> None:
    found = measure()
    assert found.value == pytest.approx(0, abs=1e-9)
    lost = {one.party: one.lost for one in found.parties}
    assert lost == pytest.approx({"bank": permuted_error([0, 1, 2]), "shop": permuted_error([3, 4])}, rel=1e-4)
    assert lost["bank"] > lost["shop"] > 0


def test_without_a_party_its_embedding_is_the_mean_over_test_rows() -> None:
    for one in measure().parties:
        part = ROWS[:, PARTS[one.party]] @ WEIGHTS[one.party].T
        error = (part.mean() - part).double().square().mean()
        assert one.without == pytest.approx(float(error), rel=1e-4)
        assert one.worth == pytest.approx(float(error), rel=1e-4)
        assert one.permuted == pytest.approx(one.lost), "of a score that was 0"


def test_columns_by_their_weight_the_most_important_first() -> None:
    found = measure().columns
    assert [(one.party, one.column) for one in found[:3]] == [
        ("bank", "column 0"),
        ("bank", "column 2"),
        ("shop", "column 0"),
    ]
    assert found[0].lost == pytest.approx(permuted_error([0]), rel=5e-3)  # each of three has three digits
    assert [one.lost for one in found[3:]] == pytest.approx([0, 0], abs=1e-9)


def test_many_rows_are_permuted_once() -> None:
    """Chance moves their score less, and each permutation of a column may be a message of its own."""
    asked: list[torch.Tensor] = []

    def lose(h: torch.Tensor) -> float:
        asked.append(h)
        return 0.0

    for rows in (999, 1000):
        ColumnTable(torch.arange(rows).float()[:, None], {"age": [0]}).measure(nn.Identity(), lose)
    assert [len(h) for h in asked] == [999, 999, 999, 1000]
    assert all(h.sort(dim=0).values.diff(dim=0).eq(1).all() for h in asked)


def test_features_of_one_category_are_permuted_together() -> None:
    table = {"colour": ["red", "blue", "green"] * 5, "age": [str(20 + n) for n in range(15)], "one": ["1"] * 15}
    for categories in ("one_hot", "codes"):
        settings = Settings(categories=categories, types={"colour": "category"})
        preparation = Preparation.fit(table, settings)
        party = tw.FeatureParty("bank", preparation.apply(table), nn.Linear(3, 1), preparation=preparation)
        places = list_columns(party)
        assert sorted(at for part in places.values() for at in part) == list(range(preparation.width))
        for name, part in places.items():
            assert {preparation.outputs[at].startswith(name) for at in part} == {True}


def test_pictures_have_no_columns() -> None:
    assert list_columns(tw.FeatureParty("eye", torch.zeros(4, 2, 2), nn.Flatten())) == {}


SETTINGS: list[dict[str, Any]] = [{"importance": True}, {"column_importance": True}, {}]


def test_a_run_measures_it_where_asked_and_leaves_its_models_alone() -> None:
    """Columns are the same figures whether messages carry them or not; messages are counted apart from training."""
    jobs = [small_job(replace(tw.methods.svfl(), scoring=RowScale(4)), **asked) for asked in SETTINGS]
    looked, exchanged, plain = (tw.train(job, callbacks=[]) for job in jobs)
    found = looked.importance
    assert found is not None
    assert found == exchanged.importance
    assert found.value == looked.history[-1]["test"]["accuracy"]
    assert [one.party for one in found.parties] == ["bank", "shop"]
    assert len(found.columns) == 6
    assert looked.summary()["importance"]["metric"] == "accuracy"
    assert plain.importance is None
    for one, other in zip(looked.models.values(), exchanged.models.values(), strict=True):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert looked.ledger.entries() == plain.ledger.entries()
    sent = [entry for entry in exchanged.ledger.entries() if entry["kind"] == "COLUMN"]
    assert {entry["messages"] for entry in sent} == {10}  # three columns three times, and an end
    assert exchanged.bytes.total == plain.bytes.total
    assert exchanged.bytes.evaluation == plain.bytes.evaluation + sum(entry["bytes"] for entry in sent)


REFUSED: list[tuple[Recipe, dict[str, Any], str]] = [
    (tw.methods.pbm(4, 0.1), {}, "under a secure sum only their sum may be seen; leave it out"),
    (replace(tw.methods.svfl(), defence=LabelDP(1.0)), {}, "scores by the test labels, which LabelDP"),
    (tw.methods.svfl(), {"training": DPBottom(1.0, 2.0)}, "does not count; leave it out"),
]


@pytest.mark.parametrize(("recipe", "settings", "says"), REFUSED, ids=["secure sum", "LabelDP", "DPBottom"])
def test_columns_are_refused_where_a_promise_does_not_count_them(
    recipe: Recipe, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(IncompatibleRecipe, match="column_importance ") as refused:
        check_column_importance(recipe, RunSettings(column_importance=True, **settings))
    assert says in str(refused.value)
    check_column_importance(recipe, RunSettings(importance=True, **settings))


def test_columns_need_test_rows() -> None:
    job = small_job()
    job.label_party.test_labels = None
    for party in job.parties:
        party.test_features = None
    with pytest.raises(BadInput, match=r"column_importance needs test rows: set \[job\] split"):
        replace(job, column_importance=True)


class _Stop(Exception):
    pass


def test_columns_after_a_stop_in_the_last_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that only measures columns: what the label party had received is gone with the one before it."""
    whole = tw.train(small_job(column_importance=True), callbacks=[])

    def stop(*_: object) -> None:
        raise _Stop

    with monkeypatch.context() as patch:
        patch.setattr("thinwire.engine.programs.program.ask_columns", stop)
        with pytest.raises(_Stop):
            tw.train(small_job(column_importance=True), callbacks=[], out=tmp_path)
    resumed = tw.train(small_job(column_importance=True), callbacks=[], out=tmp_path, resume=True)
    assert resumed.ledger.entries() == whole.ledger.entries()
