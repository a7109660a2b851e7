"""How the integers of several parties add up: what a secure sum needs to know of a compressor.

Only where every party uses the same fixed scale does the sum of integers stand for the sum of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from thinwire.base.errors import IncompatibleRecipe
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import Counts, Levels, LevelSum, Symbols, UniformGrid, Zeros, codes_dtype


class Adding(ABC):
    """One party's integers lie between 0 and `top`; their sum over the parties has symbols of its own."""

    @property
    @abstractmethod
    def top(self) -> int: ...

    @abstractmethod
    def integers(self, symbols: Symbols) -> Array:
        """Refuses symbols that another compressor made."""

    @abstractmethod
    def sum_symbols(self, totals: Array, shape: tuple[int, ...], parties: int, seeds: Sequence[int]) -> Symbols:
        """What the sum over `parties` stands for; `seeds` are those of their dithers."""

    def _refused(self, symbols: Symbols) -> IncompatibleRecipe:
        return IncompatibleRecipe(
            f"SecureSum adds integers on one scale; {type(symbols).__name__} symbols are not additive here. Use "
            "PoissonBinomial, Uniform with bounds, or StdGrid with a fixed scale and a limit; or Plain aggregation"
        )


@dataclass(frozen=True, slots=True)
class AddingCounts(Adding):
    """Poisson binomial counts."""

    trials: int
    beta: float
    bound: float

    @property
    def top(self) -> int:
        return self.trials

    def integers(self, symbols: Symbols) -> Array:
        if not isinstance(symbols, Counts) or symbols.parties != 1 or symbols.modulus != symbols.trials + 1:
            raise self._refused(symbols)
        if (symbols.trials, symbols.beta, symbols.bound) != (self.trials, self.beta, self.bound):
            raise self._refused(symbols)
        return symbols.counts

    def sum_symbols(self, totals: Array, shape: tuple[int, ...], parties: int, seeds: Sequence[int]) -> Counts:
        return Counts(shape, totals, parties * self.trials + 1, self.trials, self.beta, self.bound, parties)


@dataclass(frozen=True, slots=True)
class AddingLevels(Adding):
    """Levels between fixed bounds, with a dither of each party's own or none."""

    bits: int
    low: float
    high: float
    kind: type[Levels]

    @property
    def top(self) -> int:
        return int(2**self.bits - 1)

    def integers(self, symbols: Symbols) -> Array:
        if not isinstance(symbols, Levels) or type(symbols) is not self.kind:
            raise self._refused(symbols)
        if (symbols.bits, symbols.low, symbols.high) != (self.bits, self.low, self.high):
            raise self._refused(symbols)
        return symbols.codes

    def sum_symbols(self, totals: Array, shape: tuple[int, ...], parties: int, seeds: Sequence[int]) -> LevelSum:
        return LevelSum(shape, totals, self.low, self.high, self.bits, parties, tuple(seeds))


@dataclass(frozen=True, slots=True)
class AddingGrids(Adding):
    """Integers from -limit to limit times one step."""

    step: float
    limit: int

    @property
    def top(self) -> int:
        return 2 * self.limit

    def integers(self, symbols: Symbols) -> Array:
        if isinstance(symbols, Zeros):
            symbols = UniformGrid(symbols.shape, np.zeros(prod(symbols.shape), np.int8), self.step)
        if not isinstance(symbols, UniformGrid) or symbols.step != self.step:
            raise self._refused(symbols)
        return symbols.codes.astype(codes_dtype(-1, self.top)) + self.limit

    def sum_symbols(self, totals: Array, shape: tuple[int, ...], parties: int, seeds: Sequence[int]) -> UniformGrid:
        most = parties * self.limit
        return UniformGrid(shape, totals.astype(codes_dtype(-1, 2 * most)) - most, self.step)
