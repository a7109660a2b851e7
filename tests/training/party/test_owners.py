"""Rows with one owner in common, from tables to scores: in one process, and between parties."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from predict.halves import asked, predicting, simulated_outputs
from processes import run
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job_loader import load_job
from thinwire.job.row_selection import RowSet
from thinwire.predict.run import load_run
from training.party.parties import COLUMNS, LABEL_PARTY, ROWS, Place, Shape, left_models, made, ran, simulated

OWNERS = 9


def place(folder: Path, recipe: dict[str, Any]) -> Place:
    """The bank holds owners of the clinic's rows, one of them without a row; shop holds single rows."""
    job = {"batch_size": 8, "split": {"validation": 0.2, "test": 0.2}}
    found = made(folder, Shape(recipe, ids=True, tests=False, job=job))
    rng = np.random.default_rng(6)
    for name in found.names:
        with np.load(folder / f"{name}.npz") as held:
            tables = {key: held[key] for key in held.files if "test" not in key}
        if name == "bank":
            owners = np.array([f"owner-{number}" for number in rng.permutation(OWNERS)])
            tables = {"x": rng.normal(size=(OWNERS, COLUMNS)), "id": owners}
        elif name == LABEL_PARTY:
            # Owner 0 has no row here, and the bank does not know of owner 9.
            tables["owner"] = np.array([f"owner-{number}" for number in rng.integers(1, OWNERS + 1, ROWS)])
        np.savez(folder / f"{name}.npz", **tables)
    for section in [*found.document["party"], found.document["label_party"]]:
        section.pop("test_ids")
        section["alignment"] = f"{section['name']}.alignment"
    found.document["party"][0]["group"] = "owner"
    found.write("job.toml")
    return found


def aligned(folder: Path, recipe: dict[str, Any]) -> Place:
    found = place(folder, recipe)
    done = run("align", str(found.job), "--workers", "1", "--json")
    assert done.returncode == 0, done.stderr
    return found


def test_the_command_joins_rows_with_their_owners(tmp_path: Path) -> None:
    found = place(tmp_path, {"method": "svfl"})
    before = run("train", str(found.job))
    assert before.returncode == 2
    assert "make it with `thinwire align`" in before.stderr
    told = json.loads(run("align", str(found.job), "--workers", "1", "--json").stdout)
    with np.load(tmp_path / f"{LABEL_PARTY}.npz") as held:
        known = held["owner"] != f"owner-{OWNERS}"
        owners = len(set(held["owner"][known]))
    assert told["rows"] == known.sum()
    assert told["owners"] == {"bank": owners}
    job = load_job(found.job)
    bank, rows = job.parties[0], job.all_rows
    assert rows == told["rows"]
    assert bank.count_rows() == job.rows
    assert len(bank.features) <= owners < job.rows
    checked = run("check", str(found.job))
    assert f"{len(bank.features)} owners of these rows" in checked.stdout
    assert "which of its own rows every row of the run belongs to" in checked.stdout


@pytest.mark.parametrize("method", ["svfl", "thin"])
def test_parties_train_the_same_model_as_the_simulator(method: str, tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": method})
    there, here = simulated(found.job), ran(found)
    assert here[LABEL_PARTY]["bytes"]["up"] == there.bytes.up
    assert here[LABEL_PARTY]["bytes"]["down"] == there.bytes.down
    for name, tensors in left_models(found).items():
        module = there.models[name].state_dict()
        assert all(torch.equal(module[key], tensor) for key, tensor in tensors.items())


def test_parties_score_as_the_simulator_does(tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})
    folder = tmp_path / "whole"
    assert run("train", str(found.job), "--out", str(folder)).returncode == 0
    trained, expected = simulated_outputs(folder, RowSet.ALL)
    job = trained.job
    assert job is not None
    kinds = (None, HeldOut.VALIDATION, HeldOut.TEST)
    rows = {party.name: torch.cat([party.list_rows(kind) for kind in kinds]) for party in job.parties}
    assert torch.allclose(trained.predict(rows), expected, atol=1e-6)
    with predicting(found, dict.fromkeys(found.names, folder), RowSet.ALL) as (asking, _):
        outputs = asked(asking, torch.arange(job.all_rows))
        sent = {e["sender"]: e["bytes"] for e in asking.ledger.entries()}
    assert torch.equal(outputs, expected)
    assert sent["bank"] < 0.7 * sent["shop"]


def test_new_rows_are_joined_with_their_owners(tmp_path: Path) -> None:
    found = aligned(tmp_path, {"method": "svfl"})
    folder, rng = tmp_path / "whole", np.random.default_rng(8)
    assert run("train", str(found.job), "--out", str(folder)).returncode == 0
    rows = np.array([f"new-{number}" for number in range(12)])
    owners = np.array([f"new-owner-{number}" for number in (0, 1, 0, 1, 2, 9, 0, 2, 2, 1, 1, 0)])
    np.savez(tmp_path / "new-clinic.npz", id=rows, owner=owners)
    np.savez(tmp_path / "new-shop.npz", id=rows[::-1], x=rng.normal(size=(12, COLUMNS)))
    known = np.array([f"new-owner-{number}" for number in range(4)])
    np.savez(tmp_path / "new-bank.npz", id=known, x=rng.normal(size=(4, COLUMNS)))
    words = [f"{name}={tmp_path / f'new-{name}.npz'}" for name in ("bank", "shop", "clinic")]
    features = ["--features", words[0], "--features", words[1]]
    done = run("predict", str(folder), "--out", str(tmp_path / "s.csv"), *features, "--ids", words[2])
    assert done.returncode == 0, done.stderr
    scores = {
        row["id"]: row["probability_1"] for row in csv.DictReader((tmp_path / "s.csv").read_text().splitlines())
    }
    assert set(scores) == set(rows[owners != "new-owner-9"])
    # The same by hand, each row with its owner's columns.
    with np.load(tmp_path / "new-bank.npz") as bank, np.load(tmp_path / "new-shop.npz") as shop:
        chosen = [place for place, owner in enumerate(owners) if owner in known]
        x = {
            "bank": bank["x"][[list(known).index(owners[place]) for place in chosen]],
            "shop": shop["x"][::-1][chosen].copy(),
        }
    expected = load_run(folder).probabilities(x)[:, 1]
    for place, one in zip(chosen, expected.tolist(), strict=True):
        assert float(scores[rows[place]]) == pytest.approx(one, abs=1e-5)
    without = run("predict", str(folder), "--out", str(tmp_path / "t.csv"), *features)
    assert without.returncode == 2
    assert "--ids clinic: say which file holds the ids of the new rows" in without.stderr
