"""Each row in units of its own largest value."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor

from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_flag, check_whole
from thinwire.engine.compress.message import Array, MessageValues, message_values
from thinwire.engine.compress.randomness import Randomness, keystream
from thinwire.engine.compress.schedules import Schedule, at_round, reaches
from thinwire.engine.compress.symbols import RowGrid, codes_dtype


@dataclass(frozen=True, slots=True)
class RowScale(Compressor):
    """Integers from -(2^(bits-1) - 1) to 2^(bits-1) - 1, the outermost standing for the row's largest |x|.

    Four bytes a row for the scale. Nearest: the error is at most half a step a value, and since 0 is a
    level and the largest value is exact, a contraction of 1/width. Stochastic: unbiased, no contraction.
    """

    bits: int | Schedule
    stochastic: bool = False

    def __post_init__(self) -> None:
        check_whole(self, "bits", 2, 16)  # one bit has no level for 0: that is Sign
        check_flag(self, "stochastic")

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED if self.stochastic else Promise.CONTRACTION

    @property
    def suits_error_feedback(self) -> bool:
        # Stochastic with the levels -1, 0 and 1 alone adds more than a wide row holds.
        return not self.stochastic or reaches(self.bits)[0] >= 3

    @property
    def is_fixed(self) -> bool:
        """Do a row's symbols depend on the row alone?"""
        return isinstance(self.bits, int) and not self.stochastic

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> RowGrid:
        message = message_values(x)
        top = self._top(hint.round)
        table = message.values.reshape(message.rows, -1)
        scales = _scales(message)
        places = table / np.where(scales > 0, scales, np.float32(1))[:, None]
        places *= top
        if self.stochastic:
            places += keystream(rng).uniform(message.size).reshape(places.shape)
            np.floor(places, out=places)
        else:
            np.rint(places, out=places)
        np.clip(places, -top, top, out=places)
        return RowGrid(message.shape, places.astype(codes_dtype(-top, top)).reshape(-1), scales, top)

    def _top(self, round: int) -> int:
        return int(2 ** (int(at_round(self.bits, round)) - 1) - 1)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        steps = _scales(message).astype(np.float64) / self._top(hint.round)
        half = message.size / message.rows * float(np.sum(np.square(steps))) / 4
        if self.stochastic:
            return ErrorBound.of(message, half, 4 * half)
        contracted = (1 - self.contraction(message.shape)) * message.squared_norm()
        return ErrorBound.of(message, min(half, contracted))

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        if self.stochastic:
            return 0.0
        return (shape[0] if len(shape) > 1 else 1) / prod(shape)


def _scales(message: MessageValues) -> Array:
    scales: Array = np.abs(message.values).reshape(message.rows, -1).max(axis=1)
    return scales
