"""How sure a count is: exact binomial bounds, and the epsilon that follows from two counts."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from thinwire.base.errors import BadParameter
from thinwire.engine.compress.message import Array

_THRESHOLDS = 400


def at_least(hits: int, trials: int, error: float) -> float:
    """The chance of a hit is this or more; wrong with chance `error` at most (Clopper and Pearson, 1934)."""
    if not 0 <= hits <= trials or trials < 1:
        raise BadParameter(f"{hits} hits in {trials} trials cannot be")
    if hits == 0:
        return 0.0
    low, high = 0.0, hits / trials
    # Below hits / trials all that counts of P(X >= hits) lies within a few deviations of it.
    last = min(trials, hits + int(12 * sqrt(hits)) + 200)
    counts = np.arange(hits, last + 1)
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    ways = factorials[trials] - factorials[counts] - factorials[trials - counts]
    for _ in range(60):
        chance = (low + high) / 2
        tail = np.exp(ways + counts * log(chance) + (trials - counts) * np.log1p(-chance)).sum()
        low, high = (low, chance) if tail > error else (chance, high)
    return low


def at_most(hits: int, trials: int, error: float) -> float:
    """The chance of a hit is this or less; wrong with chance `error` at most."""
    return 1 - at_least(trials - hits, trials, error)


@dataclass(frozen=True, order=True, slots=True)
class Threshold:
    """An attacker who says "this world" where sign * score >= place; it showed `promise` when it was chosen."""

    promise: float
    place: float
    sign: float
    swapped: bool  # "this world" is the second one

    def epsilon(self, one: Array, other: Array, delta: float, error: float = 0.05) -> float:
        """No (epsilon, delta) below this holds for worlds with these scores; wrong with chance `error` at most.

        Says the attacker "this world" rightly with chance t and wrongly with chance f, then t <= e^epsilon f + delta.
        The scores must be others than those it was chosen on.
        """
        hits, misses = (other, one) if self.swapped else (one, other)
        right, wrong = (int((self.sign * scores >= self.place).sum()) for scores in (hits, misses))
        surely = at_least(right, len(hits), error / 2) - delta
        if surely <= 0:
            return 0.0
        return max(0.0, log(surely / at_most(wrong, len(misses), error / 2)))


def best_threshold(one: Array, other: Array, delta: float) -> Threshold:
    """The threshold, and the side of it, that shows the largest epsilon on these scores."""
    if min(len(one), len(other)) < 1:
        raise BadParameter("an audit needs scores of either world")
    found = []
    for swapped in (False, True):
        for sign in (1.0, -1.0):
            hits, misses = (other, one) if swapped else (one, other)
            promise, place = _promising(sign * hits, sign * misses, delta)
            found.append(Threshold(promise, place, sign, swapped))
    return max(found)


def epsilon_lower_bound(one: Array, other: Array, delta: float, error: float = 0.05) -> float:
    """The epsilon that scores of two worlds certainly show: a threshold chosen on one half, judged on the other."""
    half = min(len(one), len(other)) // 2
    return best_threshold(one[:half], other[:half], delta).epsilon(one[half:], other[half:], delta, error)


def _promising(hits: Array, misses: Array, delta: float) -> tuple[float, float]:
    """The largest bound, about, and the threshold that gives it."""
    hits, misses = np.sort(hits), np.sort(misses)
    places = np.unique(np.geomspace(1, len(hits), _THRESHOLDS).astype(int))
    thresholds = np.unique(np.concatenate([hits[-places], misses[-places], [np.nextafter(misses[-1], inf)]]))
    right = 1 - np.searchsorted(hits, thresholds) / len(hits)
    wrong = 1 - np.searchsorted(misses, thresholds) / len(misses)
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.log((_wilson(right, len(hits), -1.0) - delta) / _wilson(wrong, len(misses), 1.0))
    bounds = np.nan_to_num(bounds, nan=-inf, neginf=-inf)
    best = int(np.argmax(bounds))
    return float(bounds[best]), float(thresholds[best])


def _wilson(share: Array, trials: int, side: float, deviations: float = 2.24) -> Array:
    """Nearly Clopper and Pearson's bound, for many shares at once."""
    z2 = deviations**2 / trials
    centre = share + z2 / 2
    half: Array = np.sqrt(z2 * share * (1 - share) + (z2 / 2) ** 2)
    bound: Array = (centre + side * half) / (1 + z2)
    return bound
