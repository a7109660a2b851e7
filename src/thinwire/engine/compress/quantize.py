"""Every value as one of a few levels.

`Uniform`: equal steps over a range (Bennett, 1948), with subtractive dither (Wannamaker, 1997). `QSGD`: quantised by
the message's norm (Alistarh et al., 2017), scaled to a contraction as EF-VFL uses it. `Sign`: one bit and one scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, prod, sqrt

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.adding import AddingLevels
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, check_flag, check_whole
from thinwire.engine.compress.message import MessageValues, blocks, message_values
from thinwire.engine.compress.randomness import Keystream, Randomness, draw_seed, keystream
from thinwire.engine.compress.schedules import Diminishing, DiminishingError, ErrorRule, Schedule, at_round, reaches
from thinwire.engine.compress.symbols import Dithered, Levels, Signs, Symbols, UniformGrid, Zeros, codes_dtype

_MOST_BITS = 16


@dataclass(frozen=True, slots=True)
class Uniform(Compressor):
    """2^bits equal levels between the message's extremes, or between `bounds` where they are known.

    With dither both ends subtract the same random shift, whose 8-byte seed travels along: the error is
    then uniform, independent of the message, and its mean square w^2 / 12 for a step
    w = range / (2^bits - 1). Without, the bins are range / 2^bits wide and a value is its bin's middle.
    """

    bits: int | Schedule
    dither: bool = True
    bounds: tuple[float, float] | None = None

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED

    @property
    def suits_error_feedback(self) -> bool:
        # One bit of a range of five deviations loses more than there is: the error would grow.
        return reaches(self.bits)[0] >= 2

    def __post_init__(self) -> None:
        check_whole(self, "bits", 1, _MOST_BITS, error_rule=True)
        check_flag(self, "dither")
        if self.bounds is None:
            return
        try:
            low, high = (float(bound) for bound in self.bounds)
        except (TypeError, ValueError):
            raise BadParameter.about(
                "Uniform", "bounds", f"must be a pair (low, high), got {self.bounds!r}"
            ) from None
        if max(abs(low), abs(high)) <= float(np.finfo(np.float32).max):
            # As the wire carries them, so that both ends compute with the same range.
            low, high = float(np.float32(low)), float(np.float32(high))
            if low < high:
                object.__setattr__(self, "bounds", (low, high))
                return
        raise BadParameter.about("Uniform", "bounds", f"must rise and be finite in float32, got {self.bounds!r}")

    def adding(self, round: int = 0) -> AddingLevels | None:
        # A rule that looks at the message would give every party bits of its own.
        if self.bounds is None or isinstance(self.bits, Diminishing | DiminishingError):
            return None
        bits = int(at_round(self.bits, round))
        return AddingLevels(bits, *self.bounds, Dithered if self.dither else Levels)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Levels | Dithered:
        message = message_values(x)
        low, high = self._range(message)
        bits = self._bits(message, hint)
        top = 2**bits - 1
        steps = top if self.dither else 2**bits
        values = message.working(precise=bits > 8 or high - low < 1e-25)
        factor = steps / (high - low) if high > low else 0.0
        seed = draw_seed(rng) if self.dither else 0
        dither = Keystream.from_seed(seed)
        codes = np.empty(message.size, codes_dtype(0, top + 1))
        for block in blocks(message.size):
            place = values[block] - low
            place *= factor
            if self.dither:
                place += dither.uniform(place.size)
            codes[block] = place
        # The upper end of the range, and rounding, reach 2^bits: one less. (Five times as fast as a minimum.)
        codes -= codes >> bits
        if self.dither:
            return Dithered(message.shape, codes, low, high, bits, seed)
        return Levels(message.shape, codes, low, high, bits)

    def _range(self, message: MessageValues) -> tuple[float, float]:
        if self.bounds is None:
            return message.lowest, message.highest
        low, high = self.bounds
        if message.lowest < low or message.highest > high:
            worst = message.lowest if message.lowest < low else message.highest
            raise BadTensor(
                f"Uniform: the value {worst:g} lies outside the bounds ({low:g}, {high:g}); widen them, end "
                "the bottom model with tanh or sigmoid, or leave bounds out to use each message's range"
            )
        return self.bounds

    def _bits(self, message: MessageValues, hint: Hint) -> int:
        def rule() -> ErrorRule:
            # q_t = ceil(0.5 log2(B P D^2 / (12 E_t)))
            low, high = self._range(message)
            most = message.size * (high - low) ** 2 / 12
            return ErrorRule(
                lambda bits: most / 4**bits,
                lambda error: ceil(0.5 * (log2(most) - log2(error)) - 1e-9) if most > 0 else 1,
            )

        bits = at_round(self.bits, hint.round, rule)
        return int(min(_MOST_BITS, max(1, bits)))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        low, high = self._range(message)
        bits = self._bits(message, hint)
        if self.dither:
            step = (high - low) / (2**bits - 1)
            return ErrorBound.of(message, message.size * step**2 / 12, message.size * step**2 / 4)
        return ErrorBound.of(message, message.size * ((high - low) / 2**bits) ** 2 / 4)


# Quantised by the message's norm (Alistarh et al., 2017), scaled to a contraction as EF-VFL uses it ---------------


@dataclass(frozen=True, slots=True)
class QSGD(Compressor):
    """|v| sign(v_i) / (s tau) * floor(s |v_i| / |v| + xi), xi uniform in [0, 1).

    s = 2^bits - 1, or give `levels` = s; tau = 1 + min(d / s^2, sqrt(d) / s) for a message of d values;
    contraction 1/tau on average. One norm a message, so a large message is mostly zeros, which the
    entropy coder makes small.
    """

    bits: int | Schedule | None = None
    levels: int | Schedule | None = None

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION

    def __post_init__(self) -> None:
        if (self.bits is None) == (self.levels is None):
            raise BadParameter("QSGD: give either bits or levels: QSGD(bits=4) or QSGD(levels=15)")
        if self.bits is not None:
            check_whole(self, "bits", 1, 16)
        else:
            check_whole(self, "levels", 1, 65536)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        bits = keystream(rng)
        if message.largest == 0:
            return Zeros(message.shape)
        levels = self._levels(hint.round)
        norm = message.norm()
        values = message.working()
        codes = np.empty(message.size, codes_dtype(-levels, levels))
        for block in blocks(message.size):
            place = values[block] * (levels / norm)
            # Away from zero by xi, then cut off: sign(v_i) floor(s |v_i| / |v| + xi).
            place += np.copysign(bits.uniform(place.size), place)
            codes[block] = place.astype(np.int32).clip(-levels, levels)
        return UniformGrid(message.shape, codes, norm / (levels * self._tau(message.size, hint.round)))

    def _levels(self, round: int) -> int:
        if self.levels is not None:
            return int(at_round(self.levels, round))
        return (1 << int(at_round(self.bits or 0, round))) - 1

    def _tau(self, size: int, round: int) -> float:
        levels = self._levels(round)
        return 1 + min(size / levels**2, sqrt(size) / levels)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        tau = self._tau(message.size, hint.round)
        norm = message.norm()
        # Worst case: shrinking by tau, and a whole level up at every value.
        worst = norm * (1 - 1 / tau) + sqrt(message.size) * norm / (self._levels(hint.round) * tau)
        return ErrorBound.of(message, (1 - 1 / tau) * norm**2, worst**2)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return 1 / self._tau(prod(shape), round)


# One bit a value and one scale ------------------------------------------------------------------------------------


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
