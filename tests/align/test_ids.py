"""Ids as they are compared, and those that are refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.align.ids import LONGEST_ID, Ids, normalize_ids
from thinwire.base.errors import BadInput

COMPOSED, APART = "Zo\u00eb", "Zoe\u0308"


def texts(ids: Ids) -> list[str]:
    return [text.decode() for text in ids.texts(np.arange(len(ids)))]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("7", "7"),
        ("007", "007"),
        (7, "7"),
        (-7, "-7"),
        (10**30, str(10**30)),
        (np.int32(7), "7"),
        (np.uint64(2**64 - 1), str(2**64 - 1)),
        (b"7", "7"),
        (APART.encode(), COMPOSED),
        (COMPOSED, COMPOSED),
        (APART, COMPOSED),
        (" \t\u00a0\u3000Ann Lee \r\n", "Ann Lee"),
        ("a\x00b", "a\x00b"),
        (np.str_("x"), "x"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, 2), "2024-02-29 01:02:00"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        ("x" * LONGEST_ID, "x" * LONGEST_ID),
    ],
)
def test_an_id_counts_as_its_text(value: Any, text: str) -> None:
    assert texts(normalize_ids([value])) == [text]


@pytest.mark.parametrize(
    "column",
    [
        [3, 1, 2],
        (3, 1, 2),
        iter([3, 1, 2]),
        np.array([3, 1, 2], np.int16),
        np.array(["3", "1 ", " 2"]),
        np.array([b"3", b"1", b"2"]),
        np.array(["3", 1, 2], dtype=object),
        pa.array([3, 1, 2]),
        pa.chunked_array([["3"], ["1", "2"]]),
    ],
    ids=lambda column: type(column).__name__,
)
def test_columns_of_all_sorts(column: Iterable[Any]) -> None:
    assert texts(normalize_ids(column)) == ["3", "1", "2"]


def test_dates_of_numpy_are_dates() -> None:
    days = np.array(["2024-02-29", "2024-03-01"], "M8[D]")
    assert texts(normalize_ids(days)) == texts(normalize_ids(days.tolist())) == ["2024-02-29", "2024-03-01"]
    for unit in ("s", "us", "ns"):
        assert texts(normalize_ids(days.astype(f"M8[{unit}]"))) == ["2024-02-29 00:00:00", "2024-03-01 00:00:00"]
    with pytest.raises(BadInput, match="1 row has no id: row 2"):
        normalize_ids(np.array(["2024-02-29", "NaT"], "M8[D]"))


class NAType:  # as pandas names its own
    pass


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([], "there are no ids"),
        (
            ["a", "", "b", None, "  ", float("nan")],
            r"4 rows have no id: rows 2, 4, 5, 6; give every row an id, or drop it",
        ),
        (["a", None], "1 row has no id: row 2;"),
        ([None] * 9, r"9 rows have no id: rows 1, 2, 3, 4, 5 \.\.\."),
        (["a", NAType()], "1 row has no id: row 2"),
        (pa.array([1, None]), "1 row has no id: row 2"),
        (
            np.array([1.0, np.nan]),
            "row 1 has an id of type float; ids must be text or integers; read the column as text",
        ),
        ([1, 2.5], "row 2 has an id of type float"),
        ([True], "row 1 has an id of type bool"),
        ([np.bool_(True)], "row 1 has an id of type bool"),
        ([["a"]], "row 1 has an id of type list"),
        (["a", "b", "a"], "1 id is repeated: row 3 repeats the id of row 1; every row needs a unique id"),
        (
            [7, "7", b"7 ", "8", np.int8(7)],
            "3 ids are repeated: row 2 repeats the id of row 1, row 3 repeats the id of row 1, row 5",
        ),
        ([COMPOSED, APART], "1 id is repeated: row 2 repeats the id of row 1"),
        (["a", "a "], "1 id is repeated"),
        (["a"] * 9, r"8 ids are repeated: .*row 6 repeats the id of row 1 and 3 more"),
        (["a", "\ud800"], "row 2 has an id that is not valid Unicode"),
        (["a", b"\xff"], "row 2 has bytes that are not valid UTF-8"),
        (["a", "x" * 10_000_000], "the id of row 2 has 10000000 bytes; at most 1048576 are allowed"),
        ("abc", "a single string is not a list of ids"),
        (5, "int is not a list of ids"),
        (np.zeros((2, 2), int), r"the array has shape \(2, 2\); ids must be one column"),
    ],
)
def test_what_is_refused_says_which_row_and_why(values: Any, says: str) -> None:
    with pytest.raises(BadInput, match=f"^ids of 'bank': {says}"):
        normalize_ids(values, "ids of 'bank'")


def test_what_looks_alike_is_not_the_same() -> None:
    alike = ["007", "7", "7.0", "a", "A", "\ufb01", "fi", "x y", "xy"]
    assert texts(normalize_ids(alike)) == alike


@given(st.lists(st.text(min_size=1).filter(str.strip), unique_by=lambda text: text.casefold(), min_size=1), st.data())
def test_rows_are_found_in_any_order(values: list[str], data: st.DataObject) -> None:
    try:
        ids = normalize_ids(values)
    except BadInput:
        return  # the same id after normalisation
    rows = np.array(data.draw(st.permutations(range(len(values)))))
    every = ids.texts(np.arange(len(values)))
    assert ids.texts(rows) == [every[row] for row in rows]
    again = normalize_ids(texts(ids))
    assert again.digest() == ids.digest()
    assert texts(again) == texts(ids)


def test_the_digest_knows_where_an_id_ends_and_which_comes_first() -> None:
    columns = [["ab", "c"], ["a", "bc"], ["c", "ab"], ["ab", "c", "d"], ["abc"]]
    assert len({normalize_ids(column).digest() for column in columns}) == len(columns)
    assert normalize_ids(["ab ", "c"]).digest() == normalize_ids(["ab", "c"]).digest()


def test_ways_of_writing_that_others_may_not_have() -> None:
    assert normalize_ids(["7", "x"]).ways_of_writing() == ""
    assert normalize_ids(["007", "0", "08x"]).ways_of_writing() == "1 of 3 begin with a zero"
    ways = normalize_ids(["A", "b", "7.0", "07"]).ways_of_writing()
    assert ways.startswith("1 of 4 begin with a zero; 1 of 4 hold capital letters; 1 of 4 end with '.0'")


def test_a_plain_column_of_arrow_is_read_as_a_list_is() -> None:
    """Straight from its memory, wherever a piece of it begins."""
    texts = pa.chunked_array([pa.array(["zero", "a", "b-7"])[1:], pa.array([], pa.string()), pa.array(["x" * 300])])
    numbers = pa.chunked_array([pa.array([5, 17, -3])[1:]])
    for column in (texts, numbers):
        ours, theirs = normalize_ids(column), normalize_ids(column.to_pylist())
        assert ours.decode() == theirs.decode()
        assert ours.digest() == theirs.digest()
    odd = pa.chunked_array([["a"], [" b "], ["Zürich"]])
    assert normalize_ids(odd).decode() == ["a", "b", "Zürich"]
    with pytest.raises(BadInput, match="row 2 repeats the id of row 1"):
        normalize_ids(pa.chunked_array([["a"], ["a"]]))
