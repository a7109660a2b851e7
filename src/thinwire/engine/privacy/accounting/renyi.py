"""Renyi differential privacy: composition by addition, and conversion to (epsilon, delta).

An RDP curve is a function of the order alpha > 1, `math.inf` included. What is not proven is infinite.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, inf, isfinite, log, log1p, sqrt
from numbers import Integral, Real
from typing import TypeAlias

from thinwire.base.errors import BadParameter

LARGEST = 2**31 - 1  # of any count
LARGEST_BETA = 0.25


def require_whole(name: str, value: object, low: int, high: int = LARGEST) -> int:
    """The value as an int from low to high."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadParameter(f"{name} must be a whole number from {low} to {high}, got {value!r}")
    if not low <= int(value) <= high:
        raise BadParameter(f"{name} must be from {low} to {high}, got {value}")
    return int(value)


def require_positive(name: str, value: object) -> float:
    """The value as a finite float above 0."""
    number = _number(name, value, "above 0")
    if not number > 0:
        raise BadParameter(f"{name} must be above 0, got {value}")
    return number


def require_beta(name: str, value: object) -> float:
    """The value as a float in (0, 1/4]."""
    number = _number(name, value, "above 0 and at most 0.25")
    if not 0 < number <= LARGEST_BETA:
        raise BadParameter(f"{name} must be above 0 and at most 0.25, got {value}")
    return number


def require_delta(name: str, value: object) -> float:
    """The value as a float in (0, 1)."""
    number = _number(name, value, "between 0 and 1")
    if not 0 < number < 1:
        raise BadParameter(f"{name} must be between 0 and 1, got {value}; well below 1 / rows says something")
    return number


def _number(name: str, value: object, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not isfinite(value):
        raise BadParameter(f"{name} must be a finite number {wanted}, got {value!r}")
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


# Renyi differential privacy: composition by addition, and conversion to (epsilon, delta) --------------------------


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


def gaussian_rdp(noise_multiplier: float) -> Rdp:
    """Of one step in which the row takes part: 2 alpha / s^2, for rows clipped at c and noise s c on the sum.

    Replacing the row moves the sum by up to 2c, twice as far as removing it: alpha (2c)^2 / (2 (s c)^2).
    """
    cost = 2 / require_positive("noise_multiplier", noise_multiplier) ** 2
    return lambda alpha: cost * alpha
