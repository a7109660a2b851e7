"""Integers in units of the message's standard deviation (`StdGrid`), or of each row's largest value (`RowScale`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadTensor
from thinwire.engine.compress.adding import AddingGrids
from thinwire.engine.compress.compressor import (
    Compressor,
    ErrorBound,
    Hint,
    Promise,
    check_flag,
    check_number,
    check_whole,
)
from thinwire.engine.compress.message import Array, MessageValues, blocks, message_values
from thinwire.engine.compress.randomness import Randomness, keystream
from thinwire.engine.compress.schedules import Schedule, at_round, reaches
from thinwire.engine.compress.symbols import RowGrid, Symbols, UniformGrid, Zeros, codes_dtype

_MOST_CODE = 2**31 - 4
_MOST_LIMIT = 32767


@dataclass(frozen=True, slots=True)
class StdGrid(Compressor):
    """The integers next to x / (step * scale), as many as there are.

    `scale` is the message's standard deviation unless given (its root mean square where the deviation
    is below a thousandth of that: a constant message). Nearest, or stochastic: up or down at random
    so that the mean is right. The error is at most half a step (a whole one if stochastic) a value; it
    is not a contraction. Under error feedback take a step below 2: from there on nearest may stall (values
    that all round to 0 stay there) and stochastic makes the error grow, so that it is refused above 2.
    With a `limit` integers go from -limit to limit, and what lies beyond is cut off: with a fixed scale a
    secure sum can then add them.
    """

    step: float | Schedule
    stochastic: bool = False
    scale: float | None = None
    limit: int | None = None

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED

    @property
    def suits_error_feedback(self) -> bool:
        # Stochastic: E|error|^2 = sum |x| (step - |x|) over small values, more than |x|^2 for large steps.
        return not self.stochastic or reaches(self.step)[1] <= 2

    def __post_init__(self) -> None:
        check_number(self, "step", above=0, up_to=1e30)
        check_flag(self, "stochastic")
        if self.scale is not None:
            check_number(self, "scale", above=0, up_to=1e30)
        if self.limit is not None:
            check_whole(self, "limit", 1, _MOST_LIMIT)

    def at_once(self) -> StdGrid:
        return self if self.limit is None else replace(self, limit=_MOST_LIMIT)

    def adding(self, round: int = 0) -> AddingGrids | None:
        if self.scale is None or self.limit is None:
            return None
        return AddingGrids(at_round(self.step, round) * self.scale, self.limit)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        bits = keystream(rng) if self.stochastic else None
        if message.largest == 0:
            return Zeros(message.shape)
        step = self._step(message, hint)
        if self.limit is None and message.largest >= step * _MOST_CODE:
            raise BadTensor(
                f"StdGrid: the value {message.largest:g} is over 2^31 steps of {step:g}; use a larger step or scale"
            )
        values = message.working(precise=message.largest > step * 2**16)
        most = _MOST_CODE if self.limit is None else self.limit
        # And a unit of rounding.
        low, high = max(-most, int(message.lowest / step) - 2), min(most, int(message.highest / step) + 2)
        codes = np.empty(message.size, codes_dtype(min(low, -1), high))
        for block in blocks(message.size):
            place = values[block] * (1 / step)
            if bits is None:
                np.rint(place, out=place)
            else:
                place += bits.uniform(place.size)
                np.floor(place, out=place)
            if self.limit is not None:
                np.clip(place, -self.limit, self.limit, out=place)
            codes[block] = place
        return UniformGrid(message.shape, codes, step)

    def _step(self, message: MessageValues, hint: Hint) -> float:
        step = at_round(self.step, hint.round)
        return step * (self.scale if self.scale is not None else deviation(message))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        if message.largest == 0:
            return ErrorBound(0.0, 0.0)
        step = self._step(message, hint)
        half = message.size * step**2 / 4
        if self.limit is not None:
            beyond = np.maximum(np.abs(message.working(precise=True)) - self.limit * step, 0.0)
            half += float(np.sum(beyond * (beyond + 2 * step)))
        # Stochastic: f (1 - f) of a squared step on average for the fraction f, at most a quarter.
        return ErrorBound.of(message, half, 4 * half if self.stochastic else half)


def deviation(message: MessageValues) -> float:
    """The standard deviation; the root mean square of a message that is nearly constant."""
    mean = float(np.sum(message.working())) / message.size  # numpy adds in pairs: float32 is exact enough
    deviation = sqrt(message.squared_distance(mean) / message.size)
    rms = sqrt(mean**2 + deviation**2)
    return rms if deviation < rms / 1000 else deviation


# Each row in units of its own largest value -----------------------------------------------------------------------


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
