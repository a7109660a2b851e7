"""Counts of biased coin throws: noise and quantisation in one (Chen et al., 2022; PBM-VFL)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from torch import Tensor

from thinwire.engine.compress.adding import AddingCounts
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_number, check_whole
from thinwire.engine.compress.message import blocks, message_values
from thinwire.engine.compress.randomness import Randomness, keystream
from thinwire.engine.compress.symbols import Counts, codes_dtype


@dataclass(frozen=True, slots=True)
class PoissonBinomial(Compressor):
    """q ~ Binomial(trials, 1/2 + beta x / bound) for |x| <= bound, unbiased once decoded; beyond, x is cut off.

    The variance is at most bound^2 / (4 beta^2 trials) a value. It is private only as far as its
    generator is secret: pass a Keystream with a 256-bit key of the party's own. A throw compares 32
    random bits with a threshold, so each count is exactly binomial for an x rounded to a grid inside
    the bounds, and the accounting holds as it stands.
    """

    trials: int
    beta: float
    bound: float = 1.0

    @property
    def promise(self) -> Promise:
        return Promise.UNBIASED

    def __post_init__(self) -> None:
        check_whole(self, "trials", 1, 65535)
        check_number(self, "beta", above=1e-6, up_to=0.25)
        check_number(self, "bound", above=1e-30, up_to=1e30)
        # As the values have it: a float32 clamped to 0.1 is a little over the float64 0.1.
        object.__setattr__(self, "bound", float(np.float32(self.bound)))

    def adding(self, round: int = 0) -> AddingCounts:
        return AddingCounts(self.trials, self.beta, self.bound)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Counts:
        message = message_values(x)
        stream = keystream(rng)
        least, most = ceil((0.5 - self.beta) * 2**32), floor((0.5 + self.beta) * 2**32)
        counts = np.zeros(message.size, dtype=codes_dtype(0, self.trials))
        for block in blocks(message.size):
            chance = 0.5 + self.beta * (message.values[block].astype(np.float64) / self.bound)
            thresholds = np.clip(np.rint(chance * 2.0**32), least, most).astype(np.uint32)
            for _ in range(self.trials):
                counts[block] += stream.words(thresholds.size) < thresholds
        return Counts(message.shape, counts, self.trials + 1, self.trials, self.beta, self.bound)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        variance = self.bound**2 / (4 * self.beta**2 * self.trials)
        # Every throw the same way: the decoded value is then bound / (2 beta), x at most bound.
        farthest = self.bound / (2 * self.beta) + self.bound
        beyond = max(0.0, message.largest - self.bound)
        return ErrorBound.of(message, message.size * (variance + beyond**2), message.size * (farthest + beyond) ** 2)
