"""Predictions over the network are the simulator's to the last bit, for every method."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from predict.halves import Answering, asked, predicting, simulated_outputs, trained
from thinwire.base.errors import BadInput
from thinwire.job.party_view import read_party_view
from thinwire.job.row_selection import RowSet
from thinwire.job.schema import ServeTerms
from thinwire.predict.run import read_own_rows
from training.party.parties import Place, Shape, made, ran

TANH = {"name": "mlp", "hidden": [6], "width": 4, "out_activation": "tanh"}
TOP_K = {"name": "TopK", "fraction": 0.25}
EFVFL: dict[str, Any] = {"method": "efvfl", "compressor": TOP_K}
LEVELS = {"name": "Uniform", "bits": 6, "dither": False, "bounds": [-8, 8]}
RISING = {"milestones": [[0, 1], [4, 14]]}

TREES = Shape(
    {"method": "boosting"},
    job={"epochs": 5, "batch_size": None},
    label_party={"top": {"name": "bias_top", "width": 2}},
    model={"name": "boosted_trees", "leaves": 8, "min_rows": 3, "trees": 3},
    own_features=True,
)

EVERY = {
    "boosting": TREES,
    "svfl": Shape({"method": "svfl"}, parties=3, own_features=True),
    "fedbcd": Shape({"method": "fedbcd", "local_steps": 2}),
    "cvfl": Shape({"method": "cvfl", "compressor": {"name": "Uniform", "bits": 4}}),
    "cvfl, secure sum": Shape({"method": "cvfl", "compressor": LEVELS, "aggregation": "secure_sum"}, parties=3),
    "cvfl, secure sum, rising bits": Shape(
        {"method": "cvfl", "compressor": {**LEVELS, "bits": RISING}, "aggregation": "secure_sum"}, parties=3
    ),
    "efvfl, shared": Shape(EFVFL),
    "efvfl, private": Shape({**EFVFL, "labels": "private"}, own_features=True),
    "celu": Shape({"method": "celu", "capacity": 3, "reuse": 3}, label_party={"fusion": "concat"}),
    "pbm": Shape({"method": "pbm", "trials": 16, "beta": 0.2}, parties=3, model=TANH, job={"training": "frozen"}),
    "once, randomised response": Shape(
        {"method": "once", "passes": 2, "noise": {"name": "RandomizedResponse", "epsilon": 12, "bins": 4}},
        job={"epochs": 1, "batch_size": None},
        model={"name": "bins", "bins": 4},
        label_party={"fusion": "concat"},
    ),
    "thin": Shape({"method": "thin"}),
    "thin, scored in 8 bits": Shape({"method": "thin", "scoring": {"name": "RowScale", "bits": 8}}),
}


def everywhere(place: Place, folder: Path) -> dict[str, Path]:
    """The same folder at every party; a copy where predictions are counted in it."""
    return dict.fromkeys(place.names, folder)


@pytest.mark.parametrize("name", EVERY)
def test_the_network_predicts_what_the_simulator_predicts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thinwire.predict.scoring.token_bytes", bytes)  # noise is fresh otherwise
    place = made(tmp_path, EVERY[name])
    folder = trained(place)
    twin = Path(shutil.copytree(folder, tmp_path / "twin"))  # noise is drawn from numbers that are used once
    _, expected = simulated_outputs(twin, RowSet.ALL)
    with predicting(place, everywhere(place, folder), RowSet.ALL) as (asking, _):
        found = asked(asking, torch.arange(len(expected)))
    assert torch.equal(found, expected)
    assert len(set(found.flatten().tolist())) > len(found)  # not one answer for all


def test_what_a_training_over_the_network_has_spent_is_not_forgotten(tmp_path: Path) -> None:
    """The ledger goes on from the party's own checkpoint, in the same log."""
    shape = EVERY["pbm"]
    place = made(tmp_path, shape)
    ran(place)
    folders = {name: place.out(name) for name in place.names}
    log = place.out("bank") / "charges.jsonl"
    before = log.read_text().splitlines()
    with predicting(place, folders) as (asking, others):
        first, second = asked(asking, torch.arange(4)), asked(asking, torch.arange(4))
        ledger = others["bank"].party._models[asking.models.popitem()[0]].encoder.charges
        assert ledger is not None
        uses = ledger._ledger.state()["releases"]
        with pytest.raises(BadInput, match="another process is already predicting with this run"):
            Answering(read_party_view(place.job, "bank"), folders["bank"], None, ServeTerms())
    assert not torch.equal(first, second)
    lines = log.read_text().splitlines()
    assert lines[: len(before)] == before
    assert [json.loads(line)["charge"] for line in lines[len(before) :]] == ["prediction 0", "prediction 1"]
    # 2 epochs; test rows at 4 evaluations, and four of them twice more.
    assert uses[:48].tolist() == [2] * 48
    assert uses[48:].tolist() == [6] * 4 + [4] * 12


def test_a_schedule_of_bits_does_not_begin_anew_with_the_first_question(tmp_path: Path) -> None:
    """A prediction has the last milestone's bits, whatever the number of its question."""
    folder = trained(made(tmp_path, EVERY["cvfl, secure sum, rising bits"]))
    run, first = simulated_outputs(folder)
    held = read_own_rows(run, None)
    with torch.no_grad():
        exact = run.models["top"](sum(run.models[name](table) for name, table in held.tables.items()))
    assert float((first - exact).abs().max()) < 0.01  # with one bit from -8 to 8 it would be over 1


def test_a_row_comes_out_the_same_whoever_it_is_asked_with(tmp_path: Path) -> None:
    place = made(tmp_path, EVERY["svfl"])
    folder = trained(place)
    _, expected = simulated_outputs(folder)
    with predicting(place, everywhere(place, folder)) as (asking, _):
        for rows in ([5], [15, 5, 0], [5, 5, 5], [3, 1, 4, 15, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]):
            assert torch.equal(asked(asking, torch.tensor(rows)), expected[rows])


def test_after_a_training_over_the_network_each_party_has_its_own_folder(tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "thin"}, ids=True))
    ran(place)
    folder = trained(place)
    _, expected = simulated_outputs(folder)
    with predicting(place, {name: place.out(name) for name in place.names}) as (asking, _):
        assert torch.equal(asked(asking, torch.arange(len(expected))), expected)
