"""The largest argument of an increasing function that stays within a limit."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["largest_within"]

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
