"""Checks of what the accounting is asked: one message that names the field. Imports nothing heavy.

Those of `compress.compressor` do the same for compressors, with schedules; importing them imports torch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Integral, Real

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
