"""How sure a difference between two kinds of runs is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import TypeAlias

# Student's t, two-sided 95 %, by degrees of freedom from 1; beyond the table its last value, which is the wider one.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


Chance: TypeAlias = Callable[[float], float]  # from a share of rows to what chance may do to it


@dataclass(frozen=True)
class Difference:
    """The mean over seeds, and the interval that the true one lies in (95 %); above 0 is better."""

    mean: float
    margin: float  # infinite where nothing is known about chance

    @property
    def is_clear(self) -> bool:
        return abs(self.mean) > self.margin

    @property
    def low(self) -> float:
        return self.mean - self.margin

    @property
    def high(self) -> float:
        return self.mean + self.margin


def difference(ours: Mapping[int, float], theirs: Mapping[int, float], chance: Chance | None) -> Difference | None:
    """ours - theirs, seed by seed: the same first weights and batches, so what seeds have in common cancels.

    `chance` gives the margin where there is one seed alone. None where no seed has both.
    """
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs:
        return None
    mean = sum(pairs) / len(pairs)
    if len(pairs) == 1:
        (middle,) = [(ours[seed] + theirs[seed]) / 2 for seed in ours if seed in theirs]
        return Difference(mean, inf if chance is None else chance(middle))
    deviation = sqrt(sum((pair - mean) ** 2 for pair in pairs) / (len(pairs) - 1))
    return Difference(mean, _T[min(len(pairs) - 1, len(_T)) - 1] * deviation / sqrt(len(pairs)))


def resolution(share: float, rows: int) -> float:
    """Two standard errors of the difference of two shares of `rows` test rows: what one seed can tell at best."""
    kept = min(max(share, 1 / (rows + 2)), 1 - 1 / (rows + 2))
    return 2 * sqrt(2 * kept * (1 - kept) / rows)
