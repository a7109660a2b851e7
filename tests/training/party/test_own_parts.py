"""Three organisations that share a core file alone: by its kit each writes its own part, aligns and trains."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from job.tables.companies import write_csv
from processes import THINWIRE
from thinwire.cli import app
from training.party.parties import PartyProcesses, free_port

NAMES = ("imaging", "laboratory", "clinic")
PATIENTS = 240


def organisations(folder: Path) -> dict[str, Path]:
    """A folder each, as its kit leaves it, and a table; patients in an order of their own, a few unshared."""
    rng = np.random.default_rng(0)
    size, count, age = rng.normal(size=PATIENTS), rng.poisson(4, PATIENTS), rng.integers(20, 90, PATIENTS)
    ill = size + (count - 4) / 2 + (age - 55) / 20 > 0
    known: dict[str, dict[str, Any]] = {
        "imaging": {"size": [f"{x:.3f}" for x in size], "device": list(rng.choice(["a", "b"], PATIENTS))},
        "laboratory": {"count": ["" if k % 31 == 0 else int(x) for k, x in enumerate(count)]},
        "clinic": {"age": list(age), "ill": ["yes" if one else "no" for one in ill]},
    }
    found: dict[str, Path] = {}
    for number, (name, columns) in enumerate(known.items()):
        found[name] = folder / name
        subprocess.run(["tar", "xzf", folder / "kits" / f"{name}-kit.tar.gz"], cwd=folder, check=True)
        ids = {"patient": [f"p{k:03}" for k in range(PATIENTS)]}
        rows = rng.permutation(np.delete(np.arange(PATIENTS), range(10 * number, 10 * number + 10)))
        write_csv(found[name] / "table.csv", {**ids, **columns}, rows)
    return found


def read_commands(folder: Path) -> dict[str, list[str]]:
    """What the kit's README says to type, by its command and in its order."""
    lines = re.findall(r"^    thinwire (.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    return {line.split()[0]: shlex.split(line) for line in lines}


def certify(authority: Path, folder: Path, name: str, request: list[str]) -> None:
    """The party asks with a key of its own, the authority signs, and the certificate goes back."""
    request[request.index("certs", 1)] = str(folder / "certs")
    for words in (request, ["certs", str(authority), "--sign", str(folder / "certs" / f"{name}.csr")]):
        assert CliRunner().invoke(app, words).exit_code == 0
    shutil.copy(authority / f"{name}.pem", folder / "certs")


def at_each(made: PartyProcesses, folders: Mapping[str, Path], *words: str) -> dict[str, dict[str, Any]]:
    """The command at every organisation at the same time; the label party first, as it listens."""
    running = {
        name: made.command([THINWIRE, words[0], f"{name}.toml", "--name", name, *words[1:], "--json"], folders[name])
        for name in reversed(NAMES)
    }
    return {name: process.summary() for name, process in running.items()}


def test_three_folders_that_share_the_core_alone(tmp_path: Path) -> None:
    with PartyProcesses() as made:
        address = f"127.0.0.1:{free_port()}"
        begun = ["core.toml", *(word for name in NAMES for word in ("--party", name)), "--label", "clinic"]
        core = made.command([THINWIRE, "init", *begun, "--address", address, "--json"], tmp_path).summary()
        assert (core["parties"], core["label_party"]) == (["imaging", "laboratory"], "clinic")
        kits = ["kit", tmp_path / "core.toml", "--certs", tmp_path / "certs", "--out", tmp_path / "kits"]
        assert CliRunner().invoke(app, list(map(str, kits))).exit_code == 0
        folders = organisations(tmp_path)
        for name, folder in folders.items():
            steps, label = read_commands(folder), name == "clinic"
            assert list(steps) == ["certs", "init", "align", "doctor", "party"]
            certify(tmp_path / "certs", folder, name, steps["certs"])
            own = [word.replace("TABLE", "table").replace("COLUMN", "ill") for word in steps["init"]]
            told = made.command([THINWIRE, *own, "--json"], folder).summary()
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
