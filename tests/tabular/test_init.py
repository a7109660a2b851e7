"""`thinwire init` writes job files that check and train take as they are."""

from __future__ import annotations

import csv
import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.conftest import here  # noqa: F401  the commands, in this process
from tabular.companies import write_companies, write_csv
from thinwire.init import TEMPLATES, Asked, written_job
from thinwire.job import train
from thinwire.job.loading import load_job
from thinwire.privacy.dp_bottom import DPBottom

Here = Callable[..., subprocess.CompletedProcess[str]]
BOTH = ("--party", "bank=bank.csv", "--party", "shop=shop.csv", "--label", "shop:bought")


def test_two_companies(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    shown = here("init", *BOTH, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "ids (guessed by overlap): bank 'customer', shop 'customer'" in shown.stdout
    commands = [line.strip() for line in shown.stdout.partition("next:")[2].splitlines() if line.strip()]
    assert commands == [f"thinwire {command} job.toml" for command in ("align", "check", "train")]
    for command in commands:
        done = here(*command.split()[1:], folder=tmp_path)
        assert done.returncode == 0, done.stderr
    text = (tmp_path / "job.toml").read_text()
    assert "age   number, " in text
    assert "note  left out: " in text
    assert "nurse" not in text, "a job file is passed on: it holds no value of a table"
    assert tomllib.loads(text)["label_party"]["labels"]["task"] == "binary"


def test_nothing_is_overwritten_unasked(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    (tmp_path / "job.toml").write_text("mine")
    refused = here("init", *BOTH, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "job.toml is there already; give another name, or --force" in refused.stderr
    assert (tmp_path / "job.toml").read_text() == "mine"
    forced = here("init", *BOTH, "--force", "--json", folder=tmp_path)
    assert json.loads(forced.stdout) == {
        "path": "job.toml",
        "rows": 480,
        "ids": {"bank": "customer", "shop": "customer"},
        "task": "binary",
        "commands": ["thinwire align job.toml", "thinwire check job.toml", "thinwire train job.toml"],
    }
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--party is missing: say who takes part, such as --party bank=bank.csv --party shop=shop.csv"),
        (BOTH[:2], "--label is missing: say who holds the label, such as --label bank:COLUMN"),
        ((*BOTH[:2], "--label", "bank:age"), "a job has two parties at least"),
        ((*BOTH[:4], "--label", "bought"), "--label bought: write it as --label shop:bought"),
        (
            (*BOTH[:4], "--label", "shpo:bought"),
            "no party is called 'shpo'; there are bank, shop; did you mean 'shop'?",
        ),
        ((*BOTH[:4], "--label", "shop:bougt"), "there is no column 'bougt', it has 'customer', 'spend'"),
        ((*BOTH, "--party", "shop=bank.csv"), "every party needs a name of its own"),
        ((*BOTH, "--party", "bank.csv"), "--party bank.csv: write it as --party bank=bank.csv"),
        ((*BOTH, "--party", "post=post.csv"), "post.csv does not exist"),
        ((*BOTH, "--party", "post=job.xls"), "job.xls does not exist"),
        (
            (*BOTH, "--template", "tabluar"),
            "must be one of tabular, images, ctr, series, private, got 'tabluar'; did you mean",
        ),
        ((*BOTH, "--template", "private"), "needs 3 feature parties beside the label party, there are 1"),
        ((*BOTH, "--id", "custmer"), "there is no column 'custmer', it has 'customer'"),
        ((*BOTH, "--id", "bank:customer"), "which column names the rows of 'shop'? Say --id shop:COLUMN too"),
        (
            (*BOTH, "--id", "bank:age", "--id", "shop:spend"),
            "not one id is in all of 'age' of bank.csv, 'spend' of shop.csv",
        ),
        (("nowhere/job.toml", *BOTH), "nowhere is no folder"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_written(
    arguments: tuple[str, ...],
    message: str,
    here: Here,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_companies(tmp_path)
    (tmp_path / "worth.csv").unlink()
    shown = here("init", *arguments, folder=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr
    assert not (tmp_path / "job.toml").exists()


def test_ids_of_other_names_semicolons_and_gaps(tmp_path: Path) -> None:
    """A running number in both files is no id where another column is shared by name and kind."""
    rng = np.random.default_rng(0)
    people = [f"p{k}" for k in rng.permutation(200)]
    columns: dict[str, Any] = {
        "row": list(range(200)),
        "person id": people,
        "weight": ["?" if k % 50 == 3 else f"{60 + k % 9}" for k in range(200)],
    }
    write_csv(tmp_path / "a.csv", columns, range(200))
    b: dict[str, Any] = {"client": people, "sick": ["ny"[k % 3 == 0] for k in range(200)]}
    with (tmp_path / "b.csv").open("w", newline="") as opened:
        writer = csv.writer(opened, delimiter=";")
        writer.writerows([b.keys(), *zip(*b.values(), strict=True)])
    files = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"}
    written = written_job(Asked("tabular", files, ("b", "sick")), tmp_path / "job.toml")
    assert written.ids == {"a": "person id", "b": "client"}
    assert written.commands[0] == "thinwire check job.toml", "rows are in one order already"
    job = load_job(tmp_path / "job.toml")
    assert job.label_party.features is None
    document = tomllib.loads((tmp_path / "job.toml").read_text())
    assert document["party"][0]["prepare"]["missing_words"] == ["?", "-", "."]
    assert document["label_party"]["labels"]["delimiter"] == ";"


@pytest.mark.parametrize("word", ["w{}", "{}"])  # categories; a party of nothing but numbers
def test_clicks(word: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"u{k}" for k in range(300)]
    some = {f"C{k}": [word.format(x) for x in rng.integers(0, 30, 300)] for k in range(4)}
    a: dict[str, Any] = {"user": ids, **some}
    b: dict[str, Any] = {"user": ids, "I1": list(rng.poisson(4, 300)), "site": list(rng.choice(["x", "y"], 300))}
    b["click"] = list(rng.integers(0, 2, 300))
    write_csv(tmp_path / "a.csv", a, range(300))
    write_csv(tmp_path / "b.csv", b, range(300))
    files = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"}
    written_job(Asked("ctr", files, ("b", "click")), tmp_path / "job.toml")
    job = load_job(tmp_path / "job.toml", ["job.epochs=0.1"])
    assert type(job.parties[0].bottom).__name__ == "DeepTower"
    assert type(job.label_party.bottom).__name__ == "WideAndDeep"
    assert train(job, callbacks=[]).summary()["rounds"] >= 1


@pytest.mark.parametrize(("template", "shape", "model"), [("images", (1, 8, 8), "CNN"), ("series", (6, 3), "LSTM")])
def test_arrays(template: str, shape: tuple[int, ...], model: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("left", "middle", "right"):
        np.savez(tmp_path / f"{name}.npz", x=rng.normal(size=(60, *shape)), x_test=rng.normal(size=(20, *shape)))
    np.savez(tmp_path / "clinic.npz", y=rng.integers(0, 3, 60), y_test=rng.integers(0, 3, 20))
    files = {name: tmp_path / f"{name}.npz" for name in ("left", "middle", "right", "clinic")}
    written = written_job(Asked(template, files, ("clinic", "y")), tmp_path / "job.toml")
    assert (written.task, written.rows, written.ids) == ("multiclass", 60, None)
    job = load_job(tmp_path / "job.toml", ["job.epochs=0.5"])
    assert type(job.parties[2].bottom).__name__ == model
    assert "accuracy" in train(job, callbacks=[]).summary()["test"]


def test_with_a_guarantee(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"p{k}" for k in range(200)]
    for name in ("a", "b", "c"):
        table: dict[str, Any] = {
            "person": ids,
            "x": [f"{x:.2f}" for x in rng.normal(50, 9, 200)],
            "kind": list(rng.choice(["red", "blue"], 200)),
            "born": [f"{y}-05-01" for y in rng.integers(1950, 2000, 200)],
            "ok": list(rng.choice(["yes", "no"], 200)),
            "name": [f"{name}{k}" for k in range(200)],
        }
        write_csv(tmp_path / f"{name}.csv", table, range(200))
    write_csv(tmp_path / "clinic.csv", {"person": ids, "ill": list(rng.integers(0, 2, 200))}, range(200))
    files = {name: tmp_path / f"{name}.csv" for name in ("a", "b", "c", "clinic")}
    written_job(Asked("private", files, ("clinic", "ill"), dict.fromkeys(files, "person")), tmp_path / "job.toml")
    assert "REPLACE prepare.known by what is public" in (tmp_path / "job.toml").read_text()
    job = load_job(tmp_path / "job.toml", ["job.epochs=0.2"])
    assert isinstance(job.training, DPBottom)
    assert all(party.preparation is not None and party.preparation.looked_at == () for party in job.parties)
    (first, *_) = train(job, callbacks=[]).summary()["privacy"]
    assert all(isinstance(one["end_to_end_epsilon"], float) for one in first["observers"])


def test_every_template_has_a_title_and_is_tested_here() -> None:
    assert set(TEMPLATES) == {"tabular", "images", "ctr", "series", "private"}
