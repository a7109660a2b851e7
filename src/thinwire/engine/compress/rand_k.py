"""Random values; a seed says which."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_number
from thinwire.engine.compress.identity import dense
from thinwire.engine.compress.message import message_values
from thinwire.engine.compress.randomness import Randomness, draw_seed, sample_indices
from thinwire.engine.compress.schedules import Schedule, at_round
from thinwire.engine.compress.symbols import Sampled, Symbols, Zeros


@dataclass(frozen=True, slots=True)
class RandK(Compressor):
    """k = max(1, int(fraction * n)) of the message's n values, drawn at random; the others are 0.

    Their places cost 8 bytes in all: the seed travels, not the indices. The values are not scaled up,
    so this is a contraction (k/n on average) and not unbiased.
    """

    fraction: float | Schedule

    selects: ClassVar[bool] = True

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION

    def __post_init__(self) -> None:
        check_number(self, "fraction", above=0, up_to=1)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        seed = draw_seed(rng)
        if message.largest == 0:
            return Zeros(message.shape)
        indices = sample_indices(seed, message.size, self._count(message.size, hint.round))
        return Sampled(message.shape, seed, dense(torch.from_numpy(message.values[indices])))

    def _count(self, size: int, round: int) -> int:
        return max(1, int(at_round(self.fraction, round) * size))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        squared_norm = message.squared_norm()
        kept = self._count(message.size, hint.round) / message.size
        return ErrorBound.of(message, (1 - kept) * squared_norm, squared_norm)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return self._count(prod(shape), round) / prod(shape)
