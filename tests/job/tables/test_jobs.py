"""From two CSV files to a trained model: the same rows and the same preparation wherever they are made."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from job.tables.companies import JOB, write_companies, write_job
from thinwire.align import normalize_ids, read_alignment, write_alignment
from thinwire.align.intersect import intersect
from thinwire.base.errors import BadColumn, BadIds, BadInput, BadLabels, IncompatibleRecipe
from thinwire.data.prepare import LabelCoding, Preparation
from thinwire.data.readers.features import read_id_texts
from thinwire.data.readers.tables import read_cells
from thinwire.engine.models import DeepTower, LinearTop
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import require_same_job, save_job
from thinwire.job.party_view import read_party_view
from thinwire.training.dry_run import run_dry
from thinwire.training.train import train


def aligned(folder: Path, text: str = JOB) -> Path:
    """The job with its files, aligned as `thinwire align` does it."""
    path = write_job(folder, text)
    ids = {name: normalize_ids(read_id_texts(folder / f"{name}.csv", None, "customer")) for name in ("bank", "shop")}
    for name, alignment in intersect(ids, "shop", workers=1).items():
        write_alignment(folder / f"{name}.alignment", alignment)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return aligned(tmp_path_factory.mktemp("companies"))


def test_training_from_two_files_and_what_it_leaves(path: Path, tmp_path: Path) -> None:
    job = load_job(path)
    result = train(job, callbacks=[], out=tmp_path / "run")
    assert result.summary()["test"]["auc"] > 0.9
    folder = path.parent
    for name, features in (("bank", job.parties[0].features), ("shop", job.label_party.features)):
        saved = Preparation.from_json((tmp_path / f"run/models/{name}.preparation.json").read_bytes())
        cells = read_cells(folder / f"{name}.csv")
        rows = read_alignment(folder / f"{name}.alignment").rows
        every = saved.apply(cells[rows])
        # Training rows are some of the aligned ones, in their order; the preparation is fitted on those alone.
        places = iter(every)
        assert all(any(torch.equal(row, other) for other in places) for row in features)
        assert saved.rows == len(features) == job.rows
        assert "customer" not in saved.sources
        assert "bought" not in saved.sources
    coding = LabelCoding.from_json((tmp_path / "run/models/shop.labels.json").read_bytes())
    assert coding.classes == ("no", "yes")


def test_a_party_tells_how_much_of_its_table_is_read(path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    replace(read_party_view(path, "bank"), on_progress=lambda *one: told.append(one)).load_features()
    total = told[-1][1]
    assert told == [(done, total, "bank: columns") for done in range(total + 1)]


def test_each_party_alone_reads_what_the_simulator_reads(path: Path) -> None:
    job = load_job(path)
    bank, shop = read_party_view(path, "bank"), read_party_view(path, "shop")
    features, labels = bank.load_features(), shop.load_label_data()
    assert torch.equal(features.features, job.parties[0].features)
    assert torch.equal(features.test_features, job.parties[0].test_features)
    assert torch.equal(labels.labels, job.label_party.labels)
    assert labels.test_features is not None
    assert torch.equal(labels.test_features, job.label_party.test_features)
    assert bank.row_ids() == shop.row_ids()
    assert bank.held_out_row_ids(HeldOut.TEST) == shop.held_out_row_ids(HeldOut.TEST)
    assert bank.roster.has_test_rows
    assert bank.agreement() == shop.agreement()
    other = read_party_view(path, "bank", ["job.split.key=other"])
    assert other.agreement() != bank.agreement()
    assert other.row_ids() != bank.row_ids()


def test_test_rows_do_not_touch_the_preparation(path: Path, tmp_path: Path) -> None:
    """What stands in rows that are kept back may change at will."""
    before = load_job(path).parties[0]
    assert isinstance(before.preparation, Preparation)
    folder = path.parent
    ids = read_id_texts(folder / "bank.csv", None, "customer")
    kept_back = set(ids) - {ids[row] for row in training_rows(path)}
    for name in ("shop.csv", "bank.alignment", "shop.alignment", "job.toml"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    lines = (folder / "bank.csv").read_text().splitlines()
    changed = [f"{line.split(',')[0]},999,astronaut,x" if line.split(",")[0] in kept_back else line for line in lines]
    (tmp_path / "bank.csv").write_text("\n".join(changed))
    after = load_job(tmp_path / "job.toml").parties[0]
    assert after.preparation == before.preparation
    assert torch.equal(after.features, before.features)
    assert not torch.equal(after.test_features, before.test_features)


def training_rows(path: Path) -> list[int]:
    from thinwire.job.job_file import read_job_file
    from thinwire.job.row_selection import RowSelection

    file = read_job_file(path)
    rows = RowSelection(file.party[0], path.parent, file.job.split).training.rows
    assert rows is not None
    found: list[int] = rows.tolist()
    return found


def test_rows_for_validation_are_neither_trained_on_nor_tested(path: Path) -> None:
    plain = load_job(path)
    both = load_job(path, ["job.split.validation=0.25"])
    assert torch.equal(both.label_party.test_labels, plain.label_party.test_labels)
    counts = [both.rows, both.validation_rows, both.test_rows]
    assert sum(counts) == plain.rows + plain.test_rows == 480
    assert plain.validation_rows == 0
    assert 90 < both.validation_rows < 150
    assert all(len(party.validation_features) == both.validation_rows for party in both.parties)
    earlier = load_job(path, ["job.split.validation=0.25", "job.split.evaluate=validation"])
    assert torch.equal(both.label_party.labels, earlier.label_party.labels)
    assert load_job(path, ["job.split.test=0"]).label_party.test_labels is None


def test_a_regression_and_three_classes(path: Path) -> None:
    number = [
        'label_party.labels={file="worth.csv", column="worth", task="auto"}',
        'label_party.features={file="worth.csv"}',
        'label_party.ids={file="worth.csv", column="customer"}',
        'job.metrics=["r2"]',
    ]
    with pytest.raises(BadLabels, match=r"label_party\.loss is 'cross_entropy', but label 'worth': regression"):
        load_job(path, number)
    job = load_job(path, [*number, "label_party.loss=squared_error"])
    assert run_dry(job).label == job.label_party.coding.says  # type: ignore[union-attr]
    assert train(job, callbacks=[]).summary()["test"]["r2"] > 0.5
    words = [
        'label_party.labels={file="shop.csv", column="visits", task="multiclass"}',
        'job.metrics=["accuracy"]',
        'label_party.labels.classes=["9"]',
    ]
    with pytest.raises(BadInput, match=r"label_party\.labels\.classes must have at least 2 items"):
        load_job(path, words)
    wide = load_job(path, [*words[:2], "job.split.key=a"]).label_party
    assert isinstance(wide.coding, LabelCoding)
    assert classes(wide.top) == len(wide.coding.classes) > 5


def test_models_follow_from_the_preparation(path: Path) -> None:
    tower = 'party.bank.model={name="deep_tower", embedding_width=4, hidden=[8], width=8}'
    bank = load_job(path, ["party.bank.prepare.categories=codes", tower]).parties[0]
    assert isinstance(bank.preparation, Preparation)
    assert isinstance(bank.bottom, DeepTower)
    assert tuple(bank.bottom.fields_vocab) == bank.preparation.vocabularies
    assert classes(load_job(path, ["label_party.loss=binary_cross_entropy"]).label_party.top) == 1
    shared = ['recipe={method="cvfl", compressor="Identity"}']
    assert classes(load_job(path, shared).label_party.top) == 2
    with pytest.raises(BadInput, match="classes is missing"):
        read_party_view(path, "bank", shared).build_top({"bank": 8, "shop": 8})


def classes(top: nn.Module) -> int:
    assert isinstance(top, LinearTop)
    return top.linear.out_features


def test_a_guarantee_needs_a_preparation_that_has_not_looked(path: Path, tmp_path: Path) -> None:
    private = ["job.training.name=DPBottom", "job.training.clip=1.0", "job.training.noise_multiplier=4.0"]
    with pytest.raises(IncompatibleRecipe, match="column 'age' is prepared from statistics of all rows"):
        load_job(path, private)
    with pytest.raises(IncompatibleRecipe, match=r"party 'bank': column 'age' .* prepare\.known"):
        read_party_view(path, "bank", private).load_features()
    known = [
        'party.bank.prepare.known={age=[0, 100], job=["clerk", "nurse"]}',
        'party.bank.features.all_but=["note"]',
    ]
    assert load_job(path, [*private, *known]).rows > 0
    assert "known = { age = [0" in resolve_job(path, known)


def test_rows_in_another_order_are_found_out(path: Path, tmp_path: Path) -> None:
    write_companies(tmp_path)
    text = JOB.replace('alignment = "bank.alignment"\n', "").replace('alignment = "shop.alignment"\n', "")
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(
        BadIds, match=r"label_party\.ids are not those of party\.bank in the same order.*thinwire align"
    ):
        load_job(tmp_path / "job.toml")


def test_a_split_that_cannot_be(path: Path) -> None:
    wrong = {
        "job.split.test=1.0": "job.split.test must be less than 1",
        "job.split.validation=0.8": "together must leave some rows for training",
        "job.split.test=0.0001": "0 are left for test; use more rows",
        'party.bank.test_features={file="bank.csv"}': r"party.bank.test_features: job.split takes the test rows",
    }
    for setting, message in wrong.items():
        with pytest.raises(BadInput, match=message):
            load_job(path, [setting])


def test_a_table_that_changed_since_the_run_began(path: Path, tmp_path: Path) -> None:
    save_job(tmp_path / "run", resolve_job(path), load_job(path))
    require_same_job(tmp_path / "run", resolve_job(path), load_job(path))
    assert set(json.loads((tmp_path / "run/data.json").read_text())) == {
        *(
            "bank.features",
            "bank.test_features",
            "shop.features",
            "shop.test_features",
            "shop.labels",
            "shop.test_labels",
        )
    }
    again = resolve_job(tmp_path / "run/job.toml")
    assert again == resolve_job(path)
    changed = [*map(str, np.loadtxt(path.parent / "bank.csv", dtype=str, delimiter=",", usecols=0))]
    assert len(changed) > 1
    with pytest.raises(BadInput, match=r"prepare\.scaling is 'quantile', but the run in .* began with 'standard'"):
        require_same_job(tmp_path / "run", resolve_job(path, ["party.bank.prepare.scaling=quantile"]), load_job(path))


def test_id_and_label_are_no_features_however_their_file_is_written(path: Path) -> None:
    written = [
        'label_party.features={file="./shop.csv"}',
        'party.bank.features={file="../' + path.parent.name + '/bank.csv", columns=["*"]}',
    ]
    job = load_job(path, written)
    for party in (job.parties[0], job.label_party):
        assert isinstance(party.preparation, Preparation)
        assert not {"customer", "bought"} & {column.name for column in party.preparation.columns}


@pytest.mark.parametrize(
    "columns", ["", ', columns = ["spend", "v*"]', ', all_but = ["customer", "joined", "bought"]']
)
def test_a_label_among_plain_features_is_refused(path: Path, columns: str) -> None:
    parties, label = JOB.split("[label_party]")
    label = label.replace("prepare = {}\n", "").replace('column = "bought", task = "auto"', 'column = "visits"')
    label = label.replace('features = { file = "shop.csv" }', f'features = {{ file = "./shop.csv"{columns} }}')
    other = path.with_name("plain.toml")
    other.write_text(f"{parties}[label_party]{label}")
    message = "holds the label 'visits'; write all_but" if columns else "not a number; convert it, leave it out"
    with pytest.raises(BadColumn, match=message):
        load_job(other)
    kept = other.read_text().replace(columns or "no such text", ', columns = ["spend"]')
    if columns:
        other.write_text(kept)
        assert (
            load_job(other, ['job.metrics=["accuracy"]', "label_party.top.classes=20", "job.split.test=0"]).rows > 0
        )
