"""Rows with one owner in common, from tables to scores: in one process, and between parties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from processes import run
from thinwire.align import Terms, ristretto
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view
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
