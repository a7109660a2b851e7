"""One party's part of a job: only its own files are touched, and what it loads is what the simulator loads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import thinwire as tw
from job.small import JOB, ROWS, TESTS, write_job
from thinwire.base.errors import BadInput
from thinwire.engine.models.losses import WeightedLoss, cross_entropy
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job_loader import load_job
from thinwire.job.job_snapshot import digest_data, digest_tables
from thinwire.job.party_view import PartyView, read_party_view

SHARED = "recipe.labels='shared'"
OWN_FEATURES = """
features = { file = "own.npz", key = "x" }
test_features = { file = "own.npz", key = "x_test" }
model = { name = "linear", width = 4 }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The label party has features too; bank's and shop's rows have ids."""
    rng = np.random.default_rng(1)
    np.savez(tmp_path / "own.npz", x=rng.random((ROWS, 2)), x_test=rng.random((TESTS, 2)))
    for name, rows in (("ids", ROWS), ("test_ids", TESTS)):
        (tmp_path / f"{name}.csv").write_text("id\n" + "".join(f"p{row}\n" for row in range(rows)))
    return write_job(tmp_path, JOB + OWN_FEATURES)


def forget(path: Path, *names: str) -> None:
    for name in names:
        (path.parent / name).unlink()


def same_weights(one: nn.Module | None, two: nn.Module | None) -> bool:
    assert one is not None
    assert two is not None
    states = one.state_dict(), two.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(states[0][key], states[1][key]) for key in states[0]
    )


def labels_of(own: PartyView, widths: dict[str, int] | None = None) -> tw.LabelParty:
    return own.build_label_party(own.load_label_data(), widths or {"bank": 4, "shop": 4})


def test_what_a_party_knows(path: Path) -> None:
    own = read_party_view(path, "bank", ['party.bank.optimizer={name="sgd",lr=0.5}', "job.seed=3"])
    assert (own.me, own.label_party, own.feature_parties, own.is_label_party) == (
        "bank",
        "clinic",
        ("bank", "shop"),
        False,
    )
    assert own.recipe == load_job(path).recipe
    assert own.optimizer == tw.SGD(lr=0.5)
    assert (own.settings.seed, own.settings.batch_size, own.folder) == (3, 32, path.parent)
    shop, clinic = read_party_view(path, "shop"), read_party_view(path, "clinic")
    assert shop.optimizer == clinic.optimizer == tw.Adam(lr=0.02)
    assert clinic.is_label_party


def test_bank_loads_what_the_simulator_loads_and_touches_nothing_else(path: Path) -> None:
    (path.parent / "raises.py").write_text("raise RuntimeError('imported')\n")
    job = load_job(path)
    forget(path, "shop.csv", "shop_test.csv", "clinic.csv", "clinic_test.csv", "own.npz")
    foreign = ['party.shop.model={module="raises:Bottom"}', 'label_party.top={module="raises:Top"}']
    party = read_party_view(path, "bank", foreign).load_features()
    assert "raises" not in sys.modules
    assert torch.equal(party.features, job.parties[0].features)
    assert torch.equal(party.test_features, job.parties[0].test_features)
    assert same_weights(party.bottom, job.parties[0].bottom)
    assert party.optimizer == job.optimizer


def test_reading_alone_touches_no_data_at_all(path: Path) -> None:
    (path.parent / "raises.py").write_text("raise RuntimeError('imported')\n")
    for file in path.parent.iterdir():
        if file.suffix in (".csv", ".npz"):
            file.unlink()
    own = read_party_view(path, "bank", ['party.bank.model={module="raises:Bottom"}'])
    own.agreement(), own.who_sees(), own.budget(), own.format_document()
    assert "raises" not in sys.modules
    with pytest.raises(BadInput, match=r"party\.bank\.features: .*bank\.npz does not exist"):
        own.load_features()


def test_clinic_loads_what_the_simulator_loads_and_touches_nothing_else(path: Path) -> None:
    job = load_job(path).label_party
    forget(path, "bank.npz", "shop.csv", "shop_test.csv")
    own = read_party_view(path, "clinic", ['party.shop.model={module="raises:Bottom"}'])
    data = own.load_label_data()
    assert data.width == 4
    party = own.build_label_party(data, {"shop": 4, "bank": 4})
    assert torch.equal(party.labels, job.labels)
    assert torch.equal(party.test_labels, job.test_labels)
    assert torch.equal(party.features, job.features)
    assert torch.equal(party.test_features, job.test_features)
    assert same_weights(party.bottom, job.bottom)
    assert same_weights(party.top, job.top)
    assert (party.fusion, party.loss, party.optimizer) == (job.fusion, job.loss, tw.Adam(lr=0.02))


def test_the_top_model_is_as_wide_as_the_embeddings_in_the_jobs_order(path: Path) -> None:
    settings = ["label_party.fusion='concat'", "party.bank.model.width=3", "party.shop.model.width=5"]
    own = read_party_view(path, "clinic", settings)
    job = load_job(path, settings)
    for widths in ({"shop": 5, "bank": 3}, {"clinic": 4, "bank": 3, "shop": 5}):
        assert same_weights(labels_of(own, widths).top, job.label_party.top)


def test_data_digests_are_the_simulators(path: Path) -> None:
    expected = digest_data(load_job(path))
    bank, clinic = read_party_view(path, "bank"), read_party_view(path, "clinic")
    found = digest_tables(bank.me, bank.load_features()) | digest_tables(clinic.me, clinic.load_label_data())
    assert found == {key: digest for key, digest in expected.items() if not key.startswith("shop.")}


def test_a_partys_own_module_is_imported_when_its_data_is_loaded(path: Path) -> None:
    (path.parent / "banks_own_module.py").write_text(
        "from torch import nn\n"
        "class Bottom(nn.Linear):\n"
        "    def __init__(self, in_features: int, width: int) -> None:\n"
        "        super().__init__(in_features, width)\n"
        "class Top(nn.Linear):\n"
        "    def __init__(self, in_features: int) -> None:\n"
        "        super().__init__(in_features, 2)\n"
    )
    own = read_party_view(path, "bank", ['party.bank.model={module="banks_own_module:Bottom",width=4}'])
    assert "banks_own_module" not in sys.modules
    assert isinstance(own.load_features().bottom, nn.Linear)
    top = ['label_party.top={module="banks_own_module:Top"}']
    assert isinstance(labels_of(read_party_view(path, "clinic", top)).top, nn.Linear)


# Shared labels ------------------------------------------------------------------------------------------------


def test_under_shared_labels_every_party_builds_the_same_top_model(path: Path) -> None:
    settings = [SHARED, "label_party.class_weights=[1.0,2.0]", "label_party.fusion='concat'"]
    widths = {"bank": 4, "shop": 4, "clinic": 4}
    theirs = labels_of(read_party_view(path, "clinic", settings), widths)
    forget(path, "clinic.csv", "clinic_test.csv", "own.npz")
    top, loss, fusion = read_party_view(path, "bank", settings).build_top(widths)
    assert same_weights(top, theirs.top)
    assert loss == theirs.loss == WeightedLoss(cross_entropy, (1.0, 2.0))
    assert fusion == "concat"
    without = read_party_view(path, "bank", settings).build_top({"shop": 4, "bank": 4})[0]
    assert next(without.parameters()).shape == (2, 8)


@pytest.mark.parametrize("name", ["bank", "clinic"])
def test_under_shared_labels_the_top_model_is_no_code_of_one_partys_own(path: Path, name: str) -> None:
    own_code = 'label_party.top={module="raises:Top"}'
    message = (
        "label_party.top.module: under shared labels every party runs the top model, and no party runs code that "
        "another one names; use a built-in one, such as mlp_top, or private labels"
    )
    with pytest.raises(BadInput, match=re.escape(message)):
        read_party_view(path, name, [SHARED, own_code])
    read_party_view(path, name, [own_code])


def test_under_shared_labels_the_shared_part_holds_the_top_model(path: Path) -> None:
    path.write_text(JOB.replace('top = { name = "linear_top", classes = 2 }', ""))
    read_party_view(path, "bank")
    with pytest.raises(BadInput, match=r"label_party\.top is missing: under shared labels every party builds"):
        read_party_view(path, "bank", [SHARED])
    for setting, message in (
        ("label_party.top={name='linear_to'}", "label_party.top.name must be one of"),
        ("label_party.loss='crossentropy'", "label_party.loss must be one of cross_entropy"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            read_party_view(path, "bank", [SHARED, "label_party.top={name='linear_top',classes=2}", setting])


def test_private_labels_have_no_top_model_elsewhere(path: Path) -> None:
    with pytest.raises(BadInput, match="labels are private: the top model is the label party's alone"):
        read_party_view(path, "bank").build_top({"bank": 4, "shop": 4})


# What is refused ------------------------------------------------------------------------------------------------


def test_a_name_that_nobody_has(path: Path) -> None:
    message = f"{path}: no party is called 'bnak'; there are bank, shop, clinic; did you mean 'bank'?"
    with pytest.raises(BadInput, match=re.escape(message)):
        read_party_view(path, "bnak")


def test_the_own_section_is_whole_the_others_need_only_names(path: Path) -> None:
    roster = JOB[: JOB.index("[[party]]")] + '[[party]]\nname = "bank"\n[[party]]\nname = "shop"\n'
    path.write_text(roster + '[label_party]\nname = "clinic"\n')
    for name, message in (
        ("bank", "party.bank.features is missing; party.bank.model is missing"),
        ("clinic", "label_party.labels is missing; label_party.top is missing"),
    ):
        with pytest.raises(BadInput, match=re.escape(f"{path}: {message}")):
            read_party_view(path, name)
    assert read_party_view(path, "bank", ["party.bank.features={file='x.npz'}", "party.bank.model={name='mlp'}"])
    with pytest.raises(BadInput, match=r"party\.shop\.featurs: unknown key; did you mean 'features'\?"):
        read_party_view(path, "bank", ["party.shop.featurs=1"])


READ = [
    ("party.shop.name='../x'", "party '../x': a name has at most 64 letters"),
    ("party.shop.name='clinic'", "every party needs a unique name"),
    ("recipe.local_steps=3", "recipe: with private labels a feature party cannot compute its own gradient"),
    ("recipe={method='pbm',trials=16,beta=0.2}", "recipe: secure sum needs 3 feature parties, there are 2"),
    ("recipe.on_outage='continue'", "recipe: on_outage='continue' trains on cached exchanges"),
    ("job.device='toaster'", "job.device 'toaster' is not available"),
    ("job.metrics=['acuracy']", "job.metrics: metric 'acuracy' is not one of"),
    ("optimizer.lr=-1", "optimizer.lr: Adam: lr must be above 0"),
    ("party.bank.optimizer={name='sdg'}", "party.bank.optimizer.name must be one of sgd"),
]


@pytest.mark.parametrize(("setting", "message"), READ, ids=[setting for setting, _ in READ])
def test_what_is_wrong_is_said_before_any_data_is_read(path: Path, setting: str, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        read_party_view(path, "bank", [setting])
    assert str(refused.value).startswith(f"{path}: ")


LOADED = [
    ("job.batch_size=97", "job.batch_size must be from 1 to the 96 training rows, got 97"),
    ("party.bank.model.in_features=9", "party.bank.model: does not accept features of shape [3]"),
    ("party.bank.model.width=0", "party.bank.model.width: MLP: width must be an integer from 1 up"),
    ("party.bank.ids={file='test_ids.csv',column='id'}", "party.bank.ids has 32 ids, but there are 96 such rows"),
    (
        "party.bank.test_ids={file='ids.csv',column='id'}",
        "party.bank.test_ids has 96 ids, but there are 32 such rows",
    ),
    ("party.bank.ids={file='ids.csv',column='di'}", "party.bank.ids: "),
]


@pytest.mark.parametrize(("setting", "message"), LOADED, ids=[setting for setting, _ in LOADED])
def test_what_is_wrong_with_a_feature_partys_data(path: Path, setting: str, message: str) -> None:
    own = read_party_view(path, "bank", [setting])
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        own.load_features()
    assert str(refused.value).startswith(f"{path}: ")


def test_batch_normalisation_at_a_feature_party(path: Path) -> None:
    images = np.random.default_rng(0).random((ROWS + TESTS, 1, 8, 8))
    np.savez(path.parent / "bank.npz", x=images[:ROWS], x_test=images[ROWS:])
    normalised = 'party.bank.model={name="resnet18",width=4,base_width=2}'
    read_party_view(path, "bank", [normalised]).load_features()
    with pytest.raises(BadInput, match="batch normalisation cannot train on the last batch, which has only one row"):
        read_party_view(path, "bank", [normalised, "job.batch_size=5"]).load_features()
    third = JOB[JOB.index('[[party]]\nname = "shop"') : JOB.index("[label_party]")].replace('"shop"', '"kiosk"')
    path.write_text(JOB.replace("[label_party]", f"{third}[label_party]"))
    secure = "recipe={method='pbm',trials=16,beta=0.2}"
    with pytest.raises(BadInput, match=r"party\.bank\.model: normalises over the batch"):
        read_party_view(path, "bank", [normalised, secure]).load_features()


LABELS = [
    ("job.batch_size=97", "job.batch_size must be from 1 to the 96 training rows, got 97"),
    ("label_party.labels.column='sick'", "label_party.labels: "),
    ("label_party.loss='crossentropy'", "label_party.loss must be one of cross_entropy"),
    ("label_party.top.classes=1", "label_party.labels: cross_entropy: labels must be integers from 0 to 0"),
    ("label_party.top.in_features=9", "label_party: LinearTop: the input has shape (2, 4)"),
    ("label_party.class_weights=[1.0,-1.0]", "label_party: weighted: class_weights[1] must be at least 0"),
    (
        "label_party.model.width=5",
        "label_party.fusion: fusion 'sum' adds embeddings, but their widths differ: 4, 4, 5",
    ),
    ("label_party.ids={file='test_ids.csv',column='id'}", "label_party.ids has 32 ids, but there are 96 such rows"),
    ("job.metrics=['mse']", "job.metrics: "),
    (
        "label_party.test_features={file='own.npz',key='x'}",
        "party 'clinic' has 96 test rows, but there are 32 test labels",
    ),
]


@pytest.mark.parametrize(("setting", "message"), LABELS, ids=[setting for setting, _ in LABELS])
def test_what_is_wrong_with_the_label_partys_data(path: Path, setting: str, message: str) -> None:
    own = read_party_view(path, "clinic", [setting])
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        labels_of(own)
    assert str(refused.value).startswith(f"{path}: ")


def test_labels_of_one_class_teach_nothing(path: Path) -> None:
    (path.parent / "clinic.csv").write_text("ill\n" + "0\n" * ROWS)
    (path.parent / "clinic_test.csv").write_text("ill\n" + "0\n" * TESTS)
    with pytest.raises(
        BadInput, match=r"label_party\.labels: all 96 rows have class 0; training needs at least two classes"
    ):
        labels_of(read_party_view(path, "clinic"))


def test_widths_from_peers_are_not_believed(path: Path) -> None:
    own = read_party_view(path, "clinic")
    for widths, message in (
        ({"bank": 4}, "widths of bank are known; there must be bank, shop"),
        ({"bank": 4, "shop": 4, "kiosk": 4}, "widths of bank, shop, kiosk are known; there must be bank, shop"),
        ({"bank": 4, "shop": 0}, "party 'shop': an embedding's width is from 1 to 1048576, got 0"),
        ({"bank": 4, "shop": 2**30}, "got 1073741824"),
        ({"bank": 4, "shop": True}, "got True"),
        ({"bank": 4, "shop": 4, "clinic": 5}, "party 'clinic': its own embedding is 4 wide, not 5"),
        ({"bank": 4, "shop": 5}, "their widths differ: 4, 5, 4"),
    ):
        with pytest.raises(BadInput, match=re.escape(message)):
            labels_of(own, widths)


def test_each_loads_its_own_kind(path: Path) -> None:
    with pytest.raises(BadInput, match="'clinic' is the label party: load its label data"):
        read_party_view(path, "clinic").load_features()
    with pytest.raises(BadInput, match="'bank' is a feature party: load its features"):
        read_party_view(path, "bank").load_label_data()


# Ids, and the run directory -------------------------------------------------------------------------------------


def test_row_ids_are_those_of_the_own_section(path: Path) -> None:
    ids = "ids={file='ids.csv',column='id'}", "test_ids={file='test_ids.csv',column='id'}"
    settings = [f"{party}.{setting}" for party in ("party.bank", "label_party") for setting in ids]
    bank, clinic = read_party_view(path, "bank", settings), read_party_view(path, "clinic", settings)
    bank.load_features()
    clinic.load_label_data()
    rows, tests = bank.row_ids(), bank.held_out_row_ids(HeldOut.TEST)
    assert rows is not None
    assert tests is not None
    assert (rows, tests) == (clinic.row_ids(), clinic.held_out_row_ids(HeldOut.TEST))
    assert (rows.count, tests.count) == (ROWS, TESTS)
    shop = read_party_view(path, "shop", settings)
    assert shop.row_ids() is shop.held_out_row_ids(HeldOut.TEST) is None


@pytest.mark.parametrize("name", ["bank", "clinic"])
@pytest.mark.parametrize("settings", [["job.seed=3"], [SHARED, "link.latency_ms=3", "network.certs='mine'"]])
def test_the_resolved_text_is_the_same_part_from_anywhere(path: Path, name: str, settings: list[str]) -> None:
    settings = [
        *settings,
        "party.bank.ids={file='ids.csv',column='id'}",
        "party.shop.certificate_name='shop.example'",
    ]
    own = read_party_view(path, name, settings)
    elsewhere = path.parent / "else" / "where.toml"
    elsewhere.parent.mkdir()
    elsewhere.write_text(own.format_document())
    again = read_party_view(elsewhere, name)
    assert again.format_document() == own.format_document()
    assert again.agreement() == own.agreement()
    assert (again.certificate_files, again.certificate_names) == (own.certificate_files, own.certificate_names)
    text = own.format_document()
    assert "shop.csv" not in text
    assert ("clinic.csv" in text, "bank.npz" in text) == (name == "clinic", name == "bank")
    assert ("linear_top" in text) == (name == "clinic" or SHARED in settings)
    assert "latency_ms" not in text
