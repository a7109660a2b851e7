"""Columns of few distinct values, as the outputs of trees are: each value once, and each row's number among them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor

from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.engine.compress.message import Array, message_values
from thinwire.engine.compress.parameters import Schedule, at_round, check_whole
from thinwire.engine.compress.randomness import Keystream, Randomness
from thinwire.engine.compress.symbols import MOST_ENTRIES, Entries, count_columns, order_floats

_PASSES = 3  # of Lloyd's algorithm; more change the squared error by a percent
_ALIKE = 2.0**-16  # of a column's range: values nearer than that differ by rounding, and each would cost bits
_MANY = 1024  # rows; for fewer a table is not worth making
_GOLDEN = 0x9E3779B1  # 2^32 over the golden ratio, odd


@dataclass(frozen=True, slots=True)
class Codebook(Compressor):
    """Each column's distinct values once, and each row's number among them: exact up to `levels` values per column.

    For outputs of trees: the values of the leaves, and each row's leaf. A column with more values is rounded to the
    nearest of at most `levels`, the means of bins that start out equally wide (Lloyd, 1982); if values nearer than
    2^-16 of its range make few enough when merged, they are. It is a contraction of (1 - 2 / levels)^2 / rows. Under
    error feedback round the leaves' values to multiples of one power of two: float32 then adds them exactly, and
    x - G has one value a leaf.

    Args:
        levels: most values per column that stay exact, 4 or more; or a schedule of it.

    Raises:
        BadParameter: `levels` is out of range.

    Examples:
        >>> import torch
        >>> leaves = torch.tensor([[0.25], [-1.0], [0.25]])
        >>> tw.compress.Codebook(4).compress(leaves, torch.Generator()).to_tensor().equal(leaves)
        True
    """

    levels: int | Schedule = 64

    promise = Promise.CONTRACTION

    def __post_init__(self) -> None:
        check_whole(self, "levels", 4, MOST_ENTRIES)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Entries:
        message = message_values(x)
        most = int(at_round(self.levels, hint.round))
        columns = message.values.reshape(-1, count_columns(message.shape)).T
        bits = np.ascontiguousarray(columns).view(np.int32)
        codes = np.empty(columns.shape, np.uint8)
        books = []
        for column, grouped, numbers in zip(bits, np.sort(bits), codes, strict=True):
            book, numbers[:] = _number_rows(column, grouped, most)
            books.append(book)
        sizes = np.array([book.size for book in books])
        return Entries(message.shape, sizes, np.concatenate(books), codes.T.reshape(-1))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        sent = self.compress(x, Keystream(bytes(32)), hint).to_tensor().double().numpy().reshape(-1)
        return ErrorBound.of(message, float(np.sum(np.square(sent - message.values))))

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        # The bin with a column's largest |x| is at most 2 |x| / levels wide: its mean keeps this much of |x|.
        return (1 - 2 / at_round(self.levels, round)) ** 2 * count_columns(shape) / prod(shape)


def _number_rows(bits: Array, grouped: Array, most: int) -> tuple[Array, Array]:
    """A column's values in rising order, `most` at most, and each row's number among them; floats by their bits.

    In `grouped` those that are alike stand together.
    """
    last = np.flatnonzero(grouped[1:] != grouped[:-1])
    if last.size < most:
        distinct = _sort_floats(np.append(grouped[last], grouped[-1]))
        return distinct.view(np.float32), _look_up(bits, distinct)
    levels = _choose_levels(_sort_floats(grouped).view(np.float32).astype(np.float64), most)
    return levels, np.searchsorted((levels[1:] + levels[:-1].astype(np.float64)) / 2, bits.view(np.float32))


def _sort_floats(bits: Array) -> Array:
    """By value, -0.0 before 0.0; floats by their bits."""
    return order_floats(np.sort(order_floats(bits)))


def _look_up(keys: Array, distinct: Array) -> Array:
    """Each key's number. Of many from a hash table without collisions: a tenth of the time of binary searches."""
    if keys.size < _MANY:
        return np.searchsorted(order_floats(distinct), order_floats(keys))
    numbers = np.arange(distinct.size, dtype=np.uint8)
    bits = 2 * distinct.size.bit_length() + 1  # twice the square of their number: most multipliers will do
    table = np.empty(1 << bits, np.uint8)
    multiplier = _GOLDEN
    while True:
        slots = _hash(distinct, multiplier, bits)
        table[slots] = numbers
        if np.array_equal(table[slots], numbers):
            return table.take(_hash(keys, multiplier, bits))
        multiplier += 2 * _GOLDEN


def _hash(keys: Array, multiplier: int, bits: int) -> Array:
    """Multiplicative hashing (Dietzfelbinger et al., 1997)."""
    slots: Array = keys.view(np.uint32) * np.uint32(multiplier % 2**32)
    slots >>= np.uint32(32 - bits)
    return slots


def _choose_levels(ordered: Array, most: int) -> Array:
    """Rising levels whose squared error is at most that of the means of `most` bins of equal width."""
    centre = (ordered[0] + ordered[-1]) / 2
    ordered = ordered - centre
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    chosen = _average(sums, np.searchsorted(ordered, np.linspace(ordered[0], ordered[-1], most + 1)[1:-1]))
    for _ in range(_PASSES):
        means, _ = chosen
        chosen = _average(sums, np.searchsorted(ordered, (means[1:] + means[:-1]) / 2))
    apart = 1 + np.flatnonzero(np.diff(ordered) > _ALIKE * (ordered[-1] - ordered[0]))
    if apart.size < most:
        chosen = max(_average(sums, apart), chosen, key=_explain)
    return np.unique((chosen[0] + centre).astype(np.float32))


def _average(sums: Array, cuts: Array) -> tuple[Array, Array]:
    """Means and sizes of the bins between cuts, from sums up to each place; empty bins are left out."""
    ends = np.concatenate([[0], cuts, [sums.size - 1]])
    sizes = np.diff(ends)
    used = sizes > 0
    return np.diff(sums[ends])[used] / sizes[used], sizes[used]


def _explain(bins: tuple[Array, Array]) -> float:
    """What the means have of the sum of squares: the rest is the squared error."""
    means, sizes = bins
    return float(np.sum(sizes * np.square(means)))
