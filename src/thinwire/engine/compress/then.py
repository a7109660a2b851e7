"""Compressors made of others: one after the other, and the shorter of two messages."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadParameter, IncompatibleRecipe
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, Remembers
from thinwire.engine.compress.grids import Directions, StdGrid
from thinwire.engine.compress.message import Array, message_values
from thinwire.engine.compress.quantize import QSGD
from thinwire.engine.compress.randomness import Keystream, Randomness, keystream
from thinwire.engine.compress.sparse import Identity
from thinwire.engine.compress.symbols import Columns, Product, Sampled, Sparse, Symbols, UniformGrid

_FEW_VALUES = 2  # take more bytes as integers with their scale


@dataclass(frozen=True, slots=True)
class _TwoParts(Compressor):
    first: Compressor
    second: Compressor

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, Compressor):
                raise BadParameter(f"{type(self).__name__}: both parts must be compressors, got {part!r}")

    @property
    def suits_error_feedback(self) -> bool:
        return self.first.suits_error_feedback and self.second.suits_error_feedback


@dataclass(frozen=True, slots=True)
class Then(_TwoParts):
    """`first` (TopK or RandK) keeps some values; `second` quantises them as one message.

    Args:
        first: selects values.
        second: quantises what is left.

    Raises:
        BadParameter: a part is not a compressor.
        IncompatibleRecipe: a first part that selects nothing, or a second that selects again.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> few = tw.compress.Then(tw.compress.TopK(0.2), tw.compress.Uniform(4))
        >>> len(tw.wire.encode(few.compress(x, rng))) < 4 * x.numel()
        True
    """

    def __post_init__(self) -> None:
        _TwoParts.__post_init__(self)
        if not self.first.selects:
            raise IncompatibleRecipe(
                f"Then: {type(self.first).__name__} keeps every value; put TopK or RandK first, as in "
                "Then(TopK(0.05), Uniform(4))"
            )
        if self.second.selects or isinstance(self.second, Then):
            raise IncompatibleRecipe(
                f"Then: {type(self.second).__name__} selects values again; put a quantiser second, as in "
                "Then(TopK(0.05), Uniform(4)), or give the first a smaller fraction"
            )
        if self.second.promise is Promise.UNBIASED or self.second.protects_alone:
            raise IncompatibleRecipe(
                f"Then: {type(self.second).__name__} protects values, but the choice of positions would leak; use "
                "it alone"
            )

    @property
    def promise(self) -> Promise:
        return Promise.NONE if self.first.promise is Promise.NONE else self.second.promise

    @property
    def remembers(self) -> Remembers:
        return self.first.remembers

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        kept = self.first.compress(x, rng, hint)
        if not isinstance(kept, (Sparse, Sampled, Columns)):
            return kept  # all zeros
        return replace(
            kept, values=self.second.compress(kept.values.to_tensor(), rng, Hint(hint.round, level=hint.level))
        )

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        dropped = self.first.error_bound(x, hint)
        # An even number of +largest and -largest: no message of as many values has a wider range, a larger
        # deviation or larger values, so a quantiser has nowhere more to lose.
        kept = getattr(self.first.compress(x, Keystream(bytes(32)), hint), "values", None)
        pairs = 0 if kept is None else (prod(kept.shape) + 1) // 2
        hardest = message.largest * torch.tensor([1.0, -1.0]).repeat(max(1, pairs))
        added = self.second.error_bound(hardest, Hint(hint.round, level=hint.level))
        worst = dropped.worst + added.worst
        if self.promise is Promise.CONTRACTION:
            contracted = (1 - self.contraction(message.shape, hint.round)) * message.squared_norm()
            return ErrorBound.of(message, contracted, max(contracted, worst))
        return ErrorBound.of(message, dropped.mean + added.mean, worst)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        # The more values there are, the less a quantiser promises: at least this of those that are kept.
        return self.first.contraction(shape, round) * self.second.contraction((prod(shape),), round)


_TABLE_BITS = 8  # a symbol that occurs in a column stands in its table


@dataclass(frozen=True, slots=True)
class Shorter(_TwoParts):
    """`first` or `second`, message by message: whichever takes fewer bits by the entropy of its integers.

    Give the second a finer step: where rows vary in few directions, Shorter(StdGrid(1.5), Directions(0.5)) is both
    shorter and more exact; elsewhere it is StdGrid. A message of one or two values is sent as it is.

    Args:
        first: `StdGrid`, `QSGD` or `Directions`.
        second: the same, with a finer step.

    Raises:
        BadParameter: a part is not a compressor.
        IncompatibleRecipe: a compressor whose size is not known before encoding.

    Examples:
        >>> str(tw.compress.Shorter(tw.compress.StdGrid(1.5), tw.compress.Directions(0.5))).startswith("Shorter")
        True
    """

    def __post_init__(self) -> None:
        _TwoParts.__post_init__(self)
        for part in (self.first, self.second):
            if not isinstance(part, (StdGrid, QSGD, Directions)):
                raise IncompatibleRecipe(
                    f"Shorter: the size of {type(part).__name__} is not known before encoding; use StdGrid, QSGD or "
                    "Directions, as in Shorter(StdGrid(1.5), Directions(0.5))"
                )

    @property
    def promise(self) -> Promise:
        promises = {self.first.promise, self.second.promise}
        return promises.pop() if len(promises) == 1 else Promise.NONE

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        if message_values(x).size <= _FEW_VALUES:
            return Identity().compress(x.float(), rng, hint)
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
        case UniformGrid(shape=shape, codes=codes):
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
