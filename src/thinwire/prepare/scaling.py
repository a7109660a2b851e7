"""Numbers on a like scale: by mean and deviation, by rank, or by a range that is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from thinwire.prepare.settings import Finite, Frozen

__all__ = ["AnyScale", "Quantile", "Range", "Standard", "fitted_scale"]

Floats: TypeAlias = NDArray[np.float64]

_FARTHEST = 10.0  # deviations: what is farther out is a slip of the pen, or counts as this much
_KNOTS = 101


class Standard(Frozen):
    """(x - mean) / deviation, at most 10 either way."""

    by: Literal["standard"] = "standard"
    mean: Finite
    deviation: Annotated[Finite, Field(gt=0)]

    def apply(self, x: Floats) -> Floats:
        return np.clip((x - self.mean) / self.deviation, -_FARTHEST, _FARTHEST)


class Quantile(Frozen):
    """The share of training rows below x, centred, with deviation 1: heavy tails and outliers do not matter."""

    by: Literal["quantile"] = "quantile"
    values: tuple[Finite, ...]  # rising
    shares: tuple[Finite, ...]  # one for each

    @model_validator(mode="after")
    def _pairs_rise(self) -> Self:
        if not self.values or len(self.values) != len(self.shares) or any(a >= b for a, b in pairwise(self.values)):
            raise ValueError("values must rise, with a share for each")
        return self

    def apply(self, x: Floats) -> Floats:
        share = np.interp(x, self.values, self.shares)
        return np.multiply(share - 0.5, np.sqrt(12.0))


class Range(Frozen):
    """From -1 at `low` to 1 at `high`, and no farther."""

    by: Literal["range"] = "range"
    low: Finite
    high: Finite

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.low < self.high:
            raise ValueError("low must be below high")
        return self

    def apply(self, x: Floats) -> Floats:
        return np.clip(2 * (x - self.low) / (self.high - self.low) - 1, -1.0, 1.0)


AnyScale = Annotated[Standard | Quantile | Range, Field(discriminator="by")]


def fitted_scale(x: Floats, by: Literal["standard", "quantile"]) -> Standard | Quantile:
    """Of the values that are there; they are not all the same."""
    if by == "standard":
        return Standard(mean=float(x.mean()), deviation=float(x.std()))
    shares = np.linspace(0, 1, _KNOTS)
    knots = np.quantile(x, shares)
    values, places = np.unique(knots, return_inverse=True)
    # A value that many rows share stands in the middle of its ranks.
    middle = np.bincount(places, shares) / np.bincount(places)
    return Quantile(values=tuple(values.tolist()), shares=tuple(middle.tolist()))
