"""Of two compressors, the one whose symbols take fewer bits on this message."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from torch import Tensor

from thinwire.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.compress.directions import Directions
from thinwire.compress.message import Array
from thinwire.compress.qsgd import QSGD
from thinwire.compress.randomness import Randomness, keystream
from thinwire.compress.std_grid import StdGrid
from thinwire.compress.symbols import Grid, Product, Symbols
from thinwire.errors import BadParameter, IncompatibleRecipe

__all__ = ["Shorter"]

_TABLE_BITS = 8  # a symbol that occurs in a column stands in its table


@dataclass(frozen=True, slots=True)
class Shorter(Compressor):
    """`first` or `second`, message by message: the one with the fewer bits by the entropy of its integers.

    Give the second a finer step: where rows vary in few directions, Shorter(StdGrid(1.5), Directions(0.5)) is
    shorter and more exact at once; elsewhere it is StdGrid.
    """

    first: Compressor
    second: Compressor

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, Compressor):
                raise BadParameter(f"Shorter: both parts must be compressors, got {part!r}")
            if not isinstance(part, (StdGrid, QSGD, Directions)):
                raise IncompatibleRecipe(
                    f"Shorter: how many bits {type(part).__name__} takes is not known before it is encoded; use "
                    "StdGrid, QSGD or Directions, as in Shorter(StdGrid(1.5), Directions(0.5))"
                )

    @property
    def promise(self) -> Promise:
        promises = {self.first.promise, self.second.promise}
        return promises.pop() if len(promises) == 1 else Promise.NONE

    @property
    def suits_error_feedback(self) -> bool:
        return self.first.suits_error_feedback and self.second.suits_error_feedback

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        bits = keystream(rng)
        first, second = (part.compress(x, bits, hint) for part in (self.first, self.second))
        return first if _bits(first) <= _bits(second) else second

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        first, second = self.first.error_bound(x, hint), self.second.error_bound(x, hint)
        return ErrorBound(max(first.mean, second.mean), max(first.worst, second.worst))

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return min(self.first.contraction(shape, round), self.second.contraction(shape, round))


def _bits(symbols: Symbols) -> float:
    """About what the codec needs; a message that would be lost is no short one."""
    match symbols:
        case Grid(shape=shape, codes=codes):
            return _entropy(codes.reshape(-1, shape[-1] if shape else 1))
        case Product(levels=levels, basis=basis):
            return _entropy(levels) + _entropy(basis)
        case _:
            return inf


def _entropy(integers: Array) -> float:
    """With a table for each column."""
    rows, width = integers.shape
    low = int(integers.min())
    span = int(integers.max()) - low + 1
    if span > 1 << 12:
        return float(rows * width * np.log2(span))
    places = integers.astype(np.int32)
    places -= low
    places += span * np.arange(width, dtype=np.int32)
    counts = np.bincount(places.reshape(-1), minlength=span * width)
    counts = counts[counts > 0]
    return float(rows * width * np.log2(rows) - np.sum(counts * np.log2(counts)) + _TABLE_BITS * counts.size)
