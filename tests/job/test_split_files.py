"""A core that all parties share, and a file of each party's own that includes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from job.small import JOB, write_job
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.party_view import read_party_view

CORE = (
    JOB[: JOB.index("[[party]]")]
    + """
[network]
address = "fl.clinic.example:7443"

[[party]]
name = "bank"

[[party]]
name = "shop"

[label_party]
name = "clinic"
"""
)
BANK = 'include = "core.toml"\n' + JOB[JOB.index("[[party]]") : JOB.index('[[party]]\nname = "shop"')]
CLINIC = 'include = "core.toml"\n' + JOB[JOB.index("[label_party]") :]
SHARED_TOP = 'top = { name = "linear_top", classes = 2 }\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_job(tmp_path, JOB + '\n[network]\naddress = "fl.clinic.example:7443"\n')
    (tmp_path / "core.toml").write_text(CORE)
    (tmp_path / "bank.toml").write_text(BANK)
    (tmp_path / "clinic.toml").write_text(CLINIC)
    return tmp_path


@pytest.mark.parametrize("name", ["bank", "clinic"])
def test_split_files_say_what_the_whole_file_says(folder: Path, name: str) -> None:
    whole, split = read_party_view(folder / "job.toml", name), read_party_view(folder / f"{name}.toml", name)
    assert split == whole
    assert split.agreement() == whole.agreement()
    assert split.who_sees() == whole.who_sees()
    assert split.format_document() == whole.format_document()


@pytest.mark.parametrize("name", ["bank", "clinic"])
def test_and_under_shared_labels_too(folder: Path, name: str) -> None:
    settings = ["recipe.labels='shared'"]
    (folder / "core.toml").write_text(CORE + SHARED_TOP)
    whole = read_party_view(folder / "job.toml", name, settings)
    split = read_party_view(folder / f"{name}.toml", name, settings)
    assert split == whole
    assert split.agreement() == whole.agreement()


def test_a_core_in_another_folder(folder: Path) -> None:
    (folder / "shared").mkdir()
    (folder / "core.toml").rename(folder / "shared" / "core.toml")
    (folder / "bank.toml").write_text(BANK.replace("core.toml", "shared/core.toml"))
    own = read_party_view(folder / "bank.toml", "bank")
    assert own == read_party_view(folder / "job.toml", "bank")
    assert len(own.load_features().features) > 0


def test_the_simulator_includes_too_when_everything_is_present(folder: Path) -> None:
    (folder / "all.toml").write_text('include = "core.toml"\n' + JOB[JOB.index("[[party]]") :])
    assert load_job(folder / "all.toml").digests() == load_job(folder / "job.toml").digests()
    assert resolve_job(folder / "all.toml") == resolve_job(folder / "job.toml")
    assert "include =" not in resolve_job(folder / "all.toml")
    with pytest.raises(BadInput, match=re.escape("party.shop.features is missing; party.shop.model is missing")):
        load_job(folder / "bank.toml")


def test_the_cores_order_and_the_partys_own_keys_hold(folder: Path) -> None:
    (folder / "shop.toml").write_text(
        'include = "core.toml"\n[network]\ncerts = "mine"\nwait_seconds = 5\n'
        + JOB[JOB.index('[[party]]\nname = "shop"') : JOB.index("[label_party]")]
    )
    (folder / "core.toml").write_text(
        CORE.replace('name = "shop"', 'name = "shop"\ncertificate_name = "x"\nmodel = { name = "mlp" }').replace(
            "[network]", "[network]\nwait_seconds = 9"
        )
    )
    own = read_party_view(folder / "shop.toml", "shop")
    assert own.feature_parties == ("bank", "shop")
    assert own.certificate_names["shop"] == "x"
    assert own.section.model == {"name": "linear", "width": 4}  # the own table, not a mixture
    assert (own.network.certs, own.network.wait_seconds) == ("mine", 5)
    assert own.network.address == "fl.clinic.example:7443"


CONFLICTS = [
    ("[job]\nseed = 1", "[job]\nseed = 2", "job.seed is 1 here and 2 in core.toml; this file cannot change it"),
    (
        '[recipe]\ncompressor = { name = "TopK", fraction = 0.5 }',
        None,
        "recipe.compressor.fraction is 0.5 here and 0.25 in core.toml",
    ),
    ("[optimizer]\nlr = 0.5", None, "optimizer.lr is 0.5 here and 0.02 in core.toml"),
    ('[label_party]\nname = "klinik"', None, "label_party.name is 'klinik' here and 'clinic' in core.toml"),
    ('[label_party]\nfusion = "mean"', 'fusion = "sum"', "label_party.fusion is 'mean' here and 'sum' in core.toml"),
    ('[[party]]\nname = "shp"', None, "party.shp: core.toml has no party of this name, it has bank, shop; did you"),
    ("[[party]]\nmodel = {}", None, "party: every section needs a unique name, here and in core.toml, got 'bank'"),
    ('[[party]]\nname = "bank"', None, "party: every section needs a unique name"),
]


@pytest.mark.parametrize(("own", "core", "message"), CONFLICTS, ids=[message[:30] for *_, message in CONFLICTS])
def test_what_all_share_is_said_with_one_meaning(folder: Path, own: str, core: str | None, message: str) -> None:
    (folder / "bank.toml").write_text(f"{BANK}\n{own}\n")
    if core is not None and core.startswith("[job]"):
        (folder / "core.toml").write_text(CORE.replace("[job]", core))
    elif core is not None:
        (folder / "core.toml").write_text(CORE + core)
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        read_party_view(folder / "bank.toml", "bank")
    assert str(refused.value).startswith(f"{folder / 'bank.toml'}: {message.split(' ', maxsplit=1)[0]}")


def test_the_same_value_in_both_files_is_fine(folder: Path) -> None:
    (folder / "bank.toml").write_text(f"{BANK}\n[job]\nepochs = 2\ndevice = 'cpu'\n")
    assert read_party_view(folder / "bank.toml", "bank").settings.epochs == 2


def test_the_order_of_parties_is_shared(folder: Path) -> None:
    (folder / "bank.toml").write_text(BANK.replace("[[party]]", '[[party]]\nname = "shop"\n\n[[party]]', 1))
    with pytest.raises(BadInput, match=r"party: the order is shop, bank here and bank, shop in core.toml; all"):
        read_party_view(folder / "bank.toml", "bank")


IN_THE_CORE = [
    (CORE.replace("epochs = 2", "epochs = -2"), "job.epochs must be greater than 0, got -2"),
    (CORE.replace("epochs = 2", "epoch = 2"), "job.epoch: unknown key; did you mean 'epochs'?"),
    (CORE.replace("fraction = 0.25", "fraction = 9"), "recipe.compressor.fraction: TopK: fraction must be"),
    (CORE.replace('"adam"', '"adma"'), "optimizer.name must be one of sgd, adam, adagrad, got 'adma'"),
    (CORE.replace('name = "shop"', 'name = "shop"\noptimizer = 3'), "party.shop.optimizer must be a"),
    (CORE + "top = 3\n", "label_party.top must be a table, got 3"),
    (CORE.replace("[job]", "[job"), "not TOML"),
    ('include = "bank.toml"\n' + CORE, "include: an included file may not include another"),
    (
        CORE.replace('name = "bank"', 'name = "bank"\napproved = "000000000000"'),
        "party.bank.approved: a party approves in its own file, not in one that it includes",
    ),
    (
        CORE.replace('name = "bank"', 'name = "bank"\nmodel = { module = "os:getcwd" }'),
        "party.bank.model.module: an included file must not name code, or one party could run it at another",
    ),
    (CORE + 'top = { module = "os:getcwd" }\n', "label_party.top.module: an included file must not name code"),
    (CORE + '[serve]\nclients = ["anybody"]\n', "serve: each party writes this in its own file"),
    (CORE + '[encryption]\nkey = "known"\n', "encryption: each party writes this in its own file"),
    (CORE.replace("[job]", '[job]\nscratch = "/etc"'), "job.scratch: each party writes this in its own file"),
    (
        CORE.replace("[network]", '[network]\ncerts = "theirs"'),
        "network.certs: each party writes this in its own file",
    ),
    *(
        (
            CORE.replace('name = "bank"', f'name = "bank"\n{line}'),
            f"party.bank.{line.split(' ')[0]}: an included file must not set a party's data, keys or serving terms",
        )
        for line in (
            'features = { file = "secrets.csv" }',
            'test_ids = { file = "secrets.csv", column = "id" }',
            'alignment = "other.alignment"',
            'key = "known.key"',
            'authority = "theirs.pem"',
            "serve = { cache_rows = 1000 }",
        )
    ),
]


@pytest.mark.parametrize(("core", "message"), IN_THE_CORE, ids=[message for _, message in IN_THE_CORE])
def test_a_refusal_names_the_file_in_which_the_field_stands(folder: Path, core: str, message: str) -> None:
    (folder / "core.toml").write_text(core)
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        read_party_view(folder / "bank.toml", "bank")
    assert str(refused.value).startswith(f"{folder / 'bank.toml'}: core.toml: {message.split(' ', maxsplit=1)[0]}")


def test_a_wrong_field_of_the_own_file_does_not_blame_the_core(folder: Path) -> None:
    (folder / "bank.toml").write_text(BANK.replace("width = 4", "width = 0"))
    with pytest.raises(BadInput, match=r"bank\.toml: party\.bank\.model\.width: MLP: width must be"):
        read_party_view(folder / "bank.toml", "bank").load_features()


def test_what_cannot_be_included(folder: Path) -> None:
    for include, message in (
        ('"no.toml"', "bank.toml: no.toml: the job file does not exist"),
        ('"."', "bank.toml: .: a folder, not a job file"),
        ('"bank.toml"', "bank.toml: include: a file cannot include itself"),
        ("3", 'bank.toml: include must be a path, such as "core.toml", got 3'),
        ('""', "bank.toml: include must be a path"),
    ):
        (folder / "bank.toml").write_text(BANK.replace('"core.toml"', include))
        with pytest.raises(BadInput, match=re.escape(message)):
            read_party_view(folder / "bank.toml", "bank")
    (folder / "bank.toml").write_text(BANK.replace("include", "inclde"))
    with pytest.raises(BadInput, match="inclde: unknown key; did you mean 'include'"):
        read_party_view(folder / "bank.toml", "bank")
