"""Importance: models whose weights are known, so that every figure can be computed here by other means."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import thinwire as tw
from report.records import small_job
from thinwire.data.prepare import Preparation, Settings
from thinwire.engine.models.metrics import metric
from thinwire.training.importance import FusedModel, ScoredParty, list_columns, measure_importance

ROWS = torch.randn(400, 5, generator=torch.Generator().manual_seed(3))
TRAINING = torch.randn(100, 5, generator=torch.Generator().manual_seed(4)) + 1
WEIGHTS = {"bank": torch.tensor([[3.0, 0.0, 1.0]]), "shop": torch.tensor([[0.5, 0.0]])}
PARTS = {"bank": slice(3), "shop": slice(3, 5)}


def bottom(name: str) -> nn.Module:
    found = nn.Linear(WEIGHTS[name].shape[1], 1, bias=False)
    found.load_state_dict({"weight": WEIGHTS[name]})
    return found


def value_of(rows: torch.Tensor) -> torch.Tensor:
    return sum((rows[:, PARTS[name]] @ WEIGHTS[name].T)[:, 0] for name in PARTS)  # type: ignore[return-value]


def measure() -> Any:
    """A model that is right about every row: mean squared error 0."""
    parties = [
        ScoredParty(
            name,
            bottom(name),
            ROWS[:, part],
            TRAINING[:, part],
            {f"column {at}": [at] for at in range(ROWS[:, part].shape[1])},
        )
        for name, part in PARTS.items()
    ]
    labels = value_of(ROWS)
    score = metric("mse").compute
    model = FusedModel(nn.Identity(), "sum", "mse", -1, lambda outputs: score(outputs, labels))
    return measure_importance(model, parties)


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


def test_without_a_party_its_embedding_is_the_mean_over_training_rows() -> None:
    for one in measure().parties:
        part = PARTS[one.party]
        mean = TRAINING[:, part].mean(dim=0) @ WEIGHTS[one.party].T
        error = (mean - ROWS[:, part] @ WEIGHTS[one.party].T).double().square().mean()
        assert one.without == pytest.approx(float(error), rel=1e-4)
        assert one.worth == pytest.approx(float(error), rel=1e-4)


def test_columns_by_their_weight_the_most_important_first() -> None:
    found = measure().columns
    assert [(one.party, one.column) for one in found[:3]] == [
        ("bank", "column 0"),
        ("bank", "column 2"),
        ("shop", "column 0"),
    ]
    assert found[0].lost == pytest.approx(permuted_error([0]), rel=1e-4)
    assert [one.lost for one in found[3:]] == pytest.approx([0, 0], abs=1e-9)


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


def test_a_run_measures_it_where_asked_and_leaves_its_models_alone() -> None:
    jobs = [small_job(importance=asked) for asked in (True, False)]
    found, plain = (tw.train(job, callbacks=[]) for job in jobs)
    assert found.importance is not None
    assert found.importance.value == pytest.approx(found.history[-1]["test"]["accuracy"])
    assert [one.party for one in found.importance.parties] == ["bank", "shop"]
    assert len(found.importance.columns) == 6
    assert found.summary()["importance"]["metric"] == "accuracy"
    for one, other in zip(jobs[0].modules().values(), jobs[1].modules().values(), strict=True):
        assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    assert found.history[-1]["test"] == plain.history[-1]["test"]
