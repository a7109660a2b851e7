"""Row ids: one digest of their text in order, as it is compared; rows that share one are refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from job.small import JOB, ROWS, write_job
from thinwire.align import normalize_ids
from thinwire.base.errors import BadInput
from thinwire.engine.streams import Storage
from thinwire.job.job_loader import load_job
from thinwire.job.party_view import read_party_view
from thinwire.job.row_selection import read_ids
from thinwire.job.schema import ColumnSource

IDS = ["7", "007", "70 7", "é", "a,b"]
WRITTEN = [" 7", "007", "70 7\u3000", "e\u0301", "a,b "]  # the same ids, as somebody else writes them


def digest_of(ids: Sequence[str | None]) -> str:
    return normalize_ids(ids).digest()


def read_digest(file: Path, **place: Any) -> str:
    return read_ids(file, ColumnSource(file=str(file), **place), Storage()).digest()


def test_the_digest_is_over_lengths_and_utf_8_text() -> None:
    data = b"".join(len(text.encode()).to_bytes(8, "big") + text.encode() for text in IDS)
    assert digest_of(IDS) == digest_of(WRITTEN) == hashlib.sha256(data).hexdigest()
    assert digest_of(["ab", "c"]) != digest_of(["a", "bc"])
    assert digest_of(["a", "b"]) != digest_of(["b", "a"])


def test_every_kind_of_file_gives_the_same_digest(tmp_path: Path) -> None:
    quoted = "\n".join(f'"{text}",1' for text in IDS)
    (tmp_path / "a.csv").write_text(f"id,x\n{quoted}\n")
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbf" + f"x;id\n{chr(10).join(f'1;{t}' for t in IDS)}\n".encode())
    pa.parquet.write_table(pa.table({"id": IDS}), tmp_path / "a.parquet")
    pa.parquet.write_table(pa.table({"id": pa.array(IDS).dictionary_encode()}), tmp_path / "b.parquet")
    np.savez(tmp_path / "a.npz", id=np.array(IDS))
    expected = digest_of(IDS)
    assert read_digest(tmp_path / "a.csv", column="id") == expected
    assert read_digest(tmp_path / "b.csv", column="id", delimiter=";") == expected
    assert read_digest(tmp_path / "a.parquet", column="id") == expected
    assert read_digest(tmp_path / "b.parquet", column="id") == expected
    assert read_digest(tmp_path / "a.npz", key="id") == expected


def test_whole_numbers_are_their_digits(tmp_path: Path) -> None:
    numbers = [3, 1, 2]
    np.savez(tmp_path / "a.npz", id=numbers)
    pa.parquet.write_table(pa.table({"id": numbers}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("id\n3\n1\n2\n")
    for file, place in (("a.npz", {"key": "id"}), ("a.parquet", {"column": "id"}), ("a.csv", {"column": "id"})):
        assert read_digest(tmp_path / file, **place) == digest_of(["3", "1", "2"])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a", "", "c"], "1 row has no id: row 2; give every row an id, or drop it"),
        ([None, "b", ""], "2 rows have no id: rows 1, 3; give every row an id"),
        ([""] * 9, "9 rows have no id: rows 1, 2, 3, 4, 5 ...;"),
        (["a", "b", "a"], "1 id is repeated: row 3 repeats the id of row 1; every row needs a unique id"),
        (["a"] * 9, "8 ids are repeated: row 2 repeats the id of row 1, row 3 repeats the id of row 1"),
        (["a"] * 9, "row 6 repeats the id of row 1 and 3 more;"),
        (["a", "\ud800"], "row 2 has an id that is not valid Unicode"),
    ],
)
def test_rows_that_cannot_be_told_apart(ids: list[str | None], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        digest_of(ids)


def test_files_without_ids(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,2\n,4\n")
    (tmp_path / "ragged.csv").write_text("id,x\n1,2\n1,2,3\n")
    (tmp_path / "a.txt").write_text("id\n1\n")
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 nothing")
    np.savez(tmp_path / "a.npz", id=np.zeros(3), x=np.array([{}, {}], dtype=object))
    with (tmp_path / "single.npz").open("wb") as opened:
        np.save(opened, np.zeros(3))
    pa.parquet.write_table(pa.table({"id": [1.5, 2.5], "n": ["a", None]}), tmp_path / "a.parquet")
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("no.csv", {"column": "id"}, "no.csv does not exist"),
        ("a.csv", {"column": "idd"}, "there is no column 'idd'; the columns are 'id', 'x'; did you mean 'id'?"),
        ("a.csv", {"column": "id"}, "a.csv: 1 row has no id: row 2"),
        ("a.csv", {"key": "id"}, "'key' does not fit .csv: keys are for NPZ files"),
        ("a.csv", {}, 'name the column that holds the ids: column = "..."'),
        ("ragged.csv", {"column": "id"}, "ragged.csv: line 3 has 3 columns, but the header has 2"),
        ("a.txt", {"column": "id"}, "cannot read '.txt'"),
        ("a.npz", {"column": "id"}, "'column' does not fit .npz"),
        ("a.npz", {}, 'name the array to read: key = "..."'),
        ("a.npz", {"key": "i"}, "there is no 'i'; the file holds 'id', 'x'"),
        ("a.npz", {"key": "id"}, "'id' holds float64 of shape (3,); ids must be text or integers, [N]"),
        ("a.npz", {"key": "x"}, "'x' is an array of Python objects, which thinwire never loads"),
        ("bad.npz", {"key": "x"}, "not an NPZ file"),
        ("single.npz", {"key": "x"}, "a single array, not an NPZ file"),
        ("a.parquet", {"column": "id"}, "column 'id' holds double; ids must be text or integers"),
        ("a.parquet", {"column": "n"}, "a.parquet: 1 row has no id: row 2"),
        ("a.parquet", {"column": "z"}, "there is no column 'z'; the columns are 'id', 'n'"),
    ]
    for file, place, message in wrong:
        with pytest.raises(BadInput, match=re.escape(message)):
            read_digest(tmp_path / file, **place)


def test_spaces_and_accents_do_not_part_a_partys_ids_from_the_others(tmp_path: Path) -> None:
    """What the simulator trains on is what the parties agree to be the same rows."""
    plain = [f"Zo\u00eb {row}" for row in range(ROWS)]
    (tmp_path / "bank_ids.csv").write_text("person\n" + "".join(f"{one}\n" for one in plain))
    (tmp_path / "shop_ids.csv").write_text("person\n" + "".join(f"Zoe\u0308 {row}  \n" for row in range(ROWS)))
    text = JOB
    for name in ("bank", "shop"):
        ids = f'ids = {{ file = "{name}_ids.csv", column = "person" }}'
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\n{ids}\n')
    job = write_job(tmp_path, text)
    assert load_job(job).rows == ROWS
    bank, shop = (read_party_view(job, name).row_ids() for name in ("bank", "shop"))
    assert bank == shop
    assert bank is not None
    assert bank.digest == normalize_ids(plain).digest()
