"""Tables of integers whose columns depend on one another: each column is coded given one other, its parent.

The sender links columns by a maximum spanning tree of their mutual information (Chow and Liu, 1968), found on a
sample of rows, and then counts on all rows what each link is worth with its tables. A column given its parent has a
table for each of the parent's values, or for each 2^shift of them; a column without a parent has one. The tables are
many, so their weight bytes lose some of their low bits and are coded as the rows are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from thinwire.base.errors import Malformed
from thinwire.engine.compress.message import Array
from thinwire.engine.wire.bits import bits_for
from thinwire.engine.wire.buffers import BodyReader, BodyWriter
from thinwire.engine.wire.tables import MOST_WEIGHT, RunReader, count_bits, encode_runs, weight_bytes

_MOST_COLUMNS = 256
_MOST_SYMBOLS = 256  # of a column
_MOST_ENTRIES = 1 << 18  # of all tables
_MOST_CUT = 4  # low bits that a weight byte may lose: all of its mantissa

_LEAST_ROWS = 2000  # below, the first look alone would take more than a fifth of the time
_GLANCE_ROWS, _GLANCE_COLUMNS = 512, 12  # for a first look, which must cost next to nothing
_SAMPLE_ROWS = 1024
_BLOCK = 64  # neighbouring columns among which parents are sought
_WORTH = 0.04  # of the size otherwise, that parents must seem to save at the first look
_LEAST_TABLES = 64  # bits that the tables of a column take, at the least
_MOST_TABLES = 64  # of a column
_ENTRY_BITS = (0.5, 4.0)  # roughly, of a symbol in a table: that does not occur, that does


@dataclass(frozen=True)
class Links:
    """What the receiver is told of the columns before their tables, a byte each.

    A column that is its own parent has none.
    """

    lows: Array
    spans: Array
    parents: Array
    shifts: Array  # of the parent's values

    def shape(self, column: int) -> tuple[int, int]:
        """How many tables a column has, and how many symbols each."""
        tables = (int(self.spans[self.parents[column]]) >> int(self.shifts[column])) + 1
        return (1 if self.parents[column] == column else tables), int(self.spans[column]) + 1

    def order(self) -> list[int]:
        """Parents first; those that are known at the same time, by their number."""
        known = self.parents == np.arange(self.parents.size)
        found: list[int] = np.flatnonzero(known).tolist()
        while len(found) < known.size:
            new = np.flatnonzero(~known & known[self.parents])
            if not new.size:
                raise Malformed("columns are their own ancestors")
            known[new] = True
            found += new.tolist()
        return found

    def group(self, column: int, columns: Array) -> tuple[Array, Array]:
        """The rows in the order of the tables that code them given the column's parent, and how many each codes."""
        which = columns[self.parents[column]] >> self.shifts[column]
        return np.argsort(which, kind="stable"), np.bincount(which, minlength=self.shape(column)[0])


# Writing ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forest:
    """Columns [width, rows] that start at zero, how they are linked, and how often symbols occur in their tables."""

    columns: Array
    links: Links
    counts: Array  # [tables of all columns, most symbols of any]

    @cached_property
    def _cut(self) -> tuple[float, int]:
        """The size in bytes, and how many low bits of the weight bytes are not worth theirs."""
        weights = weight_bytes(self.counts)
        return min((self._measure(weights, cut), cut) for cut in range(_MOST_CUT + 1))

    @property
    def size(self) -> int:
        return int(self._cut[0])

    def _measure(self, weights: Array, cut: int) -> float:
        entries = _shorten(weights, cut)
        occurs = np.bincount(entries[self._real])[None]
        bits = count_bits(occurs, weight_bytes(occurs)) + count_bits(self.counts, _restore(entries, cut))
        return bits / 8 + _count_entries(cut) + 4 * len(self.columns) + 12

    @cached_property
    def _real(self) -> Array:
        """Which of the counts are of symbols that their column has."""
        tables, symbols = np.transpose([self.links.shape(column) for column in range(len(self.columns))])
        real: Array = np.arange(self.counts.shape[1]) < np.repeat(symbols, tables)[:, None]
        return real

    def write(self) -> bytes:
        cut, links = self._cut[1], self.links
        entries = _shorten(weight_bytes(self.counts), cut)
        flat = entries[self._real]
        occurs = weight_bytes(np.bincount(flat, minlength=_count_entries(cut)))
        out = BodyWriter()
        out.whole(len(self.columns))
        out.byte(cut)
        for field in (links.lows, links.spans, links.parents, links.shifts):
            out.raw(field.tobytes())
        out.raw(occurs.tobytes())
        encode_runs(out, [(flat, occurs), *self._runs(_restore(entries, cut))])
        return out.body()

    def _runs(self, weights: Array) -> Iterator[tuple[Array, Array]]:
        """The rows that each table codes, and the table, in the order in which they are read."""
        links = self.links
        shapes = [links.shape(column) for column in range(len(self.columns))]
        tables = np.split(weights, np.cumsum([count for count, _ in shapes]))
        for column in links.order():
            parts = [self.columns[column]]
            if links.parents[column] != column:
                rows, counts = links.group(column, self.columns)
                parts = np.split(parts[0][rows], np.cumsum(counts)[:-1])
            for part, table in zip(parts, tables[column], strict=True):
                if part.size:
                    yield part, table[: shapes[column][1]]


def _count_entries(cut: int) -> int:
    """How many numbers an entry of a table may be: 0, or one more than what is left of a weight byte less 1."""
    return (MOST_WEIGHT - 1 >> cut) + 2


def _shorten(weights: Array, cut: int) -> Array:
    rounded = 1 + (weights.astype(np.int64) - 1 + (1 << cut >> 1) >> cut)
    return np.where(weights > 0, rounded, 0)


def _restore(entries: Array, cut: int) -> Array:
    return np.where(entries > 0, 1 + (entries.astype(np.int64) - 1 << cut), 0).astype(np.uint8)


# Choosing ---------------------------------------------------------------------------------------------


def plan_parents(table: Array, plain: int, least: int) -> Forest | None:
    """The best parents found for the columns of [rows, width] integers from 0 to 255; nothing where none would pay.

    Without parents the columns take `plain` bytes, by the best of all other codings `least`.
    """
    rows, width = table.shape
    if rows < _LEAST_ROWS or not 2 <= width <= _MOST_COLUMNS:
        return None
    if guess_savings(table) < max(_WORTH * least, (plain - least) / 2):  # a first look sees about half
        return None
    lows = table.min(axis=0)
    columns = np.ascontiguousarray((table - lows).T.astype(np.uint8, copy=False))
    parents = np.arange(width)
    sample = _take_rows(table, _SAMPLE_ROWS)
    for first in range(0, width, _BLOCK):
        block = slice(first, min(first + _BLOCK, width))
        parents[block] = first + span_tree(estimate_information(sample[:, block], [1 / 4, 1 / 2, 3 / 4]))
    return _weigh(columns, lows, parents)


def _take_rows(table: Array, most: int) -> Array:
    return table[:: max(1, table.shape[0] // most)][:most]


def guess_savings(table: Array) -> float:
    """Bytes that parents might save, by a first look at few rows and columns."""
    rows, width = table.shape
    sample = _take_rows(table, _GLANCE_ROWS if rows > 16 * _GLANCE_ROWS else _GLANCE_ROWS // 2)
    if width > _GLANCE_COLUMNS:
        step = (width - 4) // (_GLANCE_COLUMNS // 4 - 1)
        sample = sample[:, [first + more for first in range(0, width - 3, step) for more in range(4)]]
    saved = estimate_information(sample, [1 / 2]).max(axis=1) * rows - _LEAST_TABLES
    return float(saved[saved > 0].sum() / saved.size * width / 8)


def estimate_information(sample: Array, quantiles: Sequence[float]) -> Array:
    """Bits that each column tells of each other [width, width], less what chance alone tells.

    What counts of a value is whether it lies below, at or above the quantiles of its column.
    """
    rows, width = sample.shape
    marks = _mark(sample, quantiles)
    ranks = marks.shape[1] // width
    joint = (marks.T @ marks).astype(np.intp)
    alone = joint.diagonal().reshape(ranks, width)
    terms = _terms(rows)
    apart = terms[alone].sum(axis=0)
    together = terms[joint].reshape(ranks, width, ranks, width).sum(axis=(0, 2))
    freedom = (alone > 0).sum(axis=0) - 1
    chance = freedom * (0.75 / np.log(2)) * freedom[:, None]  # one and a half times what is to be expected
    information: Array = (terms[rows] + together - apart - apart[:, None] - chance) / rows
    information.flat[:: width + 1] = 0
    return information


def _mark(sample: Array, quantiles: Sequence[float]) -> Array:
    """[rows, ranks * width]: 1 at each value's rank among the quantiles of its column, else 0."""
    places = [int(share * len(sample)) for share in quantiles]
    cuts = np.partition(sample, places, axis=0)[places]
    ranks = sum((sample > cut).view(np.uint8) + (sample >= cut).view(np.uint8) for cut in cuts)
    marks = np.concatenate([ranks == rank for rank in range(2 * len(cuts) + 1)], axis=1)
    return marks.astype(np.float32)


@lru_cache(maxsize=8)
def _terms(most: int) -> Array:
    """n log2 n for n from 0 to `most`."""
    numbers = np.arange(most + 1)
    terms: Array = numbers * np.log2(np.maximum(numbers, 1))
    return terms


def span_tree(weights: Array) -> Array:
    """Each place's parent in a maximum spanning tree (Prim, 1957) of positive weights; roots are their own."""
    parents = np.arange(len(weights))
    outside = np.ones(len(weights), bool)
    nearest, reach = parents.copy(), np.zeros(len(weights))
    for _ in parents:
        place = int(np.where(outside, reach, -1).argmax())
        outside[place] = False
        parents[place] = nearest[place] if reach[place] > 0 else place
        closer = outside & (weights[place] > reach)
        nearest[closer], reach[closer] = place, weights[place][closer]
    return parents


def _weigh(columns: Array, lows: Array, parents: Array) -> Forest | None:
    """The forest of those parents that pay on all rows, each with the shift that is best."""
    spans = columns.max(axis=1).astype(np.intp)
    parents, shifts = parents.copy(), np.zeros_like(parents)
    kept: list[Array] = []
    for column, parent in enumerate(parents.tolist()):
        counts = np.bincount(columns[column])[None]
        if parent != column:
            symbols = int(spans[column]) + 1
            places = columns[parent].astype(np.intp) * symbols + columns[column]
            joint = np.bincount(places, minlength=(int(spans[parent]) + 1) * symbols).reshape(-1, symbols)
            shift, best = _merge(joint)
            pays = _estimate_bits(best) < _estimate_bits(counts)
            parents[column], shifts[column] = (parent, shift) if pays else (column, 0)
            counts = best if pays else counts
        kept.append(counts)
    symbols = int(spans.max()) + 1
    if sum(map(len, kept)) * symbols > _MOST_ENTRIES or (parents == np.arange(parents.size)).all():
        return None
    counts = np.concatenate([np.pad(counts, ((0, 0), (0, symbols - counts.shape[1]))) for counts in kept])
    return Forest(columns, Links(*(field.astype(np.uint8) for field in (lows, spans, parents, shifts))), counts)


def _merge(joint: Array) -> tuple[int, Array]:
    """Tables of neighbouring values of the parent are added up while that saves bits."""
    shift = max(0, bits_for(len(joint) - 1) - bits_for(_MOST_TABLES - 1))
    found = [(shift, _halve(joint, shift))]
    while len(found[-1][1]) > 2:
        found.append((found[-1][0] + 1, _halve(found[-1][1], 1)))
    return min(found, key=lambda one: _estimate_bits(one[1]))


def _halve(joint: Array, times: int) -> Array:
    return np.add.reduceat(joint, np.arange(0, len(joint), 1 << times), axis=0)


def _estimate_bits(counts: Array) -> float:
    """Of all rows by tables of such counts, and of the tables."""
    absent, present = _ENTRY_BITS
    used = counts[counts > 0]
    totals = counts.sum(axis=1)
    totals = totals[totals > 0]
    rows = totals @ np.log2(totals) - used @ np.log2(used)
    return float(rows + present * used.size + absent * (counts.size - used.size))


# Reading ----------------------------------------------------------------------------------------------


def read_parents(reader: BodyReader, count: int, span: int) -> Array:
    width = reader.count(count, "the number of columns")
    if not 2 <= width <= _MOST_COLUMNS or count % width or span >= _MOST_SYMBOLS:
        raise Malformed(f"{count} integers up to {span} in {width} columns, each given another")
    cut = reader.byte()
    if cut > _MOST_CUT:
        raise Malformed(f"weights that lack {cut} bits")
    links = _read_links(reader, width, span)
    order = links.order()
    shapes = [links.shape(column) for column in range(width)]
    entries = sum(tables * symbols for tables, symbols in shapes)
    if entries > _MOST_ENTRIES:
        raise Malformed(f"tables of {entries} symbols, {_MOST_ENTRIES} at most")
    occurs = reader.array("<u1", _count_entries(cut))
    coded = RunReader(reader)
    flat = np.broadcast_to(_restore(np.asarray(coded.run(occurs, entries)), cut), entries)
    parts = np.split(flat, np.cumsum([tables * symbols for tables, symbols in shapes])[:-1])
    columns = np.zeros((width, count // width), np.uint8)
    for column in order:
        _read_column(coded, links, column, parts[column].reshape(shapes[column]), columns)
    coded.finish()
    columns += links.lows[:, None]
    return columns.T.reshape(-1)


def _read_links(reader: BodyReader, width: int, span: int) -> Links:
    lows, spans, parents, shifts = (reader.array("<u1", width) for _ in range(4))
    if (lows.astype(np.intp) + spans > span).any():
        raise Malformed(f"a column's integers are above the span {span}")
    if parents.max() >= width or shifts.max() > 7:
        raise Malformed("a column's parent is beyond the last column, or shifted by more than 7 bits")
    return Links(lows, spans, parents, shifts)


def _read_column(coded: RunReader, links: Links, column: int, weights: Array, columns: Array) -> None:
    if links.parents[column] == column:
        columns[column] = coded.run(weights[0], columns.shape[1])
        return
    rows, counts = links.group(column, columns)
    end = 0
    for table, count in zip(weights, counts.tolist(), strict=True):
        if count:
            columns[column, rows[end : end + count]] = coded.run(table, count)
            end += count
