"""Three organisations that share a core file alone: each writes its own part, then they align and train."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from job.tables.companies import write_csv
from processes import THINWIRE
from thinwire.net.pki.authority import issue
from training.party.parties import PartyProcesses, free_port

NAMES = ("imaging", "laboratory", "clinic")
PATIENTS = 240


def organisations(folder: Path) -> dict[str, Path]:
    """A folder each, with a table and certificates of its own; patients in an order of their own, a few unshared."""
    rng = np.random.default_rng(0)
    size, count, age = rng.normal(size=PATIENTS), rng.poisson(4, PATIENTS), rng.integers(20, 90, PATIENTS)
    ill = size + (count - 4) / 2 + (age - 55) / 20 > 0
    known: dict[str, dict[str, Any]] = {
        "imaging": {"size": [f"{x:.3f}" for x in size], "device": list(rng.choice(["a", "b"], PATIENTS))},
        "laboratory": {"count": ["" if k % 31 == 0 else int(x) for k, x in enumerate(count)]},
        "clinic": {"age": list(age), "ill": ["yes" if one else "no" for one in ill]},
    }
    issue(folder / "certs", NAMES)
    found: dict[str, Path] = {}
    for number, (name, columns) in enumerate(known.items()):
        found[name] = folder / name
        (found[name] / "certs").mkdir(parents=True)
        for file in ("ca.pem", "revoked.txt", f"{name}.pem", f"{name}.key"):
            shutil.copy(folder / "certs" / file, found[name] / "certs" / file)
        ids = {"patient": [f"p{k:03}" for k in range(PATIENTS)]}
        rows = rng.permutation(np.delete(np.arange(PATIENTS), range(10 * number, 10 * number + 10)))
        write_csv(found[name] / "table.csv", {**ids, **columns}, rows)
    return found


def at_each(made: PartyProcesses, folders: Mapping[str, Path], *words: str) -> dict[str, dict[str, Any]]:
    """The command at every organisation at the same time; the label party first, as it listens."""
    running = {
        name: made.command([THINWIRE, words[0], f"{name}.toml", "--name", name, *words[1:], "--json"], folders[name])
        for name in reversed(NAMES)
    }
    return {name: process.summary() for name, process in running.items()}


def test_three_folders_that_share_the_core_alone(tmp_path: Path) -> None:
    folders = organisations(tmp_path)
    with PartyProcesses() as made:
        address = f"127.0.0.1:{free_port()}"
        begun = ["core.toml", *(word for name in NAMES for word in ("--party", name)), "--label", "clinic"]
        core = made.command([THINWIRE, "init", *begun, "--address", address, "--json"], tmp_path).summary()
        assert (core["parties"], core["label_party"]) == (["imaging", "laboratory"], "clinic")
        for name, folder in folders.items():
            shutil.copy(tmp_path / "core.toml", folder / "core.toml")
            label = ["--label", "ill"] if name == "clinic" else []
            own = ["--core", "core.toml", "--party", f"{name}=table.csv", *label, "--json"]
            told = made.command([THINWIRE, "init", f"{name}.toml", *own], folder).summary()
            assert (told["rows"], told["id"], told["task"]) == (230, "patient", "binary" if label else None)
            assert told["commands"][-1] == f"thinwire party {name}.toml --name {name}"
        aligned = at_each(made, folders, "align", "--yes", "--workers", "1")
        assert {one["rows"] for one in aligned.values()} == {PATIENTS - 30}
        settings = ("--set", "job.epochs=2", "--yes")
        trained = at_each(made, folders, "party", *settings)
    assert len({summary["rounds"] for summary in trained.values()}) == 1
    assert set(trained["clinic"]["test"]) == {"loss", "auc", "accuracy"}
    for name, folder in folders.items():
        assert (folder / "runs" / name / name / "models" / f"{name}.safetensors").is_file()
        others = [other for other in NAMES if other != name]
        part = tomllib.loads((folder / f"{name}.toml").read_text())
        assert part["include"] == "core.toml"
        assert not any(other in json.dumps(part) for other in others)
