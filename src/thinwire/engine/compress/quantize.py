"""Every value as one of a few levels.

`Uniform`: equal steps over a range (Bennett, 1948), with subtractive dither (Wannamaker, 1997). `QSGD`: quantised by
the message's norm (Alistarh et al., 2017), scaled to a contraction as EF-VFL uses it. `Sign`: one bit and one scale.
`HexLattice`: pairs on the hexagonal lattice, the best of the plane (Zamir & Feder, 1996). `PoissonBinomial`: counts
of biased coin throws, noise and quantisation in one (Chen et al., 2022; PBM-VFL).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, prod, sqrt

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.adding import AddingCounts, AddingLevels
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.engine.compress.message import BLOCK, Array, MessageValues, blocks, message_values
from thinwire.engine.compress.parameters import (
    ErrorRule,
    Schedule,
    at_round,
    check_flag,
    check_number,
    check_whole,
    follows_error,
    halving_rule,
    reaches,
)
from thinwire.engine.compress.randomness import Keystream, Randomness, draw_seed, keystream
from thinwire.engine.compress.symbols import (
    Counts,
    Dithered,
    Lattice,
    Levels,
    Signs,
    Symbols,
    UniformGrid,
    Zeros,
    codes_dtype,
    lattice_dither,
    lattice_spacing,
)

_MOST_BITS = 16


@dataclass(frozen=True, slots=True)
class Uniform(Compressor):
    """2^bits equal levels between the message's extremes, or between `bounds` where they are known.

    With dither both ends subtract the same random shift, whose 8-byte seed travels along: the error is
    then uniform, independent of the message, and its mean square w^2 / 12 for a step
    w = range / (2^bits - 1). Without, the bins are range / 2^bits wide and a value is its bin's middle.

    Args:
        bits: of each value; or a schedule of them.
        dither: a random shift that both ends subtract.
        bounds: lowest and highest value, where they are known.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.Uniform(4).compress(x, rng))) < 4 * x.numel()
        True
    """

    bits: int | Schedule
    dither: bool = True
    bounds: tuple[float, float] | None = None

    promise = Promise.BOUNDED

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
        raise BadParameter.about(
            "Uniform", "bounds", f"must be increasing and finite in float32, got {self.bounds!r}"
        )

    def adding(self, round: int = 0) -> AddingLevels | None:
        # A rule that looks at the message would give every party bits of its own.
        if self.bounds is None or follows_error(self.bits):
            return None
        bits = int(at_round(self.bits, round))
        return AddingLevels(bits, *self.bounds, Dithered if self.dither else Levels)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Levels:
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
            return halving_rule(message.size * (high - low) ** 2 / 12)

        return min(_MOST_BITS, max(1, ceil(at_round(self.bits, hint.round, rule) - 1e-9)))

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

    `levels` is s, the papers' number of levels: their b bits are QSGD(levels=2**b). `bits` is what the authors'
    code has, s = 2^bits - 1: 0 to s in so many bits, the sign besides. tau = 1 + min(d / s^2, sqrt(d) / s) for a
    message of d values; contraction 1/tau on average. One norm a message, so a large message is mostly zeros,
    which the entropy coder makes small.

    Args:
        bits: as the authors' code counts them: 2^bits - 1 levels.
        levels: as the papers count them; give one of the two.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.QSGD(bits=4).compress(x, rng))) < 4 * x.numel()
        True
    """

    bits: int | Schedule | None = None
    levels: int | Schedule | None = None

    promise = Promise.CONTRACTION

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

    Examples:
        >>> import torch
        >>> tw.compress.Sign().compress(torch.tensor([[3.0, -1.0]]), torch.Generator()).to_tensor()
        tensor([[ 2., -2.]])
    """

    promise = Promise.CONTRACTION

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


# Pairs of values on the hexagonal lattice, the best of the plane (Zamir & Feder, 1996) ----------------------------


_MEAN = 5 / (36 * sqrt(3))  # mean squared error a value, in cell areas: 0.0802
_COVERING = 2 / (3 * sqrt(3))  # squared covering radius, in cell areas: 0.385
_MOST_LATTICE_BITS = 12


@dataclass(frozen=True, slots=True)
class HexLattice(Compressor):
    """Neighbouring values as pairs, scaled by the message's range, moved to the nearest lattice point.

    The pairs are those of the flat message, so that at most one value of it has no partner.
    A cell has the area V = 4^-bits of the square that the range spans; `bits` need not be whole. Every
    point reached is allowed, and the codec charges for it. With dither the mean squared error is
    0.0802 V range^2 a value, 4 % below Uniform's at the same area; the worst is 0.385 V range^2 a pair.

    Args:
        bits: of each value; need not be whole.
        dither: a random shift that both ends subtract.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.HexLattice(4).compress(x, rng))) < 4 * x.numel()
        True
    """

    bits: float | Schedule
    dither: bool = True

    promise = Promise.BOUNDED

    @property
    def suits_error_feedback(self) -> bool:
        # As for Uniform: one bit of a wide range loses more than there is.
        return reaches(self.bits)[0] >= 2

    def __post_init__(self) -> None:
        check_number(self, "bits", above=0, up_to=_MOST_LATTICE_BITS, error_rule=True)
        check_flag(self, "dither")

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Lattice:
        message = message_values(x)
        bits = self._bits(message, hint)
        low, high = message.lowest, message.highest
        seed = draw_seed(rng) if self.dither else None
        dither = Keystream.from_seed(seed or 0)
        values = message.working(precise=bits > 8 or message.width < 1e-25)
        centre = low + message.width / 2
        distance, height = lattice_spacing(low, high, bits)
        rows = np.empty((message.size + 1) // 2, np.int16)
        columns = np.empty_like(rows)
        for pairs in blocks(rows.size):
            across, up = _pairs(values, pairs, centre)
            across *= 1 / distance if distance else 0.0
            up *= 1 / height if distance else 0.0
            if self.dither:
                shift_across, shift_up = lattice_dither(dither, across.size)
                across += shift_across
                up += shift_up
            rows[pairs], columns[pairs] = _nearest(across, up)
        return Lattice(message.shape, rows, columns, low, high, bits, seed)

    def _bits(self, message: MessageValues, hint: Hint) -> float:
        def rule() -> ErrorRule:
            # V_t = E_t / (0.0802 B P), here in units of the squared range
            return halving_rule(_MEAN * message.size * message.width**2)

        return min(float(_MOST_LATTICE_BITS), max(0.0, at_round(self.bits, hint.round, rule)))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        cell = 4.0 ** -self._bits(message, hint) * message.width**2
        worst = (message.size + 1) // 2 * _COVERING * cell
        return ErrorBound.of(message, message.size * _MEAN * cell if self.dither else worst, worst)


def _pairs(values: Array, pairs: slice, centre: float) -> tuple[Array, Array]:
    """First and second values of these pairs, from the centre; an odd last value is paired with it."""
    across = values[2 * pairs.start : 2 * pairs.stop : 2] - centre
    up = values[2 * pairs.start + 1 : 2 * pairs.stop : 2] - centre
    return across, up if up.size == across.size else np.append(up, up.dtype.type(0))


def _nearest(across: Array, up: Array) -> tuple[Array, Array]:
    """The nearest lattice point as (row, column), both as floats.

    The lattice is two rectangular ones, of the even and of the odd rows; the nearer of their two
    nearest points is it.
    """
    even_rows = up * 0.5
    odd_rows = even_rows - 0.5
    np.rint(even_rows, out=even_rows)
    even_rows *= 2
    np.rint(odd_rows, out=odd_rows)
    odd_rows *= 2
    odd_rows += 1
    even_columns = np.rint(across)
    odd_columns = across - 0.5
    np.rint(odd_columns, out=odd_columns)
    from_even = _squared_distance(across - even_columns, up - even_rows)
    across -= 0.5
    across -= odd_columns
    from_odd = _squared_distance(across, up - odd_rows)
    odd_is_nearer = (from_odd < from_even).astype(across.dtype)
    return _blend(even_rows, odd_rows, odd_is_nearer), _blend(even_columns, odd_columns, odd_is_nearer)


def _blend(zero: Array, one: Array, which: Array) -> Array:
    """`zero` where `which` is 0 and `one` where it is 1; exact for integers. A masked copy would mispredict
    every other branch and take ten times as long."""
    one -= zero
    one *= which
    one += zero
    return one


def _squared_distance(across: Array, up: Array) -> Array:
    """A row is sqrt(3)/2 of a neighbour distance high."""
    across *= across
    up *= up
    up *= 0.75
    across += up
    return across


# Counts of biased coin throws: noise and quantisation in one (Chen et al., 2022; PBM-VFL) -------------------------


@dataclass(frozen=True, slots=True)
class PoissonBinomial(Compressor):
    """q ~ Binomial(trials, 1/2 + beta x / bound) for |x| <= bound, unbiased once decoded; beyond, x is truncated.

    The variance is at most bound^2 / (4 beta^2 trials) a value. It is private only as far as its
    generator is secret: pass a Keystream with a 256-bit key of the party's own. A throw compares 32
    random bits with a threshold, so each count is exactly binomial for an x rounded to a grid inside
    the bounds, and the accounting holds as it stands.

    Args:
        trials: binomial trials a value.
        beta: bias of each trial, up to 1/4.
        bound: values are cut off beyond it.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.PoissonBinomial(16, 0.2).compress(x, rng))) < 4 * x.numel()
        True
    """

    trials: int
    beta: float
    bound: float = 1.0

    promise = Promise.UNBIASED

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
            # Throws of few values together, in the same order: a call for each costs more than its bits.
            for throws in blocks(self.trials, max(1, BLOCK // thresholds.size)):
                words = stream.words((throws.stop - throws.start) * thresholds.size).reshape(-1, thresholds.size)
                counts[block] += (words < thresholds).sum(axis=0, dtype=counts.dtype)
        return Counts(message.shape, counts, self.trials + 1, self.trials, self.beta, self.bound)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        variance = self.bound**2 / (4 * self.beta**2 * self.trials)
        # Every throw the same way: the decoded value is then bound / (2 beta), x at most bound.
        farthest = self.bound / (2 * self.beta) + self.bound
        beyond = max(0.0, message.largest - self.bound)
        return ErrorBound.of(message, message.size * (variance + beyond**2), message.size * (farthest + beyond) ** 2)
