"""The same quantities by the longest way: fractions, every k, every order. Shares no code with thinwire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import comb, exp, fsum, log

import numpy as np
import numpy.typing as npt

Probabilities = list[Fraction]


def binomial(throws: int, chance: Fraction) -> Probabilities:
    return [comb(throws, wins) * chance**wins * (1 - chance) ** (throws - wins) for wins in range(throws + 1)]


def convolved(one: Probabilities, other: Probabilities) -> Probabilities:
    total = [Fraction(0)] * (len(one) + len(other) - 1)
    for place, p in enumerate(one):
        for further, q in enumerate(other):
            total[place + further] += p * q
    return total


def pair(trials: int, beta: Fraction, parties: int, k: int) -> tuple[Probabilities, Probabilities]:
    """Bin(b, p+) * R_k and Bin(b, p-) * R_k."""
    plus, minus = Fraction(1, 2) + beta, Fraction(1, 2) - beta
    rest = convolved(binomial(k, plus), binomial((parties - 1) * trials - k, minus))
    return convolved(binomial(trials, plus), rest), convolved(binomial(trials, minus), rest)


def renyi(p: Probabilities, q: Probabilities, alpha: float) -> float:
    """D_alpha(p || q)."""
    exponents = [alpha * _log(a) + (1 - alpha) * _log(b) for a, b in zip(p, q, strict=True)]
    top = max(exponents)
    return (top + log(fsum(exp(exponent - top) for exponent in exponents))) / (alpha - 1)


def _log(number: Fraction) -> float:
    return log(number.numerator) - log(number.denominator)


def converted(rdp: Callable[[float], float], delta: float, orders: Sequence[float]) -> float:
    """The least over a list of orders, by the formula as it is written."""
    return min(rdp(alpha) + log(1 - 1 / alpha) - log(delta * alpha) / (alpha - 1) for alpha in orders)


def least_true_epsilon(p: Probabilities, q: Probabilities, uses: int, delta: float, step: float = 2e-3) -> float:
    """No smaller epsilon holds for `uses` independent draws: from their privacy loss, each rounded down to a grid.

    The loss of all draws is the sum of theirs; delta(epsilon) is the mean of 1 - e^(epsilon - loss) above epsilon.
    """
    places = [int(np.floor((_log(a) - _log(b)) / step)) for a, b in zip(p, q, strict=True)]
    lowest = min(places)
    one = np.zeros(max(places) - lowest + 1)
    for place, a in zip(places, p, strict=True):
        one[place - lowest] += float(a)
    total = _power(one, uses)
    losses = (np.arange(total.size) + uses * lowest) * step

    def delta_at(epsilon: float) -> float:
        above = losses > epsilon
        return float((total[above] * -np.expm1(epsilon - losses[above])).sum())

    low, high = 0.0, float(losses[-1])
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return low


def _power(one: npt.NDArray[np.float64], uses: int) -> npt.NDArray[np.float64]:
    total = np.ones(1)
    while uses:
        if uses % 2:
            total = _product(total, one)
        uses //= 2
        one = _product(one, one) if uses else one
    return total


def _product(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    size = one.size + other.size - 1
    # Rounding of the transform is about 1e-16 a place, far below any delta asked for here.
    return np.maximum(np.fft.irfft(np.fft.rfft(one, size) * np.fft.rfft(other, size), size), 0.0)
