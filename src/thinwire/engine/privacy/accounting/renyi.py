"""Renyi differential privacy: composition by addition, and conversion to (epsilon, delta).

An RDP curve is a function of the order alpha > 1, `math.inf` included. What is not proven is infinite.

The Poisson binomial mechanism has an exact curve for one coordinate of one row. With p+- = 1/2 +- beta, n = m b
binomial trials that the observer does not know, and * the convolution:

    eps_1(alpha) = max over k of D_alpha(Bin(b, p+) * R_k || Bin(b, p-) * R_k),
    R_k = Bin(k, p+) * Bin(n - b - k, p-), worst at k = 0 or k = n - b.

Counting losses instead of wins swaps p+ and p-, hence k = 0 and k = n - b, and the two arguments of D: the end
k = n - b is D(Q || P) of the end k = 0. So one pair of distributions gives both ends and both directions:

    Q = Bin(n, p-),   P = Bin(b, p+) * Bin(n - b, p-),   eps_1 = max(D(P || Q), D(Q || P)).

(8 alpha b beta^2 / (m (1 - 4 beta^2)), as often quoted, is the limit for small beta and no bound.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import atanh, exp, inf, isfinite, isinf, lgamma, log, log1p, sqrt
from numbers import Integral, Real
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from thinwire.base.errors import BadParameter

LARGEST = 2**31 - 1  # of any count
LARGEST_BETA = 0.25


def require_whole(name: str, value: object, low: int, high: int = LARGEST) -> int:
    """The value as an int from low to high."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadParameter(f"{name} must be an integer from {low} to {high}, got {value!r}")
    if not low <= int(value) <= high:
        raise BadParameter(f"{name} must be from {low} to {high}, got {value}")
    return int(value)


def require_positive(name: str, value: object) -> float:
    """The value as a finite float above 0."""
    return _require_number(name, value, "above 0", lambda number: number > 0)


def require_beta(name: str, value: object) -> float:
    """The value as a float in (0, 1/4]."""
    return _require_number(name, value, "above 0 and at most 0.25", lambda number: 0 < number <= LARGEST_BETA)


def require_delta(name: str, value: object) -> float:
    """The value as a float in (0, 1)."""
    hint = "; well below 1 / rows says something"
    return _require_number(name, value, "between 0 and 1", lambda number: 0 < number < 1, hint)


def _require_number(name: str, value: object, wanted: str, fits: Callable[[float], bool], hint: str = "") -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise BadParameter(f"{name} must be a finite number {wanted}, got {value!r}")
    if not fits(float(value)):
        raise BadParameter(f"{name} must be {wanted}, got {value}{hint}")
    return float(value)


_CLOSE = 1.0002


def largest_within(increasing: Callable[[float], float], limit: float, guess: float, most: float) -> float:
    """Within 0.02 % of the largest x in (0, most] with increasing(x) <= limit; never over it."""
    if increasing(most) <= limit:
        return most
    low, high = min(guess, most), most
    while increasing(low) > limit:
        low, high = low / 2, low
    while high == most and increasing(min(2 * low, most)) <= limit:
        low *= 2
    high = min(high, 2 * low)
    while high > low * _CLOSE:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if increasing(middle) <= limit else (low, middle)
    return low


Rdp: TypeAlias = Callable[[float], float]

# log(alpha - 1), from alpha = 1 + 1e-8 to 1e8 in steps of a factor of four; alpha = infinity comes on top.
_STEP = log(4)
_COARSE = tuple(log(1e-8) + place * _STEP for place in range(28))
_GOLDEN = (sqrt(5) - 1) / 2
_NARROW = 1e-5


def infinite_rdp(_alpha: float) -> float:
    """The curve of whatever has no proof."""
    return inf


def compose(*parts: tuple[int, Rdp]) -> Rdp:
    """So many uses of each part, one after another, each seeing what came before."""
    used = [(uses, rdp) for uses, rdp in parts if uses > 0]  # none of an unproven part is nothing, not NaN
    return lambda alpha: sum((uses * rdp(alpha) for uses, rdp in used), 0.0)


def convert_to_epsilon(rdp: Rdp, delta: float) -> float:
    """The least epsilon over all orders: min RDP(alpha) + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1).

    (Canonne, Kamath and Steinke, 2020, proposition 12.) Every order gives a true bound, so the search can only
    be loose, never wrong. It has one valley: the bound is a convex function of alpha over alpha - 1, since
    (alpha - 1) RDP(alpha) is convex.
    """
    delta = require_delta("delta", delta)

    def bound(log_excess: float) -> float:
        excess = exp(log_excess)
        log_alpha = log1p(excess)
        return rdp(1 + excess) + log_excess - log_alpha - (log(delta) + log_alpha) / excess

    _, lowest = min((bound(place), place) for place in _COARSE)
    low, high = max(lowest - _STEP, _COARSE[0]), min(lowest + _STEP, _COARSE[-1])
    # At alpha = infinity nothing is left but the RDP: pure differential privacy, which holds for any delta.
    return max(0.0, min(_least(bound, low, high), rdp(inf)))


def _least(bound: Callable[[float], float], low: float, high: float) -> float:
    """The least value in one valley, by golden section."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    least = min(at_left, at_right)
    while high - low > _NARROW:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = bound(right)
        least = min(least, at_left, at_right)
    return least


def pure_rdp(epsilon: float) -> Rdp:
    """Of one use of whatever is epsilon-private without a delta: no more than of randomised response between two.

    Any such mechanism can be computed from that one's answer (Kairouz, Oh and Viswanath, 2015, theorem 3.1).
    """

    def rdp(alpha: float) -> float:
        if isinf(alpha):
            return epsilon
        return epsilon + (log1p(exp((1 - 2 * alpha) * epsilon)) - log1p(exp(-epsilon))) / (alpha - 1)

    return rdp


def gaussian_rdp(noise_multiplier: float) -> Rdp:
    """Of one step in which the row takes part: 2 alpha / s^2, for rows clipped at c and noise s c on the sum.

    Replacing the row moves the sum by up to 2c, twice as far as removing it: alpha (2c)^2 / (2 (s c)^2).
    """
    cost = 2 / require_positive("noise_multiplier", noise_multiplier) ** 2
    return lambda alpha: cost * alpha


# The Poisson binomial mechanism: its exact Renyi divergence for one coordinate of one row -------------------------


Array = npt.NDArray[np.float64]

_MOST_DRAWS = 2**18
_SMALL = 0.1
_NEGLIGIBLE = 100  # e^-100 of a sum that is 1 at least: a million such terms are far below its last digit


def poisson_binomial_epsilon(
    trials: int, beta: float, width: int, unknown_parties: int, epochs: int, delta: float
) -> float:
    """The epsilon of releasing one row's sum of `width` values in `epochs` epochs, each with fresh noise.

    `unknown_parties` is how many parties' noise the observer does not know, the protected party's included. End
    to end it holds only if the bottom model is frozen or public, or trained privately.

    Args:
        trials: binomial trials a value.
        beta: bias of each trial.
        width: values of an embedding.
        unknown_parties: parties whose noise the observer does not know.
        epochs: releases of each row.
        delta: of the guarantee.

    Returns:
        Epsilon of (epsilon, delta)-differential privacy for one party's values of a row.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> round(tw.privacy.poisson_binomial_epsilon(16, 0.1, 16, 3, 10, 1e-5), 1) > 1
        True
    """
    trials, beta = require_whole("trials", trials, 1, 65535), require_beta("beta", beta)
    uses = require_whole("width", width, 1) * require_whole("epochs", epochs, 0)
    one = coordinate(trials, beta, require_whole("unknown_parties", unknown_parties, 1))
    return convert_to_epsilon(compose((uses, one.rdp)), delta)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """The two sums that are hardest to tell apart, as log-probabilities of 0 to n wins."""

    log_q: Array
    log_p: Array
    log_ratio: Array  # log(P / Q), increasing
    largest: float  # of |log_ratio|

    def rdp(self, alpha: float) -> float:
        """eps_1(alpha), for any real alpha > 1."""
        if isinf(alpha):
            return self.largest
        forth = _log_moment(self.log_q, self.log_p, self.log_ratio, alpha)
        back = _log_moment(self.log_p, self.log_q, -self.log_ratio, alpha)
        return min(max(forth, back) / (alpha - 1), self.largest)


@lru_cache(maxsize=16)
def coordinate(trials: int, beta: float, unknown_parties: int) -> Coordinate:
    """One coordinate among this many parties whose noise is unknown."""
    # Fewer unknown parties give a larger divergence: past 2^18 binomial trials it is a bound, not exact.
    parties = min(unknown_parties, max(1, _MOST_DRAWS // trials))
    draws = parties * trials
    largest = 2 * trials * atanh(2 * beta)  # b log(p+ / p-)
    log_ratio = np.cumsum(np.array([-largest, *_log_steps(draws, trials, beta)]))
    log_q = _log_binomial(draws, beta)
    log_p = log_q + log_ratio
    return Coordinate(log_q, log_p, log_ratio, largest)


def _log_binomial(draws: int, beta: float) -> Array:
    """log Bin(n, 1/2 - beta)."""
    log_factorial = np.array([lgamma(wins + 1) for wins in range(draws + 1)])
    wins = np.arange(draws + 1)
    ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    logs: Array = ways + wins * log(0.5 - beta) + (draws - wins) * log(0.5 + beta)
    logs -= np.log(np.exp(logs).sum())  # what lgamma rounds away
    return logs


def _log_steps(draws: int, trials: int, beta: float) -> Iterator[float]:
    """log(r(y+1) / r(y)) for r = P / Q and y = 0 to n - 1, exactly, in time n.

    P's generating function (p- + p+ z)^b (p+ + p- z)^(n - b) obeys a differential equation of first order. It
    gives, with A = b p+^2 + (n - b) p-^2 and B = p+^2 + p-^2,

        p-^2 (n - y) r(y+1) = (A - B y) r(y) + p+^2 y r(y-1).

    Up to y = A / B all terms are positive, and above it they are when the equation is read downwards: no
    digits are lost in either half.
    """
    plus, minus = (0.5 + beta) ** 2, (0.5 - beta) ** 2
    start, slope = trials * plus + (draws - trials) * minus, plus + minus
    turn = min(draws, int(start / slope))
    step = inf
    for y in range(turn):
        step = (start - slope * y + plus * y / step) / (minus * (draws - y))
        yield log(step)
    downwards: list[float] = []
    step = inf
    for y in range(draws, turn, -1):
        step = (slope * y - start + minus * (draws - y) / step) / (plus * y)
        downwards.append(-log(step))
    yield from reversed(downwards)


def _log_moment(log_base: Array, log_other: Array, log_ratio: Array, alpha: float) -> float:
    """log of the mean of ratio^alpha under the base, where ratio = other / base."""
    exponents = log_base + alpha * log_ratio
    top = float(exponents.max())
    moment = top + log(float(np.exp(exponents[exponents > top - _NEGLIGIBLE] - top).sum()))
    if moment > _SMALL:
        return moment
    # Near 0 the digits are in moment - 1. The mean of ratio - 1 is 0, so what remains is the mean of
    # ratio^alpha - 1 - alpha (ratio - 1) = ratio (ratio^(alpha-1) - 1) - (alpha - 1) (ratio - 1), never negative.
    counts = np.maximum(np.maximum(log_base, log_other), exponents) > -_NEGLIGIBLE
    ratio, base, other = log_ratio[counts], np.exp(log_base[counts]), np.exp(log_other[counts])
    excess = alpha - 1
    grown = np.where(
        excess * ratio > 1,
        np.exp(exponents[counts]) - other,  # never out of range, their sum is about 1; the factors could be
        other * np.expm1(np.minimum(excess * ratio, 1)),
    )
    moved = np.where(ratio > 1, other - base, base * np.expm1(np.minimum(ratio, 1)))
    return log1p(max(0.0, float((grown - excess * moved).sum())))
