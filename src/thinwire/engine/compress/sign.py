"""One bit a value and one scale."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor

from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.engine.compress.message import MessageValues, message_values
from thinwire.engine.compress.randomness import Randomness
from thinwire.engine.compress.symbols import Signs, Symbols, Zeros


@dataclass(frozen=True, slots=True)
class Sign(Compressor):
    """The sign of each value times the mean |x| of the message; 0 counts as positive.

    |x - C(x)|^2 = |x|^2 - |x|_1^2 / n: a contraction of |x|_1^2 / (n |x|^2), at least 1/n.
    """

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        if message.largest == 0:
            return Zeros(message.shape)
        return Signs(message.shape, (message.values >= 0).view(np.uint8), _mean_magnitude(message))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        mean = _mean_magnitude(message)
        return ErrorBound.of(message, max(0.0, message.squared_norm() - message.size * mean**2))

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return 1 / prod(shape)


def _mean_magnitude(message: MessageValues) -> float:
    return float(np.sum(np.abs(message.values), dtype=np.float64)) / message.size
