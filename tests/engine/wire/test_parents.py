"""A column given its parent: exact, smaller where columns depend on one another, left alone where they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.base.errors import Malformed, Truncated, WireError
from thinwire.engine.compress.message import Array
from thinwire.engine.wire import entropy, parents
from thinwire.engine.wire.buffers import BodyReader, BodyWriter
from thinwire.engine.wire.entropy import Coding, read_integers, write_integers
from thinwire.engine.wire.parents import Links, plan_parents, read_parents, span_tree

ANYWAY = (0, 0)  # bytes otherwise: any first look seems good enough


def write(table: Array) -> bytes:
    out = BodyWriter()
    write_integers(out, table.ravel(), "small", table.shape[1])
    return out.body()


def read(body: bytes, table: Array) -> Array:
    reader = BodyReader(body, 1 << 20)
    values = read_integers(reader, table.size, -(2**31), 2**31)
    reader.finish()
    return values.reshape(table.shape)


def draw_dependent(rng: np.random.Generator, rows: int, width: int, levels: int) -> Array:
    """Each column follows a random earlier one, at its own distance, with noise."""
    table = np.empty((rows, width), np.int64)
    table[:, 0] = rng.integers(0, levels, rows)
    for column in range(1, width):
        parent = table[:, rng.integers(0, column)] + rng.integers(-5, 5)
        noise = rng.integers(0, levels, rows)
        table[:, column] = np.where(rng.random(rows) < rng.random(), parent, noise)
    return table


@given(st.integers(0, 2**32), st.integers(1, 2500), st.integers(2, 9), st.sampled_from([2, 3, 9, 40, 120]))
@settings(max_examples=60)
def test_any_forest_is_exact(seed: int, rows: int, width: int, levels: int) -> None:
    table = draw_dependent(np.random.default_rng(seed), rows, width, levels)
    assert np.array_equal(read(write(table), table), table)
    offsets = table - table.min()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parents, "_LEAST_ROWS", 1)
        forest = plan_parents(offsets, *ANYWAY)
    if forest is not None:  # whether or not it would be chosen
        reader = BodyReader(forest.write(), 1 << 20)
        assert np.array_equal(read_parents(reader, table.size, int(offsets.max())), offsets.ravel())
        reader.finish()


def test_dependent_columns_take_their_joint_entropy() -> None:
    rng = np.random.default_rng(0)
    table = np.cumsum(rng.integers(0, 3, (5000, 12)), axis=1)
    body = write(table)
    assert body[0] == Coding.PARENTS
    assert 8 * len(body) <= 1.03 * table.size * np.log2(3) + 8 * 300
    plain = entropy._columns(table.ravel(), int(table.max()), 12).write()
    assert len(body) < 0.6 * len(plain)


@pytest.mark.parametrize("rows", [2000, 20_000])
def test_independent_columns_are_left_alone(rows: int) -> None:
    rng = np.random.default_rng(1)
    table = np.rint(rng.normal(0, [0.4, 1, 2, 3, 0.6], (rows, 5))).astype(int)
    assert write(table)[0] == Coding.COLUMNS
    assert plan_parents(table - table.min(), 1000, 1000) is None


def test_columns_of_up_to_256_levels_have_a_table_each() -> None:
    rng = np.random.default_rng(2)
    table = np.rint(rng.normal(0, [0.4, 1, 30], (4000, 3))).astype(int)
    assert 64 < np.ptp(table) < 256
    body = write(table)
    assert body[0] == Coding.COLUMNS
    assert np.array_equal(read(body, table), table)


def test_parents_are_sought_in_wide_tables_too() -> None:
    rng = np.random.default_rng(3)
    table = np.repeat(rng.integers(0, 4, (2000, 75)), 2, axis=1)
    table[:, 1::2] ^= rng.random((2000, 75)) < 0.05
    forest = plan_parents(table, *ANYWAY)
    assert forest is not None
    assert np.count_nonzero(forest.links.parents != np.arange(150)) == 75
    assert abs(forest.size - len(forest.write())) < 40


def test_rare_values_of_a_parent_share_tables() -> None:
    rng = np.random.default_rng(4)
    first = np.rint(rng.normal(60, 12, 4000)).astype(int)
    table = np.stack([first, first // 16 + (rng.random(4000) < 0.1)], axis=1)
    forest = plan_parents(table, *ANYWAY)
    assert forest is not None
    assert forest.links.shifts.max() > 0


def test_a_spanning_tree_has_the_most_weight() -> None:
    weights = np.array([[0, 1, 5, 0], [1, 0, 4, 0], [5, 4, 0, 0], [0, 0, 0, 0.0]])
    assert span_tree(weights).tolist() == [0, 2, 0, 3]


# Bodies that are wrong in one place: two columns of 0 and 1, the second given the first -----------------

WIDTH, CUT, LOWS, SPANS, PARENTS, SHIFTS = b"\x02", b"\x04", b"\0\0", b"\1\1", b"\0\0", b"\0\0"
ALL_ALIKE = bytes([0] * 16 + [16])  # every entry of a table is the largest


def body(*fields: bytes, occurs: bytes = ALL_ALIKE, words: bytes = b"\0") -> bytes:
    standard = [WIDTH, CUT, LOWS, SPANS, PARENTS, SHIFTS]
    return b"".join([*fields, *standard[len(fields) :], occurs, words])


@pytest.mark.parametrize(
    ("payload", "error", "message"),
    [
        (body(b"\x01"), Malformed, "8 integers up to 1 in 1 columns"),
        (body(b"\x03"), Malformed, "8 integers up to 1 in 3 columns"),
        (body(b"\x09"), Malformed, "the number of columns is 9"),
        (body(WIDTH, b"\x05"), Malformed, "weights that lack 5 bits"),
        (body(WIDTH, CUT, b"\0\1"), Malformed, "above the span 1"),
        (body(WIDTH, CUT, LOWS, b"\1\2"), Malformed, "above the span 1"),
        (body(WIDTH, CUT, LOWS, SPANS, b"\0\2"), Malformed, "beyond the last column"),
        (body(WIDTH, CUT, LOWS, SPANS, b"\1\0"), Malformed, "their own ancestors"),
        (body(WIDTH, CUT, LOWS, SPANS, PARENTS, b"\0\x08"), Malformed, "shifted by more than 7"),
        (body(occurs=bytes(17)), Malformed, "no symbol occurs"),
        (body(occurs=b"\1" + bytes(16)), Malformed, "no symbol occurs"),
        (body(words=b"\1" + bytes(4)), Malformed, "end with an empty one"),
        (body(words=b"\3" + b"\xff" * 12), Malformed, "do not end with the last symbol"),
        (body(words=b"\3" + b"\xff" * 11), Truncated, "12 bytes are announced, 11 are left"),
    ],
)
def test_wrong_parents_are_named(payload: bytes, error: type[WireError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_parents(BodyReader(payload, 100), 8, 1)


def test_tables_too_large_are_refused_before_they_are_made() -> None:
    linked = bytes([0, *range(255)])
    payload = body(b"\x80\x02", CUT, bytes(256), b"\xff" * 256, linked, bytes(256))
    with pytest.raises(Malformed, match="tables of 16711936 symbols, 262144 at most"):
        read_parents(BodyReader(payload, 1 << 20), 256, 255)


def test_a_long_chain_is_followed_and_a_ring_is_refused() -> None:
    chain = np.array([*range(1, 256), 255], np.uint8)
    zeros = np.zeros(256, np.uint8)
    assert Links(zeros, zeros, chain, zeros).order() == list(range(255, -1, -1))
    chain[-1] = 7
    with pytest.raises(Malformed, match="their own ancestors"):
        Links(zeros, zeros, chain, zeros).order()


def test_every_truncation_and_every_missing_word_is_noticed() -> None:
    table = np.cumsum(np.random.default_rng(5).random((2000, 3)) < 0.1, axis=1)
    whole = write(table)
    assert whole[0] == Coding.PARENTS
    for cut in range(len(whole)):
        with pytest.raises(WireError):
            read(whole[:cut], table)
    words = 3 + 1 + 1 + 4 * 3 + parents._count_entries(whole[4])  # where their number stands
    assert whole[words] < 0x80  # in one byte
    with pytest.raises(Malformed):
        read(whole[:words] + bytes([whole[words] - 1]) + whole[words + 1 : -4], table)
