"""Bin numbers that may not be the true ones (Warner, 1965; Kairouz et al., 2016), so that each can be denied."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, floor, sqrt
from typing import ClassVar

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.engine.compress.message import Array, blocks, message_values
from thinwire.engine.compress.parameters import require_number, require_size
from thinwire.engine.compress.randomness import Randomness, keystream
from thinwire.engine.compress.symbols import UniformGrid, codes_dtype

_WORDS = 1 << 32
_MOST_EXPONENT = 40.0  # beyond it no word is left for another bin but one
_GAP = -1  # the code of a missing number, as `Bins` writes it


@dataclass(frozen=True, slots=True)
class RandomizedResponse(Compressor):
    """Keeps each code from -1 (missing) to bins - 1, or replaces it by any other one with equal probability.

    A code is kept with probability e^e / (e^e + bins), where e = epsilon / columns. Values are rounded and clamped.
    It is private only as long as its generator is secret: pass a `Keystream` with a 256-bit key of the party's own.

    Args:
        epsilon: of one row, all its columns together; there is no delta.
        bins: number of codes besides the missing value, 2 or more.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> import torch
        >>> response = tw.compress.RandomizedResponse(epsilon=2.0, bins=4)
        >>> response.compress(torch.zeros(5, 2), tw.compress.Keystream(bytes(32))).to_tensor().shape
        torch.Size([5, 2])
    """

    epsilon: float
    bins: int

    promise = Promise.NONE
    protects_alone: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # Plain numbers: the accounting knows no schedule.
        object.__setattr__(self, "epsilon", require_number(self, "epsilon", self.epsilon, above=0, at_most=1e6))
        object.__setattr__(self, "bins", require_size(self, "bins", self.bins, 2))

    def count_words(self, columns: int) -> tuple[int, int]:
        """Of 2^32 words: how many leave a code as it is, and how many make it one certain other code."""
        share = self.epsilon / columns
        other = floor(_WORDS / (exp(min(share, _MOST_EXPONENT)) + self.bins)) + 1
        kept = _WORDS - self.bins * other
        if kept < other:
            says = f"is too small for {columns} columns of {self.bins} bins; use fewer bins or a larger epsilon"
            raise BadParameter.about(self, "epsilon", says)
        return kept, other

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> UniformGrid:
        message = message_values(x)
        stream = keystream(rng)
        kept, other = self.count_words(message.size // message.rows)
        codes = np.empty(message.size, codes_dtype(_GAP, self.bins - 1))
        for block in blocks(message.size):
            true = self._round(message.values[block])
            words = stream.words(true.size).astype(np.int64)
            # Steps from the true code to another one, around the end.
            steps = np.where(words < kept, 0, 1 + (words - kept) // other)
            codes[block] = (true - _GAP + steps) % (self.bins + 1) + _GAP
        return UniformGrid(message.shape, codes, 1.0)

    def _round(self, values: Array) -> Array:
        """To the nearest code."""
        return np.clip(np.rint(values), _GAP, self.bins - 1).astype(np.int64)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        apart = message.values.astype(np.float64) - self._round(message.values)
        rounding = sqrt(float(apart @ apart))
        changed = self.bins * self.count_words(message.size // message.rows)[1] / _WORDS
        farthest_mean = (self.bins + 1) * (2 * self.bins + 1) / 6  # of squares, from the first code or the last
        mean, worst = (sqrt(message.size * square) + rounding for square in (changed * farthest_mean, self.bins**2))
        return ErrorBound.of(message, mean**2, worst**2)
