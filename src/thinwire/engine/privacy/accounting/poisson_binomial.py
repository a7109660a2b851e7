"""The Poisson binomial mechanism: its exact Renyi divergence for one coordinate of one row.

With p+- = 1/2 +- beta, n = m b throws that the observer does not know, and * the convolution:

    eps_1(alpha) = max over k of D_alpha(Bin(b, p+) * R_k || Bin(b, p-) * R_k),
    R_k = Bin(k, p+) * Bin(n - b - k, p-), worst at k = 0 or k = n - b.

Counting losses instead of wins swaps p+ and p-, hence k = 0 and k = n - b, and the two arguments of D: the end
k = n - b is D(Q || P) of the end k = 0. So one pair of distributions gives both ends and both directions:

    Q = Bin(n, p-),   P = Bin(b, p+) * Bin(n - b, p-),   eps_1 = max(D(P || Q), D(Q || P)).

(8 alpha b beta^2 / (m (1 - 4 beta^2)), as often quoted, is the limit for small beta and no bound.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import atanh, inf, isinf, lgamma, log, log1p

import numpy as np
import numpy.typing as npt

from thinwire.engine.privacy.accounting.renyi import compose, convert_to_epsilon, require_beta, require_whole

Array = npt.NDArray[np.float64]

_MOST_THROWS = 2**18
_SMALL = 0.1
_NEGLIGIBLE = 100  # e^-100 of a sum that is 1 at least: a million such terms are far below its last digit


def poisson_binomial_epsilon(
    trials: int, beta: float, width: int, unknown_parties: int, epochs: int, delta: float
) -> float:
    """The epsilon of releasing one row's sum of `width` values in `epochs` epochs, each with fresh noise.

    `unknown_parties` is how many parties' noise the observer does not know, the protected party's included. End
    to end it holds only if the bottom model is frozen or public, or trained privately.
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
    # Fewer unknown parties give a larger divergence: past a quarter of a million throws it is a bound, not exact.
    parties = min(unknown_parties, max(1, _MOST_THROWS // trials))
    throws = parties * trials
    largest = 2 * trials * atanh(2 * beta)  # b log(p+ / p-)
    log_ratio = np.cumsum(np.array([-largest, *_log_steps(throws, trials, beta)]))
    log_q = _log_binomial(throws, beta)
    log_p = log_q + log_ratio
    return Coordinate(log_q, log_p, log_ratio, largest)


def _log_binomial(throws: int, beta: float) -> Array:
    """log Bin(n, 1/2 - beta)."""
    log_factorial = np.array([lgamma(wins + 1) for wins in range(throws + 1)])
    wins = np.arange(throws + 1)
    ways = log_factorial[-1] - log_factorial - log_factorial[::-1]
    logs: Array = ways + wins * log(0.5 - beta) + (throws - wins) * log(0.5 + beta)
    logs -= np.log(np.exp(logs).sum())  # what lgamma rounds away
    return logs


def _log_steps(throws: int, trials: int, beta: float) -> Iterator[float]:
    """log(r(y+1) / r(y)) for r = P / Q and y = 0 to n - 1, exactly, in time n.

    P's generating function (p- + p+ z)^b (p+ + p- z)^(n - b) obeys a differential equation of first order. It
    gives, with A = b p+^2 + (n - b) p-^2 and B = p+^2 + p-^2,

        p-^2 (n - y) r(y+1) = (A - B y) r(y) + p+^2 y r(y-1).

    Up to y = A / B all terms are positive, and above it they are when the equation is read downwards: no
    digits are lost in either half.
    """
    plus, minus = (0.5 + beta) ** 2, (0.5 - beta) ** 2
    start, slope = trials * plus + (throws - trials) * minus, plus + minus
    turn = min(throws, int(start / slope))
    step = inf
    for y in range(turn):
        step = (start - slope * y + plus * y / step) / (minus * (throws - y))
        yield log(step)
    downwards: list[float] = []
    step = inf
    for y in range(throws, turn, -1):
        step = (slope * y - start + minus * (throws - y) / step) / (plus * y)
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
