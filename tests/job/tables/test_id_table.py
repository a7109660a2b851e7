"""Ids of many rows: looked up, listed and compared without a string for each of them in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from thinwire.align import Ids, normalize_ids
from thinwire.align.ids import collect_ids
from thinwire.base.errors import BadIds
from thinwire.engine.streams import Storage
from thinwire.job.id_table import (
    IdIndex,
    IdTable,
    IdTexts,
    OutsideAlignment,
    UnknownId,
    UnmatchedRows,
    compare_id_columns,
    compare_ids,
)


def made(*numbers: range) -> Ids:
    return normalize_ids([f"é{number}" for some in numbers for number in some])


def test_texts_are_those_of_a_list() -> None:
    first, second, rows = made(range(50)), made(range(100, 130)), np.array([29, 3, 7])
    texts = IdTexts.join([IdTexts.of(first), IdTexts.of(second, rows)])
    listed = [*first.decode(), *(second.decode()[row] for row in rows)]
    assert (len(texts), list(texts), texts[:], texts[48:52]) == (53, listed, listed, listed[48:52])
    assert (texts[0], texts[-1], texts[50]) == (listed[0], listed[-1], listed[50])
    assert texts.take(np.array([52, 0, 50])) == [listed[52], listed[0], listed[50]]
    with pytest.raises(IndexError):
        texts[53]
    assert len(IdTexts(())) == 0


def hash_badly(texts: Sequence[str]) -> NDArray[np.uint64]:
    return np.array([len(text) % 2 for text in texts], np.uint64)


@pytest.mark.parametrize("found_by", ["dictionary", "hash", "hashes that collide"])
def test_ids_are_found_by_their_texts(found_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if found_by != "dictionary":
        monkeypatch.setattr("thinwire.job.id_table._FEW", 0)
    if found_by == "hashes that collide":
        monkeypatch.setattr("thinwire.job.id_table._hash", hash_badly)
    held = made(range(40))
    table = IdTable(IdTexts.of(held, np.arange(30)[::-1]), others=frozenset({"elsewhere"}), held=(held,))
    assert table.rows(["é29", " é0 "]).tolist() == [0, 29]
    assert table.texts(np.array([29, 0])) == ["é0", "é29"]
    assert table.find_outside(["é3", "é35", "elsewhere", "é99"]) == ["é35", "elsewhere"]
    with pytest.raises(OutsideAlignment, match="'é35'"):
        table.rows(["é1", "é35"])
    with pytest.raises(UnknownId, match="'é99'"):
        table.rows(["é1", "é99"])
    assert not IdIndex(table.ids).has_repeats()
    assert IdIndex([*table.ids, "é7"]).has_repeats()
    assert not IdIndex([]).has_repeats()


def test_columns_are_compared_in_parts_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {
        "bank": made(range(900)),
        "shop": made(range(400, 1_300)),
        "post": made(range(100), range(500, 800), range(2_000, 2_010)),
    }
    expected = compare_ids({name: ids.decode() for name, ids in held.items()})
    assert compare_id_columns(held) == expected
    monkeypatch.setattr("thinwire.job.id_table._COMPARED", 64)
    found = compare_id_columns(held)
    assert found == expected
    assert [list(one.missing_at) for one in found.values()] == [list(one.missing_at) for one in expected.values()]
    assert found["post"] == UnmatchedRows(110, 410, {"bank": 10, "shop": 110}, 10)


def test_no_string_is_kept_for_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 ids of two parties as Python's sets take 10 MB."""
    monkeypatch.setattr("thinwire.job.id_table._COMPARED", 1_000)
    monkeypatch.setattr("thinwire.job.id_table._FEW", 1_000)
    monkeypatch.setattr("thinwire.align.ids._CHUNK", 1_000)
    held = {"bank": made(range(30_000)), "shop": made(range(10, 30_010))}
    tracemalloc.start()
    try:
        compare_id_columns(held)
        table = IdTable(IdTexts.of(held["bank"]))
        table.rows(["é7"])
        assert tracemalloc.get_traced_memory()[1] < 40 * 30_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("limit", [0, 200, 1 << 20], ids=["all in files", "some at a time", "in memory"])
def test_ids_of_a_large_column_are_the_same_in_files(limit: int, tmp_path: Path) -> None:
    chunks = [["a1", "b"], ["plain"] * 0, [" e\u0301 ", "x y"], [f"row{k}" for k in range(300)]]
    column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks])
    plain, found = normalize_ids(column), collect_ids(column, "ids", Storage(limit, tmp_path))
    assert found.decode() == plain.decode() == ["a1", "b", "é", "x y", *chunks[3]]
    assert (found.digest(), len(found)) == (plain.digest(), len(plain))
    rows = np.array([303, 0, 2])
    assert found.texts(rows) == plain.texts(rows)
    assert list(tmp_path.iterdir()) == []  # files without a name
    whole = collect_ids(pa.chunked_array([[7, 8], [9]]), "ids", Storage(limit, tmp_path))
    assert whole.decode() == ["7", "8", "9"]


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_what_is_wrong_with_a_column_is_said_with_its_rows(limit: int, tmp_path: Path) -> None:
    room = Storage(limit, tmp_path)
    with pytest.raises(BadIds, match="2 rows have no id: rows 2, 4"):
        collect_ids(pa.chunked_array([["a", None], ["b", " "]]), "ids", room)
    with pytest.raises(BadIds, match="there are no ids"):
        collect_ids(pa.chunked_array([pa.array([], pa.string())]), "ids", room)
    with pytest.raises(BadIds, match="row 3 repeats the id of row 1"):
        collect_ids(pa.chunked_array([["a", "b"], ["a "]]), "ids", room)


def test_ids_of_an_encrypted_run_stay_in_memory(tmp_path: Path) -> None:
    column = pa.chunked_array([[f"row{k}" for k in range(300)]])
    assert len(collect_ids(column, "ids", Storage(0, None, spills=False))) == 300
