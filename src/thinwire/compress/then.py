"""First choose, then quantise what was chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from thinwire.compress.compressor import Compressor, ErrorBound, Hint, Promise, Remembers
from thinwire.compress.message import message_values
from thinwire.compress.randomness import Keystream, Randomness
from thinwire.compress.symbols import Columns, Sampled, Sparse, Symbols
from thinwire.errors import BadParameter, IncompatibleRecipe

__all__ = ["Then"]


@dataclass(frozen=True, slots=True)
class Then(Compressor):
    """`first` (TopK or RandK) keeps some values; `second` quantises them as one message."""

    first: Compressor
    second: Compressor

    def __post_init__(self) -> None:
        for part in (self.first, self.second):
            if not isinstance(part, Compressor):
                raise BadParameter(f"Then: both parts must be compressors, got {part!r}")
        if not self.first.selects:
            raise IncompatibleRecipe(
                f"Then: {type(self.first).__name__} keeps every value; put TopK or RandK first, as in "
                "Then(TopK(0.05), Uniform(4))"
            )
        if self.second.selects or isinstance(self.second, Then):
            raise IncompatibleRecipe(
                f"Then: {type(self.second).__name__} chooses values again; put a quantiser second, as in "
                "Then(TopK(0.05), Uniform(4)), or give the first a smaller fraction"
            )
        if self.second.promise is Promise.UNBIASED:
            raise IncompatibleRecipe(
                f"Then: {type(self.second).__name__} protects values, but the choice of places would show "
                "through; use it alone"
            )

    @property
    def promise(self) -> Promise:
        return Promise.NONE if self.first.promise is Promise.NONE else self.second.promise

    @property
    def suits_error_feedback(self) -> bool:
        return self.first.suits_error_feedback and self.second.suits_error_feedback

    @property
    def remembers(self) -> Remembers:
        return self.first.remembers

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        kept = self.first.compress(x, rng, hint)
        if not isinstance(kept, (Sparse, Sampled, Columns)):
            return kept  # all zeros
        return replace(kept, values=self.second.compress(kept.values.to_tensor(), rng, Hint(hint.round)))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        dropped = self.first.error_bound(x, hint)
        # An even number of +largest and -largest: no message of as many values has a wider range, a larger
        # deviation or larger values, so a quantiser has nowhere more to lose.
        kept = getattr(self.first.compress(x, Keystream(bytes(32)), hint), "values", None)
        pairs = 0 if kept is None else (prod(kept.shape) + 1) // 2
        hardest = message.largest * torch.tensor([1.0, -1.0]).repeat(max(1, pairs))
        added = self.second.error_bound(hardest, Hint(hint.round))
        worst = dropped.worst + added.worst
        if self.promise is Promise.CONTRACTION:
            contracted = (1 - self.contraction(message.shape, hint.round)) * message.squared_norm()
            return ErrorBound.of(message, contracted, max(contracted, worst))
        return ErrorBound.of(message, dropped.mean + added.mean, worst)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        # The more values there are, the less a quantiser promises: at least this of those that are kept.
        return self.first.contraction(shape, round) * self.second.contraction((prod(shape),), round)
