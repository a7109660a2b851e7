"""`thinwire init` writes job files that check and train take as they are."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli.conftest import here  # noqa: F401  the commands, in this process
from job.tables.companies import write_companies, write_csv
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.party_view import read_party_view
from thinwire.job.schema import is_trees
from thinwire.job.wizard import TEMPLATES, CoreAnswers, JobAnswers, PartAnswers, write_core, write_job, write_part
from thinwire.training.train import train

Here = Callable[..., subprocess.CompletedProcess[str]]
CORE = ("--party", "bank", "--party", "shop", "--label", "shop", "--address", "fl.shop.example:7443")
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
    assert "above what shop reaches alone" in done.stdout
    assert "Value of each party's data, in AUC: " in done.stdout
    text = (tmp_path / "job.toml").read_text()
    written = tomllib.loads(text)
    assert {key: written["job"][key] for key in ("baselines", "importance")} == {
        "baselines": True,
        "importance": True,
    }
    assert (written["recipe"], written["party"][0]["model"]) == ({"method": "boosting"}, {"name": "boosted_trees"})
    assert "age   number, " in text
    assert "note  left out: " in text
    assert "nurse" not in text, "a job file is passed on: it holds no value of a table"
    assert written["label_party"]["labels"]["task"] == "binary"


@pytest.mark.parametrize(
    "asked", [("--model", "mlp"), pytest.param(("--template", "tabular"), marks=pytest.mark.long)]
)
def test_networks_where_they_are_asked_for(asked: tuple[str, str], here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    for command in (("init", *BOTH, *asked), ("align", "job.toml"), ("check", "job.toml")):
        done = here(*command, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    written = tomllib.loads((tmp_path / "job.toml").read_text())
    assert (written["recipe"]["method"], written["party"][0]["model"]["name"]) == ("thin", "mlp")
    assert written["label_party"]["top"]["name"] == "linear_top"


def test_tune_says_how_to_get_a_job_of_networks(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    assert here("init", *BOTH, folder=tmp_path).returncode == 0
    refused = here("tune", "job.toml", "--link", "100mbit,40ms", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "with `thinwire sweep`, or write a job for a network with `thinwire init --model mlp`" in refused.stderr


@pytest.mark.long
def test_compare_takes_methods_that_trees_can_follow(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    for command in (("init", *BOTH), ("align", "job.toml")):
        assert here(*command, folder=tmp_path).returncode == 0
    short = ("--set", "job.epochs=2", "--set", "job.baselines=false", "--set", "job.importance=false")
    compared = here("compare", "job.toml", "--workers", "1", "--out", "both", *short, folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert {one.name for one in (tmp_path / "both").iterdir() if one.is_dir()} == {"svfl-0", "boosting-0"}


def test_nothing_is_overwritten_unasked(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    (tmp_path / "job.toml").write_text("mine")
    refused = here("init", *BOTH, folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "job.toml already exists; give another name, or --force" in refused.stderr
    assert (tmp_path / "job.toml").read_text() == "mine"
    forced = here("init", *BOTH, "--force", "--json", folder=tmp_path)
    assert json.loads(forced.stdout) == {
        "path": "job.toml",
        "rows": 480,
        "ids": {"bank": "customer", "shop": "customer"},
        "task": "binary",
        "commands": ["thinwire align job.toml", "thinwire check job.toml", "thinwire train job.toml"],
        "notes": [],
    }
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--party is missing; name the parties, such as --party bank=bank.csv --party shop=shop.csv"),
        (BOTH[:2], "--label is missing; name the party that holds the label, such as --label bank:COLUMN"),
        (CORE[:4], "--label is missing; name the party that holds the label, such as --label shop [bad-input]"),
        (CORE[:6], "--address is missing; give the address of the label party, such as --address"),
        ((*CORE[:4], "--label", "shop:bought"), "the core of a job, which names no column; write --label shop"),
        ((*CORE[:4], "--label", "post"), "no party is called 'post'; there are bank, shop"),
        ((*CORE[:2], *CORE[4:], "--party", "bank"), "every party needs a unique name, got bank, bank"),
        ((*CORE[:6], "--address", "shop"), "network.address "),
        ((*CORE, "--template", "private"), "needs 3 feature parties beside the label party, there are 1"),
        (("--core", "none.toml", *BOTH[:2]), "none.toml: the job file does not exist"),
        ((*BOTH[:2], "--label", "bank:age"), "a job has at least two parties"),
        ((*BOTH[:4], "--label", "bought"), "--label bought: write it as --label shop:bought"),
        (
            (*BOTH[:4], "--label", "shpo:bought"),
            "no party is called 'shpo'; there are bank, shop; did you mean 'shop'?",
        ),
        ((*BOTH[:4], "--label", "shop:bougt"), "there is no column 'bougt'; the columns are 'customer', 'spend'"),
        ((*BOTH, "--party", "shop=bank.csv"), "every party needs a unique name"),
        ((*BOTH, "--party", "bank.csv"), "--party bank.csv: write it as --party bank=bank.csv"),
        ((*BOTH, "--party", "post=post.csv"), "post.csv does not exist"),
        ((*BOTH, "--party", "post=job.xls"), "job.xls does not exist"),
        (
            (*BOTH, "--template", "tabluar"),
            "must be one of tabular, trees, images, ctr, series, private, got 'tabluar'; did you mean",
        ),
        ((*BOTH, "--model", "tree"), "--model must be one of boosted_trees, mlp, got 'tree'"),
        ((*BOTH, "--model", "boosted_trees", "--template", "ctr"), "the template 'ctr' already chooses a model"),
        ((*BOTH, "--template", "private"), "needs 3 feature parties beside the label party, there are 1"),
        ((*BOTH, "--id", "custmer"), "there is no column 'custmer'; the columns are 'customer'"),
        ((*BOTH, "--id", "bank:custmer"), "there is no column 'custmer'; the columns are 'customer'"),
        (
            (*BOTH, "--id", "customer", "--id", "age"),
            "one column identifies the rows, got customer, age; use PARTY:COLUMN",
        ),
        ((*BOTH, "--id", "bank:note"), "no id appears in all of 'note' of bank.csv, 'customer' of shop.csv"),
        (
            (*BOTH, "--id", "bank:age", "--id", "shop:spend"),
            "no id appears in all of 'age' of bank.csv, 'spend' of shop.csv",
        ),
        (("nowhere/job.toml", *BOTH), "nowhere is not a folder"),
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


def core_beside(tmp_path: Path, template: str = "tabular", parties: tuple[str, ...] = ("bank",)) -> Path:
    core = tmp_path / "core.toml"
    write_core(CoreAnswers(template, parties, "shop", "127.0.0.1:7443"), core)
    return core


def test_a_core_and_one_party_s_part(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    shown = here("init", "core.toml", *CORE, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    shared = tomllib.loads((tmp_path / "core.toml").read_text())["job"]
    assert shared["baselines"] is True
    assert shared["importance"] is True
    assert "column_importance" not in shared, "it costs bytes, and tells feature parties scores"
    assert tomllib.loads((tmp_path / "core.toml").read_text())["recipe"] == {"method": "boosting"}
    assert [line.strip() for line in shown.stdout.partition("next:")[2].splitlines() if line.strip()] == [
        "thinwire kit core.toml",
        "thinwire init bank.toml --core core.toml --party bank=FILE",
        "thinwire init shop.toml --core core.toml --party shop=FILE --label COLUMN",
    ]
    told = here("init", "bank.toml", "--core", "core.toml", "--party", "bank=bank.csv", folder=tmp_path)
    assert "the part of bank next to core.toml; 540 rows\n" in told.stdout, told.stderr
    assert "ids (guessed from its name and values; override it with --id): 'customer'" in told.stdout
    text = (tmp_path / "bank.toml").read_text()
    assert "nurse" not in text, "no value of a table"
    assert "age   number, " in text
    own = read_party_view(tmp_path / "bank.toml", "bank")
    assert (own.feature_parties, own.label_party, own.is_label_party) == (("bank",), "shop", False)
    assert own.job.split is not None
    assert is_trees(own.section.model)
    assert tomllib.loads(text)["party"][0]["alignment"] == "bank.alignment"


class Terminal(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def test_what_was_not_given_is_asked_for(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    write_companies(tmp_path)
    (tmp_path / "bank.csv").rename(tmp_path / "customers.csv")
    monkeypatch.setattr(sys, "stdin", Terminal("bank shop\nshop\n\nfl.shop.example:7443\n"))
    assert here("init", "core.toml", folder=tmp_path).returncode == 0
    core = tomllib.loads((tmp_path / "core.toml").read_text())
    assert (core["network"], core["recipe"]) == ({"address": "fl.shop.example:7443"}, {"method": "boosting"})
    monkeypatch.setattr(sys, "stdin", Terminal("\nbought\n"))
    told = here("init", "shop.toml", "--core", "core.toml", folder=tmp_path)
    assert "Which of bank, shop is this party, and its file, as name=file [shop=shop.csv]:" in told.stderr
    assert "the part of shop next to core.toml; binary, 540 rows" in told.stdout


def test_the_label_party_s_part_has_metrics_and_a_top_model(tmp_path: Path) -> None:
    write_companies(tmp_path)
    core = core_beside(tmp_path)
    part = PartAnswers(None, core, "shop", tmp_path / "worth.csv", label="worth", id="customer")
    assert write_part(part, tmp_path / "shop.toml").task == "regression"
    own = read_party_view(tmp_path / "shop.toml", "shop")
    assert own.settings.metrics == ["r2", "mae"]
    assert tomllib.loads((tmp_path / "shop.toml").read_text())["label_party"]["loss"] == "squared_error"


def test_what_the_core_says_is_left_to_it(tmp_path: Path) -> None:
    """Under shared labels it holds the top model; it may say more."""
    write_companies(tmp_path)
    core = tmp_path / "shared.toml"
    core.write_text(
        '[job]\nmetrics = ["f1"]\n[recipe]\nmethod = "cvfl"\ncompressor = "Sign"\n[network]\n'
        'address = "127.0.0.1:1"\n[[party]]\nname = "bank"\nmodel = { name = "linear", width = 8 }\n'
        '[label_party]\nname = "shop"\ntop = { name = "mlp_top", hidden = [4], classes = 2 }\n'
    )
    write_part(PartAnswers(None, core, "shop", tmp_path / "shop.csv", label="bought"), tmp_path / "shop.toml")
    write_part(PartAnswers(None, core, "bank", tmp_path / "bank.csv"), tmp_path / "bank.toml")
    shop, bank = (tomllib.loads((tmp_path / f"{name}.toml").read_text()) for name in ("shop", "bank"))
    assert "job" not in shop
    assert "top" not in shop["label_party"]
    assert "model" not in bank["party"][0]
    assert read_party_view(tmp_path / "shop.toml", "shop").settings.metrics == ["f1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--party is missing; name which of bank, shop this is and its file, as in --party bank=bank.csv"),
        (("--party", "bank=bank.csv", "--party", "shop=shop.csv"), "only the part of one party"),
        (("--party", "bnak=bank.csv"), "has no party 'bnak'; there are bank, shop; did you mean 'bank'?"),
        (("--party", "bank"), "--party bank: write it as --party bank=bank.csv"),
        (("--party", "shop=bank.csv"), "--label is missing: 'shop' holds the label; name its column"),
        (("--party", "bank=bank.csv", "--label", "age"), "the label is held by 'shop', not by 'bank'"),
        (("--party", "bank=bank.csv", "--id", "custmer"), "there is no column 'custmer'"),
        (("--party", "bank=bank.csv", "--id", "age", "--id", "job"), "one column identifies the rows, got age, job"),
        (("--party", "bank=x.npz"), "splits rows by their ids (job.split); name the array of ids with --id"),
        (("--party", "bank=x.npz", "--id", "name"), "there is no array 'name'; the file holds x [4, 2]"),
    ],
)
def test_what_is_wrong_with_a_part_is_said(
    arguments: tuple[str, ...],
    message: str,
    here: Here,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_companies(tmp_path)
    core_beside(tmp_path)
    (tmp_path / "shop.csv").unlink()
    (tmp_path / "worth.csv").unlink()
    np.savez(tmp_path / "x.npz", x=np.zeros((4, 2)))
    shown = here("init", "own.toml", "--core", "core.toml", *arguments, folder=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr
    assert not (tmp_path / "own.toml").exists()


def test_a_part_is_not_written_over_its_core(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    core = core_beside(tmp_path)
    before = core.read_text()
    own = ("--core", "core.toml", "--party", "bank=bank.csv", "--force")
    shown = here("init", "core.toml", *own, folder=tmp_path)
    assert shown.returncode == 2
    assert "core.toml is the core itself; choose another name for the part, such as bank.toml" in shown.stderr
    assert core.read_text() == before


def test_the_part_of_a_core_with_a_guarantee_fits_nothing(tmp_path: Path) -> None:
    write_companies(tmp_path)
    core = core_beside(tmp_path, "private", ("bank", "post", "club"))
    write_part(PartAnswers(None, core, "bank", tmp_path / "bank.csv"), tmp_path / "bank.toml")
    section = tomllib.loads((tmp_path / "bank.toml").read_text())["party"][0]
    assert set(section["prepare"]["known"]) == {"age", "job"}
    assert section["model"]["width"] == 4


@pytest.mark.parametrize(
    ("template", "keys", "commands"),
    [
        ("tabular", {"name", "ids", "alignment", "features", "model"}, 3),
        (
            "images",
            {"name", "ids", "alignment", "features", "model"} | {"test_features", "test_ids", "test_alignment"},
            4,
        ),
    ],
)
def test_arrays_with_ids(template: str, keys: set[str], commands: int, tmp_path: Path) -> None:
    """Test rows are arrays of their own, unless the core keeps some back."""
    rng = np.random.default_rng(0)
    held = {"x": rng.normal(size=(9, 3)), "x_test": rng.normal(size=(4, 3))}
    names = {"id": np.arange(9).astype(str), "id_test": np.arange(4).astype(str)}
    np.savez(tmp_path / "bank.npz", **held, **names)  # type: ignore[arg-type]
    core = core_beside(tmp_path, template)
    found = write_part(PartAnswers(None, core, "bank", tmp_path / "bank.npz", id="id"), tmp_path / "bank.toml")
    assert (found.rows, len(found.commands)) == (9, commands)
    assert set(tomllib.loads((tmp_path / "bank.toml").read_text())["party"][0]) == keys
    read_party_view(tmp_path / "bank.toml", "bank")


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
    written = write_job(JobAnswers("tabular", files, ("b", "sick")), tmp_path / "job.toml")
    assert written.ids == {"a": "person id", "b": "client"}
    assert written.commands[0] == "thinwire check job.toml", "rows are in one order already"
    job = load_job(tmp_path / "job.toml")
    assert job.label_party.features is None
    document = tomllib.loads((tmp_path / "job.toml").read_text())
    assert document["party"][0]["prepare"]["missing_words"] == ["?", "-", "."]
    assert document["label_party"]["labels"]["delimiter"] == ";"


def write_people(folder: Path, **of_a: Any) -> None:
    """a.csv and b.csv of the same forty people; columns of a as given."""
    people = [f"A{k}" for k in range(40)]
    columns = {"customer": people, "age": [20 + k % 30 for k in range(40)], **of_a}
    write_csv(folder / "a.csv", columns, range(40))
    write_csv(folder / "b.csv", {"client": people, "ill": ["ny"[k % 3 == 0] for k in range(40)]}, range(40))


A_AND_B = ("--party", "a=a.csv", "--party", "b=b.csv", "--label", "b:ill")
TWICE = [f"A{17 if k == 30 else k}" for k in range(40)]


@pytest.mark.parametrize("given", ["a:customer", "customer", "b:client", "client"])
def test_one_id_is_enough_where_the_others_is_plain(given: str, here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_people(tmp_path)
    done = here("init", *A_AND_B, "--id", given, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ids"] == {"a": "customer", "b": "client"}


def test_an_id_is_asked_for_where_several_columns_could_be(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_people(tmp_path, row=list(range(40)))
    done = here("init", *A_AND_B, "--id", "client", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "which column identifies the rows of 'a'? 'customer', 'row' could; say --id a:COLUMN as well" in done.stderr
    )


@pytest.mark.parametrize(
    ("of_a", "more", "message"),
    [
        ({"customer": TWICE}, (), "column 'customer' looks like an id, but 'A17' appears in line 19 and line 32; "),
        (
            {"customer": TWICE, "row": range(40)},
            (),
            "column 'customer' looks like an id, but 'A17' appears in line 19",
        ),
        ({"customer": ["", *TWICE[1:]]}, (), "column 'customer' looks like an id, but line 2 has none; correct or "),
        (
            {"customer": TWICE},
            ("--id", "customer"),
            "column 'customer' cannot identify the rows: 'A17' appears in line 19",
        ),
        ({"customer": TWICE}, ("--id", "a:customer", "--id", "b:client"), "'A17' appears in line 19 and line 32"),
    ],
)
def test_an_id_that_repeats_is_named_with_its_value(
    of_a: dict[str, Any],
    more: tuple[str, ...],
    message: str,
    here: Here,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_people(tmp_path, **of_a)
    done = here("init", *A_AND_B, *more, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert not (tmp_path / "job.toml").exists()


def test_a_second_column_that_looks_like_an_id_is_noted(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_people(tmp_path, account=TWICE)
    done = here("init", *A_AND_B, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    note = (
        "a.csv: column 'account' looks like an id, but 'A17' appears in line 19 and line 32; "
        "the rows are identified by"
    )
    assert note in done.stdout
    assert "A17" not in (tmp_path / "job.toml").read_text(), "a job file is passed on: it holds no value of a table"


def test_a_part_names_the_id_that_repeats(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_people(tmp_path, customer=TWICE)
    core = core_beside(tmp_path)
    for more in ((), ("--id", "customer")):
        done = here("init", "bank.toml", "--core", core, "--party", "bank=a.csv", *more, folder=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "'A17' appears in line 19 and line 32" in done.stderr


def write_abroad(folder: Path) -> None:
    """Two files as other countries write them, and the same two plain ones."""
    rng = np.random.default_rng(0)
    people = [f"p{k}" for k in rng.permutation(120)]
    price, weight = rng.uniform(10, 9000, 120).round(2), rng.uniform(40, 120, 120).round(1)
    towns = rng.choice(["Zürich", "Genève", "Bern"], 120)
    plain = [f"{person},{p:.2f},{t}" for person, p, t in zip(people, price, towns, strict=True)]
    grouped = [f"{p:,.2f}".translate({ord(","): ".", ord("."): ","}) for p in price]
    german = [f"{person};{p};{t}" for person, p, t in zip(people, grouped, towns, strict=True)]
    (folder / "shop-plain.csv").write_text("\n".join(["person,price,town", *plain]) + "\n")
    (folder / "shop.csv").write_text("\n".join(["person;price;town", *german]) + "\n", "latin-1")
    lines = [f"{person}\t{x:.1f}\t{'ny'[int(x > 80)]}" for person, x in zip(people, weight, strict=True)]
    (folder / "clinic-plain.csv").write_text("\n".join(["person\tweight\till", *lines]).replace("\t", ",") + "\n")
    (folder / "clinic.csv").write_text("\n".join(["person\tweight\till", *lines]).replace(".", ",") + "\n")


def test_files_as_other_countries_write_them(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_abroad(tmp_path)
    words = ("--label", "clinic:ill", "--party", "shop=shop{}.csv", "--party", "clinic=clinic{}.csv")
    for kind, job, more in (("-plain", "plain.toml", ()), ("", "job.toml", ("--encoding", "shop:latin-1"))):
        done = here("init", job, *(word.format(kind) for word in words), *more, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    document = tomllib.loads((tmp_path / "job.toml").read_text())
    shop, clinic = document["party"][0], document["label_party"]
    german = {"delimiter": ";", "encoding": "latin-1", "decimal": ",", "thousands": "."}
    assert shop["features"] == {"file": "shop.csv", **german}
    assert shop["ids"] == {"file": "shop.csv", "delimiter": ";", "encoding": "latin-1", "column": "person"}
    assert clinic["features"] == {"file": "clinic.csv", "delimiter": "\t", "decimal": ","}
    assert "clinic.csv: read with delimiter = '\\t', decimal = ','" in done.stdout
    assert "#   price  number\n" in (tmp_path / "job.toml").read_text()
    assert "delimiter" not in (tmp_path / "plain.toml").read_text()
    abroad, plain = load_job(tmp_path / "job.toml"), load_job(tmp_path / "plain.toml")
    assert torch.equal(abroad.parties[0].features, plain.parties[0].features)
    assert torch.equal(abroad.label_party.features, plain.label_party.features)
    resolved = tomllib.loads(resolve_job(tmp_path / "job.toml"))
    assert resolved["party"][0]["features"] == {**shop["features"], "file": str(tmp_path / "shop.csv")}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "shop.csv: line 2 holds the byte 0x"),
        (("--encoding", "latin-0"), "encoding 'latin-0' is unknown"),
        (("--encoding", "latin-1", "--decimal", ",", "--thousands", ","), "decimal and thousands are both ','"),
        (("--encoding", "latin-1", "--delimiter", "shop:comma"), "the first line has no ',', but semicolons"),
    ],
)
def test_formats_that_do_not_fit_the_file(
    more: tuple[str, ...],
    message: str,
    here: Here,  # noqa: F811
    tmp_path: Path,
) -> None:
    write_abroad(tmp_path)
    (tmp_path / "shop.csv").write_text("person;price;town\np1;1,5;Zürich\n", "latin-1")
    words = ("--party", "shop=shop.csv", "--party", "clinic=clinic.csv", "--label", "clinic:ill", *more)
    shown = here("init", *words, folder=tmp_path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr


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
    write_job(JobAnswers("ctr", files, ("b", "click")), tmp_path / "job.toml")
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
    written = write_job(JobAnswers(template, files, ("clinic", "y")), tmp_path / "job.toml")
    assert (written.task, written.rows, written.ids) == ("multiclass", 60, None)
    job = load_job(tmp_path / "job.toml", ["job.epochs=0.5"])
    assert type(job.parties[2].bottom).__name__ == model
    assert "accuracy" in train(job, callbacks=[]).summary()["test"]


def test_arrays_have_networks_unasked(here: Here, tmp_path: Path) -> None:  # noqa: F811
    """Trees are for tables; beside a core that was written for them, arrays are refused with the way out."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "bank.npz", x=rng.normal(size=(40, 3)))
    np.savez(tmp_path / "shop.npz", x=rng.normal(size=(40, 2)), y=rng.integers(0, 2, 40))
    done = here("init", "--party", "bank=bank.npz", "--party", "shop=shop.npz", "--label", "shop:y", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert tomllib.loads((tmp_path / "job.toml").read_text())["party"][0]["model"]["name"] == "mlp"
    assert here("init", "core.toml", *CORE, folder=tmp_path).returncode == 0
    part = here("init", "bank.toml", "--core", "core.toml", "--party", "bank=bank.npz", folder=tmp_path)
    assert (part.returncode, part.stdout) == (2, "")
    assert "or the core that its parties share, with --template tabular, images or series" in part.stderr


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
    write_job(JobAnswers("private", files, ("clinic", "ill"), dict.fromkeys(files, "person")), tmp_path / "job.toml")
    assert "REPLACE prepare.known with public knowledge" in (tmp_path / "job.toml").read_text()
    job = load_job(tmp_path / "job.toml", ["job.epochs=0.2"])
    assert isinstance(job.training, DPBottom)
    assert all(
        party.preparation is not None and party.preparation.row_dependent_columns == () for party in job.parties
    )
    (first, *_) = train(job, callbacks=[]).summary()["privacy"]
    assert all(isinstance(one["end_to_end_epsilon"], float) for one in first["observers"])


@pytest.mark.parametrize(
    ("file", "label", "top", "loss"),
    [
        ("shop", "shop:bought", {"name": "bias_top", "width": 1}, "binary_cross_entropy"),
        ("worth", "shop:worth", {"name": "bias_top", "width": 1}, "squared_error"),
        ("shop", "bank:job", {"name": "bias_top", "width": 3}, "cross_entropy"),
    ],
)
def test_trees(file: str, label: str, top: dict[str, Any], loss: str, here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    words = ("--party", "bank=bank.csv", "--party", f"shop={file}.csv", "--label", label)
    for command in (("init", "--model", "boosted_trees", *words), ("align", "job.toml"), ("check", "job.toml")):
        done = here(*command, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    written = tomllib.loads((tmp_path / "job.toml").read_text())
    assert written["recipe"] == {"method": "boosting"}
    assert written["job"].items() >= {"epochs": 40, "eval_every": 2, "patience": 4}.items()
    assert not {"batch_size", "optimizer"} & {*written["job"], *written}
    assert written["label_party"]["top"] == top
    assert written["label_party"]["loss"] == loss
    job = load_job(tmp_path / "job.toml", ["job.epochs=3", "job.baselines=false", "job.importance=false"])
    first, *_, last = train(job, callbacks=[]).history
    assert last["train"]["loss"] < first["train"]["loss"] - 0.02


def test_a_core_for_trees_says_the_loss_and_parts_follow_it(here: Here, tmp_path: Path) -> None:  # noqa: F811
    write_companies(tmp_path)
    shown = here("init", "core.toml", *CORE, folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "thinwire init bank.toml --core core.toml --party bank=FILE\n" in shown.stdout
    core = tomllib.loads((tmp_path / "core.toml").read_text())
    assert core["label_party"] == {
        "name": "shop",
        "top": {"name": "bias_top", "width": 1},
        "loss": "binary_cross_entropy",
    }
    assert "batch_size" not in core["job"]
    part = ("--core", "core.toml", "--party")
    assert here("init", "bank.toml", *part, "bank=bank.csv", folder=tmp_path).returncode == 0
    assert here("init", "shop.toml", *part, "shop=shop.csv", "--label", "bought", folder=tmp_path).returncode == 0
    own = read_party_view(tmp_path / "bank.toml", "bank")
    assert own.section.model == {"name": "boosted_trees", "width": 1, "pairs": 0, "curvature": "derived"}
    assert "top" not in tomllib.loads((tmp_path / "shop.toml").read_text())["label_party"]
    other = here("init", "worth.toml", *part, "shop=worth.csv", "--label", "worth", folder=tmp_path)
    assert other.returncode == 2
    assert (
        "--label worth: the labels are regression, which does not match core.toml; write this under" in other.stderr
    )
    assert 'loss = "squared_error"' in other.stderr


def test_every_template_has_a_title_and_is_tested_here() -> None:
    assert set(TEMPLATES) == {"tabular", "trees", "images", "ctr", "series", "private"}
