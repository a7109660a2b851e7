"""How the values of a column lie, and the scale that follows; exact, or of a stream of rows that is never held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import Field, model_validator

from thinwire.data.prepare.parsing import Floats
from thinwire.data.prepare.settings import Finite, StrictModel

EXACT_ROWS = 1 << 22  # up to here a column is held in memory, and everything is exact
SAMPLE_ROWS = 1 << 20  # of a longer column: medians and quantiles are those of so many rows
MOST_WORDS = 1 << 18  # different ones that are counted of a longer column
_LEAST_HASHES = 1 << 16  # by which different words are estimated where they are more
_FARTHEST = 10.0  # deviations: what is farther out is a slip of the pen, or counts as this much
_KNOTS = 101
_WHOLE = 2.0**24  # up to here float32 holds all whole numbers
_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True, eq=False)
class ColumnSpread:
    """How the values of a column lie. `values` are all that are there, or a sample; all else is of all rows."""

    values: Floats
    count: int
    gaps: int
    low: float = 0.0
    high: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0
    is_whole: bool = True

    @classmethod
    def of(cls, x: Floats) -> ColumnSpread:
        """Of all values, NaN for gaps."""
        there = x[~np.isnan(x)]
        if not there.size:
            return cls(there, 0, len(x))
        low, high, whole = float(there.min()), float(there.max()), bool((there == np.floor(there)).all())
        with np.errstate(over="ignore", invalid="ignore"):  # what is too large is refused by its size
            mean, deviation = float(there.mean()), float(there.std())
        return cls(there, len(there), len(x) - len(there), low, high, mean, deviation, whole)

    @classmethod
    def of_pieces(cls, pieces: Iterable[Floats], sample: Floats) -> ColumnSpread:
        """Of values that come in pieces; moments are added up as Chan, Golub and LeVeque do."""
        found = cls(np.zeros(0), 0, 0)
        for piece in pieces:
            found = found._join(cls.of(piece))
        return replace(found, values=sample[~np.isnan(sample)])

    def _join(self, other: ColumnSpread) -> ColumnSpread:
        if not self.count or not other.count:
            held = self if self.count else other
            return replace(held, values=np.zeros(0), gaps=self.gaps + other.gaps)
        count, far = self.count + other.count, other.mean - self.mean
        squares = sum(one.count * one.deviation**2 for one in (self, other))
        squares += far**2 * self.count * other.count / count
        return ColumnSpread(
            np.zeros(0),
            count,
            self.gaps + other.gaps,
            min(self.low, other.low),
            max(self.high, other.high),
            self.mean + far * other.count / count,
            float(np.sqrt(squares / count)),
            self.is_whole and other.is_whole,
        )

    @cached_property
    def median(self) -> float:
        return float(np.median(self.values))

    def subtract_from(self, x: float) -> ColumnSpread:
        """Of x minus each value."""
        return replace(self, values=x - self.values, low=x - self.high, high=x - self.low, mean=x - self.mean)


@dataclass
class WordCounts:
    """How many rows have each word; of very many different ones, only about how many there are."""

    most: int | None = None  # different words that are counted; None: any number
    words: Counter[str] = field(default_factory=Counter)
    missing: int = 0
    there: int = 0
    are_too_many: bool = False
    _hashes: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    def add(self, values: Any) -> None:
        """An Arrow column of text."""
        counts = values.value_counts()
        words, numbers = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
        found = Counter(dict(zip(words, numbers, strict=True)))
        self.missing += found.pop(None, 0)
        self.there += found.total()
        if self.are_too_many or (self.most is not None and len(self.words) + len(found) > self.most):
            self._estimate({**found, **self.words})
            self.words, self.are_too_many = Counter(), True
        else:
            self.words.update(found)

    def _estimate(self, words: Iterable[str]) -> None:
        """Keeps the least hashes: the denser they lie, the more different words there are."""
        new = np.fromiter((xxhash.xxh3_64_intdigest(word.encode()) for word in words), np.uint64)
        self._hashes = np.unique(np.concatenate([self._hashes, new]))[:_LEAST_HASHES]

    @property
    def different(self) -> int:
        """How many words; estimated to about 0.4 % where they are too many."""
        if not self.are_too_many or len(self._hashes) < _LEAST_HASHES:
            return len(self.words) or len(self._hashes)
        return int((_LEAST_HASHES - 1) / (float(self._hashes[-1]) / 2.0**64))


class Standard(StrictModel):
    """(x - mean) / deviation, at most 10 either way."""

    by: Literal["standard"] = "standard"
    mean: Finite
    deviation: Annotated[Finite, Field(gt=0)]

    def apply(self, x: Floats) -> Floats:
        return np.clip((x - self.mean) / self.deviation, -_FARTHEST, _FARTHEST)


class Quantile(StrictModel):
    """The share of training rows below x, centred, with deviation 1: heavy tails and outliers do not matter."""

    by: Literal["quantile"] = "quantile"
    values: tuple[Finite, ...]  # rising
    shares: tuple[Finite, ...]  # one for each

    @model_validator(mode="after")
    def _pairs_rise(self) -> Self:
        if not self.values or len(self.values) != len(self.shares) or any(a >= b for a, b in pairwise(self.values)):
            raise ValueError("values must be increasing, with a share for each")
        return self

    def apply(self, x: Floats) -> Floats:
        share = np.interp(x, self.values, self.shares)
        return np.multiply(share - 0.5, np.sqrt(12.0))


class Range(StrictModel):
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


class Unscaled(StrictModel):
    """As it is, for models that only compare; no farther than float32 goes.

    Values that lie far from 0 and close together, as times in seconds do, lose the digits that tell them apart in
    float32: an `offset` is taken off them first.
    """

    by: Literal["none"] = "none"
    offset: Finite = 0.0

    @classmethod
    def between(cls, low: float, high: float) -> Unscaled:
        """For values from low to high; their middle is taken off where integers would fall together."""
        span, middle = high - low, low / 2 + high / 2
        if abs(middle) <= span or max(abs(low), abs(high)) <= _WHOLE:
            return cls()
        step = 2.0 ** np.floor(np.log2(span))  # coarse, so that it is the same for other rows of the table
        return cls(offset=float(np.round(middle / step) * step))

    def apply(self, x: Floats) -> Floats:
        return np.clip(x - self.offset, -_FLOAT32, _FLOAT32)


AnyScale = Annotated[Standard | Quantile | Range | Unscaled, Field(discriminator="by")]


def fit_scale(x: ColumnSpread, by: Literal["standard", "quantile", "none"]) -> Standard | Quantile | Unscaled:
    """Of the values that are there; they are not all the same."""
    if by == "none":
        return Unscaled.between(x.low, x.high)
    if by == "standard":
        return Standard(mean=x.mean, deviation=x.deviation)
    shares = np.linspace(0, 1, _KNOTS)
    knots = np.quantile(x.values, shares)
    knots[0], knots[-1] = x.low, x.high  # which a sample may lack
    values, places = np.unique(knots, return_inverse=True)
    # A value that many rows share stands in the middle of its ranks.
    middle = np.bincount(places, shares) / np.bincount(places)
    return Quantile(values=tuple(values.tolist()), shares=tuple(middle.tolist()))
