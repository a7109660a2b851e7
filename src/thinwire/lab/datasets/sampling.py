"""Which rows: the tenth that is for testing, and a subset with every class in its share.

A row's fate follows from its number in the file and the seed alone, so a stream and a table in memory
give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thinwire.base.errors import BadParameter
from thinwire.data.hashing import code_known_words, row_keys

_PENDING = 65_536  # rows that may wait before a stream's candidates are thinned out


@dataclass(frozen=True)
class Subset:
    """How many rows to keep; None keeps all."""

    rows: int | None = None
    test_rows: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "test_rows"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadParameter(f"{name} must be 1 or more, or None for all, got {value}")


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rows that were kept, in the file's order."""

    table: Any  # pyarrow.Table
    labels: NDArray[np.int64]
    numbers: NDArray[np.int64]  # in the file, from 0


def choose_rows(labels: NDArray[np.int64], rows: int | None, seed: int, name: str = "rows") -> NDArray[np.int64]:
    """Row numbers in rising order: `rows` of them, every class in its share."""
    numbers = np.arange(len(labels))
    return numbers if rows is None else numbers[_taken(labels, row_keys(numbers, seed, "subset"), rows, name)]


def mark_test_rows(numbers: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Whether a row is for testing, where a publisher gives no test rows: by a hash of its number, for any seed."""
    return row_keys(numbers, "test rows") < np.uint64(round(share * 2**53) << 11)


def draw_rows(
    blocks: Iterable[Any],
    label: Callable[[Any, int], NDArray[np.int64]],
    subset: Subset,
    share: float,
    encode: Callable[[Any], Any] = lambda block: block,
) -> tuple[RowSample, RowSample]:
    """Training and test rows of a table that comes in blocks.

    `label(block, first row's number)` gives classes; `encode(block)` makes what is kept of a block smaller.
    """
    train = _Draw(subset.rows, subset.seed, "rows", encode)
    test = _Draw(subset.test_rows, subset.seed, "test_rows", encode)
    start = 0
    for block in blocks:
        labels = label(block, start)
        numbers = np.arange(start, start + len(labels))
        tested = mark_test_rows(numbers, share)
        for draw, mask in ((train, ~tested), (test, tested)):
            draw.add(block, mask, labels, numbers)
        start += len(labels)
    return train.take_sample(), test.take_sample()


class _Draw:
    """Keeps, of every class, the rows that may still be among the chosen ones."""

    def __init__(self, rows: int | None, seed: int, name: str, encode: Callable[[Any], Any]) -> None:
        self._rows, self._seed, self._name, self._encode = rows, seed, name, encode
        self._kept: list[RowSample] = []
        self._counts: dict[int, int] = {}  # of each class, all rows seen
        self._limits: dict[int, np.uint64] = {}  # of each class, the largest key that may still be chosen

    def add(self, block: Any, mask: NDArray[np.bool_], labels: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        for value, count in zip(*np.unique(labels[mask], return_counts=True), strict=True):
            self._counts[int(value)] = self._counts.get(int(value), 0) + int(count)
        if self._limits:
            keys = row_keys(numbers, self._seed, "subset")
            for value, limit in self._limits.items():
                mask = mask & ((labels != value) | (keys <= limit))
        self._kept.append(RowSample(self._encode(block.filter(pa.array(mask))), labels[mask], numbers[mask]))
        if self._rows is not None and sum(len(part.labels) for part in self._kept[1:]) > max(_PENDING, self._rows):
            self._thin(self._rows)

    def take_sample(self) -> RowSample:
        whole = self._whole()
        if self._rows is None:
            return whole
        keys = row_keys(whole.numbers, self._seed, "subset")
        return _part(whole, _taken(whole.labels, keys, self._rows, self._name, self._counts))

    def _whole(self) -> RowSample:
        if not self._kept:
            raise BadParameter("there are no rows to draw from")
        return RowSample(
            pa.concat_tables([part.table for part in self._kept], promote_options="permissive"),
            np.concatenate([part.labels for part in self._kept]),
            np.concatenate([part.numbers for part in self._kept]),
        )

    def _thin(self, rows: int) -> None:
        whole = self._whole()
        keys = row_keys(whole.numbers, self._seed, "subset")
        keep = np.ones(len(keys), dtype=bool)
        for value in np.unique(whole.labels):
            own = whole.labels == value
            if own.sum() > rows:
                self._limits[int(value)] = limit = np.partition(keys[own], rows - 1)[rows - 1]
                keep &= ~own | (keys <= limit)
        # A copy, so that the blocks the rows came from can go.
        thinned = _part(whole, keep)
        self._kept = [RowSample(thinned.table.combine_chunks(), thinned.labels, thinned.numbers)]


def _part(whole: RowSample, keep: NDArray[np.bool_]) -> RowSample:
    return RowSample(whole.table.filter(pa.array(keep)), whole.labels[keep], whole.numbers[keep])


def _taken(
    labels: NDArray[np.int64], keys: NDArray[np.uint64], rows: int, name: str, counts: dict[int, int] | None = None
) -> NDArray[np.bool_]:
    """Of each class the rows with the smallest keys, as many as its share of all rows says."""
    if counts is None:
        counts = {int(value): int(count) for value, count in zip(*np.unique(labels, return_counts=True), strict=True)}
    total = sum(counts.values())
    if rows > total:
        raise BadParameter(f"{name}={rows}, but there are only {total}; leave it out for all of them")
    taken = np.zeros(len(labels), dtype=bool)
    for value, quota in _quotas(counts, rows, total).items():
        own = np.flatnonzero(labels == value)
        taken[own[np.argsort(keys[own], kind="stable")[:quota]]] = True
    return taken


def _quotas(counts: dict[int, int], rows: int, total: int) -> dict[int, int]:
    """Shares in whole rows that add up: the largest remainders are rounded up."""
    quotas = {value: count * rows // total for value, count in counts.items()}
    by_remainder = sorted(counts, key=lambda value: (-(counts[value] * rows % total), value))
    for value in by_remainder[: rows - sum(quotas.values())]:
        quotas[value] += 1
    return quotas


Floats = NDArray[np.float32]


def standardize(train: NDArray[Any], test: NDArray[Any]) -> tuple[Floats, Floats]:
    """(x - mean) / deviation over all training values but the last axis's; NaN is skipped and stays NaN."""
    axes = tuple(range(train.ndim - 1))
    values = train.astype(np.float64)
    counts = np.maximum(np.isfinite(values).sum(axis=axes), 1)
    mean = np.nansum(values, axis=axes) / counts
    deviation = np.sqrt(np.nansum((values - mean) ** 2, axis=axes) / counts)
    deviation[deviation == 0] = 1.0  # a constant column says nothing: all zeros
    return ((values - mean) / deviation).astype(np.float32), ((test - mean) / deviation).astype(np.float32)


def code_words(train: Any, test: Any) -> tuple[Floats, Floats, int]:
    """Codes of two Arrow columns, and how many there are; 0 is a word that no training row has, or none at all."""
    words = sorted({str(word) for word in train.unique().to_pylist() if word is not None})
    codes = {word: code for code, word in enumerate(words, 1)}
    return code_known_words(train, codes, 0, 0), code_known_words(test, codes, 0, 0), len(words) + 1
