"""Tables of clients and forests: standardised and coded by the training rows, from any kind of file."""

from __future__ import annotations

import bz2
import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lab.datasets.layouts import table, written
from thinwire.base.errors import BadInput
from thinwire.lab.datasets import load_split
from thinwire.lab.datasets.sampling import mark_test_rows
from thinwire.lab.datasets.tabular_sets import BANK_MARKETING, COVTYPE, CREDIT_CARD, read_libsvm

ROWS = 200


def credit(label: str = "default.payment.next.month") -> tuple[list[str], list[list[Any]]]:
    rng = np.random.default_rng(0)
    header = ["ID", *CREDIT_CARD.fields, label]
    return header, [[k, *rng.integers(0, 1000, 23).tolist(), k % 5 // 4] for k in range(ROWS)]


def bank() -> tuple[list[str], list[list[Any]]]:
    rng = np.random.default_rng(1)
    client, campaign = BANK_MARKETING.parties.values()
    header = ["age", *client[1:], "duration", *campaign, "y"]
    words = {
        "job",
        "marital",
        "education",
        "default",
        "housing",
        "loan",
        "contact",
        "month",
        "day_of_week",
        "poutcome",
    }
    rows = []
    for k in range(ROWS):
        cells = [f'"{name}{rng.integers(0, 3)}"' if name in words else rng.integers(0, 90) for name in header[:-1]]
        rows.append([*cells, '"yes"' if k % 9 == 0 else '"no"'])
    return header, rows


def test_credit_card(tmp_path: Path) -> None:
    header, rows = credit()
    written(tmp_path / "credit_card" / "UCI_Credit_Card.csv", table(header, rows))
    data = load_split("credit_card", folder=tmp_path)
    assert data.names == ("person", "bills")
    assert [x.shape[1] for x in data.features] == [11, 12]
    values = np.array(rows)
    tested = mark_test_rows(np.arange(ROWS), 0.2)
    train, test = values[~tested], values[tested]
    assert data.labels.tolist() == train[:, -1].tolist()
    assert data.test_labels.tolist() == test[:, -1].tolist()
    wanted = (test[:, 1:-1] - train[:, 1:-1].mean(axis=0)) / train[:, 1:-1].std(axis=0)
    np.testing.assert_allclose(torch.cat(data.test_features, dim=1).numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert data.categories == {}


def test_the_label_goes_by_two_names_and_files_come_in_two_kinds(tmp_path: Path) -> None:
    header, rows = credit("default payment next month")
    written(tmp_path / "a" / "credit_card" / "credit_card.csv", table(header, rows))
    (tmp_path / "b" / "tabular").mkdir(parents=True)
    columns = {name: [row[k] for row in rows] for k, name in enumerate(credit()[0])}
    pq.write_table(pa.table(columns), tmp_path / "b" / "tabular" / "uci_credit_card.parquet")
    one, other = (load_split("credit_card", folder=tmp_path / name) for name in "ab")
    assert all(torch.equal(x, y) for x, y in zip(one.features, other.features, strict=True))
    assert torch.equal(one.labels, other.labels)


def test_bank_marketing(tmp_path: Path) -> None:
    header, rows = bank()
    written(tmp_path / "bank_marketing" / "bank-additional-full.csv", table(header, rows, ";"))
    data = load_split("bank_marketing", folder=tmp_path)
    assert data.names == ("client", "campaign")
    assert [x.shape[1] for x in data.features] == [7, 12]
    assert data.categories == {"client": (4,) * 6, "campaign": (4,) * 4}
    tested = mark_test_rows(np.arange(ROWS), 0.2)
    yes = np.array([row[-1] == '"yes"' for row in rows])
    assert data.labels.tolist() == yes[~tested].astype(int).tolist()
    jobs = [row[1] for row in rows]
    codes = {word: 1 + k for k, word in enumerate(sorted(set(jobs)))}
    wanted = [codes[word] for word, mask in zip(jobs, tested, strict=True) if not mask]
    assert data.features[0][:, 0].tolist() == wanted
    ages = np.array([row[0] for row in rows], dtype=float)
    scaled = (ages[~tested] - ages[~tested].mean()) / ages[~tested].std()
    np.testing.assert_allclose(data.features[0][:, -1].numpy(), scaled, rtol=1e-4, atol=1e-5)
    assert "duration left out" in data.about


def forest() -> np.ndarray:
    rng = np.random.default_rng(2)
    x = np.zeros((ROWS, 55), dtype=int)
    x[:, :10] = rng.integers(-50, 3000, (ROWS, 10))
    x[:, 10:54] = rng.random((ROWS, 44)) < 0.05
    x[:, 54] = 1 + np.arange(ROWS) % 7
    return x


def test_covtype_as_published_as_libsvm_and_compact(tmp_path: Path) -> None:
    x = forest()
    text = table(None, x.tolist())
    svm = "".join(
        f"{row[-1]} " + " ".join(f"{k + 1}:{v}" for k, v in enumerate(row[:-1]) if v) + "\n" for row in x.tolist()
    )
    written(tmp_path / "a" / "covtype" / "covtype.data.gz", gzip.compress(text.encode()))
    written(tmp_path / "b" / "covtype" / "covtype.bz2", bz2.compress(svm.encode()))
    written(tmp_path / "c" / "covtype" / "covtype", svm)
    (tmp_path / "d" / "tabular").mkdir(parents=True)
    columns = {name: x[:, k].astype(np.int16) for k, name in enumerate((*COVTYPE.fields, "Cover_Type"))}
    pq.write_table(pa.table(columns), tmp_path / "d" / "tabular" / "covtype.parquet")
    first, *others = (load_split("covtype", folder=tmp_path / name) for name in "abcd")
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first.features, other.features, strict=True))
        assert torch.equal(first.labels, other.labels)
    assert first.names == ("terrain", "land")
    assert [part.shape[1] for part in first.features] == [10, 44]
    tested = mark_test_rows(np.arange(ROWS), 0.2)
    assert torch.equal(first.features[1], torch.tensor(x[~tested][:, 10:54], dtype=torch.float32))
    assert first.labels.tolist() == (x[~tested][:, 54] - 1).tolist()
    assert first.features[0].mean(dim=0).abs().max() < 1e-5


def test_a_subset_is_standardised_by_itself(tmp_path: Path) -> None:
    header, rows = credit()
    written(tmp_path / "credit_card" / "UCI_Credit_Card.csv", table(header, rows))
    data = load_split("credit_card", folder=tmp_path, rows=50, test_rows=10, seed=7)
    whole = load_split("credit_card", folder=tmp_path)
    assert abs(int(data.labels.sum()) - 50 * whole.labels.float().mean().item()) < 1
    assert data.features[0].mean(dim=0).abs().max() < 1e-5
    assert "50 training and 10 test rows" in data.about


@pytest.mark.parametrize(
    ("cell", "value", "message"),
    [
        ((120, 3), "", "row 121, column 'EDUCATION' is empty or not a finite number"),
        ((4, 3), "inf", "row 5, column 'EDUCATION' is empty or not a finite number"),
        ((120, 3), "many", "invalid value 'many'"),
        ((120, 24), "7", "row 121, column 'default.payment.next.month' holds '7'; a label is one of 0, 1"),
    ],
)
def test_cells_that_are_refused(tmp_path: Path, cell: tuple[int, int], value: str, message: str) -> None:
    header, rows = credit()
    rows[cell[0]][cell[1]] = value
    written(tmp_path / "credit_card" / "UCI_Credit_Card.csv", table(header, rows))
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        load_split("credit_card", folder=tmp_path)
    assert "UCI_Credit_Card.csv" in str(refused.value)


def test_too_few_rows(tmp_path: Path) -> None:
    header, rows = credit()
    written(tmp_path / "credit_card" / "UCI_Credit_Card.csv", table(header, rows[:1]))
    with pytest.raises(BadInput, match="so few rows that none is left for the test rows"):
        load_split("credit_card", folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is empty"),
        (b"# nothing\n\n", "has no rows"),
        (b"1 1:2\n1 2:3 2:4\n", "line 2: '2:4': expected index:value, indices rising up to 3"),
        (b"1 4:1\n", "line 1: '4:1'"),
        (b"1 1=1\n", "line 1: '1=1'"),
        (b"1 1:x\n", "line 1: could not convert"),
        (b"one 1:1\n", "line 1: could not convert"),
    ],
)
def test_libsvm_files_that_are_refused(tmp_path: Path, text: bytes, message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        read_libsvm(written(tmp_path / "x", text), 3)


def test_libsvm(tmp_path: Path) -> None:
    text = b"-1 2:0.5 # a note\n\n+1 1:1e2 3:-4\n2.5\n"
    for name, content in (("x", text), ("x.gz", gzip.compress(text)), ("x.bz2", bz2.compress(text))):
        x, labels = read_libsvm(written(tmp_path / name, content), 3)
        assert x.tolist() == [[0, 0.5, 0], [100, 0, -4], [0, 0, 0]]
        assert labels.tolist() == [-1, 1, 2.5]
    with pytest.raises(BadInput, match=r"x.bz2: damaged or cut off"):
        read_libsvm(written(tmp_path / "x.bz2", bz2.compress(text)[:-6]), 3)
