"""Which noise hides the class of a derivative best, for its power (Li et al., 2022, "Marvell").

Take the derivatives of class 1 as N(g1, v I) and those of class 0 as N(g0, u I), in d dimensions. Noise N(0, S1) and
N(0, S0) is added to them, of limited power, with p the share of class 1:

    p tr S1 + (1 - p) tr S0 <= power |g1 - g0|^2

What any attacker can make of it is bounded by KL(1 || 0) + KL(0 || 1), which is smallest where S1 and S0 have one
variance along g1 - g0 and one across it. With a1, a0 the total variances along, b1, b0 those across:

    2 sum KL = (a1^2 + a0^2 + |g1 - g0|^2 (a1 + a0)) / (a1 a0) - 2  +  (d - 1) (b1 - b0)^2 / (b1 b0)

Across, only the class that spreads less needs noise, up to the other's spread, never past it. Along, the first term
is a convex over a concave function of how the rest of the power is shared, so it has one valley. That leaves one
number to search, the power that is spent across.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thinwire.engine.compress.message import Array

_TINY = 1e-12  # of the largest variance: keeps 0 / 0 away where a class does not spread at all


@dataclass(frozen=True, slots=True)
class Spread:
    """Two classes as the noise sees them."""

    share: float  # of class 1
    distance: float  # |g1 - g0|^2
    variances: tuple[float, float]  # u of class 0, v of class 1: of each coordinate
    width: int  # d


@dataclass(frozen=True, slots=True)
class ClassNoise:
    """The noise's variance for class 0 and class 1, along one direction and in every other."""

    direction: Array  # [d], of length 1
    along: tuple[float, float]
    across: tuple[float, float]


def class_noise(derivatives: Array, positive: Array, power: float) -> ClassNoise:
    """The best noise for a batch of derivatives [B, d]; `positive` says which rows are of class 1."""
    width = derivatives.shape[1]
    if positive.all() or not positive.any():
        # One class alone: it is hidden from its mirror image, where the other one's derivatives would lie.
        mean = derivatives.mean(axis=0)
        variance = power * float(np.square(2 * mean).sum())
        return ClassNoise(_unit(mean), (variance, variance), (0.0, 0.0))
    classes = [derivatives[~positive], derivatives[positive]]
    means = [rows.mean(axis=0) for rows in classes]
    u, v = (float(np.square(rows - mean).mean()) for rows, mean in zip(classes, means, strict=True))
    difference = means[1] - means[0]
    spread = Spread(float(positive.mean()), float(np.square(difference).sum()), (u, v), width)
    along, across = least_divergent(spread, power)
    return ClassNoise(_unit(difference), along, across)


def least_divergent(spread: Spread, power: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The noise's variances along and across, for class 0 and class 1, with the least sum of divergences."""
    budget = power * spread.distance
    if budget == 0:
        return (0.0, 0.0), (0.0, 0.0)
    u, v = spread.variances
    shares = (1 - spread.share, spread.share)
    narrow = 0 if u < v else 1
    # The power that makes both classes spread alike across.
    enough = shares[narrow] * (spread.width - 1) * abs(u - v)
    low, high = 0.0, min(enough, budget)
    for _ in range(4):  # a sum of valleys may have several: look everywhere first, then closer
        spent = np.linspace(low, high, 65)
        best = int(np.argmin(_best_along(spread, budget - spent)[1] + _across(spread, narrow, spent)[1]))
        low, high = spent[max(best - 1, 0)], spent[min(best + 1, 64)]
    chosen = spent[best : best + 1]
    split = _best_along(spread, budget - chosen)[0]
    rest = float(budget - chosen[0])
    along = (float(rest * (1 - split[0]) / shares[0]), float(rest * split[0] / shares[1]))
    raised = float(_across(spread, narrow, chosen)[0][0])
    return along, ((raised, 0.0) if narrow == 0 else (0.0, raised))


def sum_kl(spread: Spread, along: tuple[float, float], across: tuple[float, float]) -> float:
    """KL(1 || 0) + KL(0 || 1) of the classes under this noise."""
    (u, v), floor = spread.variances, _floor(spread)
    a0, a1 = max(u + along[0], floor), max(v + along[1], floor)
    b0, b1 = max(u + across[0], floor), max(v + across[1], floor)
    line = (a1**2 + a0**2 + spread.distance * (a1 + a0)) / (a1 * a0) - 2
    return float(line + (spread.width - 1) * (b1 - b0) ** 2 / (b1 * b0)) / 2


def _best_along(spread: Spread, budget: Array) -> tuple[Array, Array]:
    """Class 1's share of the power along the difference, and twice its divergence, for each budget."""
    (u, v), floor = spread.variances, _floor(spread)
    # a1 = v + up t and a0 = high - down t, for a share t: the divergence is one quadratic N over another D.
    up, down = budget / spread.share, budget / (1 - spread.share)
    high = u + down
    n2, n1 = up**2 + down**2, 2 * (v * up - high * down) + spread.distance * (up - down)
    n0 = v**2 + high**2 + spread.distance * (v + high)
    d2, d1, d0 = -up * down, up * high - down * v, v * high
    # N' D - N D' has no third power left; its rising root is the valley.
    q2, q1, q0 = n2 * d1 - n1 * d2, 2 * (n2 * d0 - n0 * d2), n1 * d0 - n0 * d1
    root = q1 + np.sqrt(np.maximum(q1**2 - 4 * q2 * q0, 0))
    split = np.clip(-2 * q0 / np.where(root > 0, root, 1), 0, 1)
    a1, a0 = np.maximum(v + up * split, floor), np.maximum(high - down * split, floor)
    divergence: Array = (a1**2 + a0**2 + spread.distance * (a1 + a0)) / (a1 * a0) - 2
    return split, divergence


def _across(spread: Spread, narrow: int, spent: Array) -> tuple[Array, Array]:
    """The variance added to the narrow class across the difference, and twice the divergence that is left."""
    if spread.width == 1:
        return np.zeros_like(spent), np.zeros_like(spent)
    share = spread.share if narrow else 1 - spread.share
    added = spent / (share * (spread.width - 1))
    floor = _floor(spread)
    thin = np.maximum(min(spread.variances) + added, floor)
    wide = max(*spread.variances, floor)
    return added, (spread.width - 1) * (thin - wide) ** 2 / (thin * wide)


def _floor(spread: Spread) -> float:
    return _TINY * max(*spread.variances, spread.distance)


def _unit(vector: Array) -> Array:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else np.eye(len(vector))[0]
