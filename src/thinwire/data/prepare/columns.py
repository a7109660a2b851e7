"""Numbers on a like scale: by mean and deviation, by rank, or by a range that is known."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import date
from itertools import pairwise
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from thinwire.data.hashing import code_known_words, hash_codes
from thinwire.data.prepare import parsing
from thinwire.data.prepare.settings import Buckets, Finite, StrictModel
from thinwire.data.readers.cells import Cells

Floats: TypeAlias = NDArray[np.float64]

_FARTHEST = 10.0  # deviations: what is farther out is a slip of the pen, or counts as this much
_KNOTS = 101


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
            raise ValueError("values must rise, with a share for each")
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


AnyScale = Annotated[Standard | Quantile | Range, Field(discriminator="by")]


def fit_scale(x: Floats, by: Literal["standard", "quantile"]) -> Standard | Quantile:
    """Of the values that are there; they are not all the same."""
    if by == "standard":
        return Standard(mean=float(x.mean()), deviation=float(x.std()))
    shares = np.linspace(0, 1, _KNOTS)
    knots = np.quantile(x, shares)
    values, places = np.unique(knots, return_inverse=True)
    # A value that many rows share stands in the middle of its ranks.
    middle = np.bincount(places, shares) / np.bincount(places)
    return Quantile(values=tuple(values.tolist()), shares=tuple(middle.tolist()))


_YEAR, _WEEK, _DAY = 365.2425, 7.0, 1.0


class _Column(StrictModel):
    name: str
    public: bool = False  # prepared without a look at the rows

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the column becomes, by name."""
        return (self.name,)


class _WithGaps(_Column):
    gaps: bool  # training rows had some, so an output says where they are

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.gaps else (self.name,)

    def _marked(self, parts: list[Floats], missing: NDArray[np.bool_]) -> Floats:
        """With the indicator, where there is one."""
        return np.stack([*parts, missing.astype(np.float64)] if self.gaps else parts, axis=1)


class NumberColumn(_WithGaps):
    """Gaps filled, scaled."""

    kind: Literal["number"] = "number"
    fill: Finite
    scale: AnyScale

    def apply(self, cells: Cells) -> Floats:
        x = parsing.parse_numbers(cells, self.name)
        missing = np.isnan(x)
        return self._marked([self.scale.apply(np.where(missing, self.fill, x))], missing)

    @property
    def says(self) -> str:
        return f"{self.scale.by} scale" + (f", gaps filled with {self.fill:.4g} and marked" if self.gaps else "")


class BooleanColumn(_Column):
    """1 for true, -1 for false, 0 for nothing."""

    kind: Literal["boolean"] = "boolean"

    def apply(self, cells: Cells) -> Floats:
        return np.nan_to_num(2 * parsing.parse_booleans(cells, self.name) - 1)[:, None]

    @property
    def says(self) -> str:
        return "1, -1, and 0 for nothing"


class DateColumn(_WithGaps):
    """How long ago, on a scale; the place in the year, in the week, and in the day where it is known, as circles."""

    kind: Literal["date"] = "date"
    today: date  # ages count back from here
    scale: AnyScale  # of the age in days
    clock: bool  # dates have a time of day

    @property
    def outputs(self) -> tuple[str, ...]:
        circles = ("year", "week", "day") if self.clock else ("year", "week")
        parts = [f"{self.name} {part} {axis}" for part in circles for axis in ("sine", "cosine")]
        return (f"{self.name} age", *parts, *([f"{self.name} missing"] if self.gaps else []))

    def apply(self, cells: Cells) -> Floats:
        day = parsing.parse_days(cells, self.name)
        missing = np.isnan(day)
        parts = [self.scale.apply(count_days(self.today) - day)]
        for length in (_YEAR, _WEEK, _DAY) if self.clock else (_YEAR, _WEEK):
            # Whole days but for the clock: a date's place in the week does not depend on the hour.
            angle = 2 * np.pi * (day if length == _DAY else np.floor(day)) / length
            parts += [np.sin(angle), np.cos(angle)]
        return self._marked([np.where(missing, 0.0, part) for part in parts], missing)

    @property
    def says(self) -> str:
        circles = "year, week and day" if self.clock else "year and week"
        return f"age in days before {self.today}, place in the {circles}" + (", gaps marked" if self.gaps else "")


class _Coded(_Column, ABC):
    """A category: one code a row, or an output for each code."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many codes there are."""

    @property
    @abstractmethod
    def codes(self) -> tuple[str, ...]:
        """What each code stands for."""

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name} {code}" for code in self.codes)


class CategoryColumn(_Coded):
    """A vocabulary. Code 0 is for words that are not in it; a gap is a word of its own where rows had one."""

    kind: Literal["category"] = "category"
    words: tuple[str, ...]
    gaps: bool

    @property
    def size(self) -> int:
        return 1 + len(self.words) + self.gaps

    @property
    def codes(self) -> tuple[str, ...]:
        return ("unseen", *(f"= {word}" for word in self.words), *(["missing"] if self.gaps else []))

    def apply(self, cells: Cells) -> NDArray[np.int64]:
        known = {word: code for code, word in enumerate(self.words, 1)}
        nothing = len(self.words) + 1 if self.gaps else 0
        return code_known_words(parsing.parse_words(cells, self.name), known, 0, nothing).astype(np.int64)

    @property
    def says(self) -> str:
        shown = ", ".join(self.words[:4]) + (" ..." if len(self.words) > 4 else "")
        return f"{len(self.words)} values ({shown}), one place for others" + (", one for gaps" if self.gaps else "")


class HashedColumn(_Coded):
    """Too many words for a vocabulary: each falls into a bucket by its hash; bucket 0 is for nothing."""

    kind: Literal["hashed"] = "hashed"
    buckets: Buckets

    @property
    def size(self) -> int:
        return self.buckets

    @property
    def codes(self) -> tuple[str, ...]:
        return ("missing", *(f"bucket {code}" for code in range(1, self.buckets)))

    def apply(self, cells: Cells) -> NDArray[np.int64]:
        return hash_codes(self.name, parsing.parse_words(cells, self.name), self.buckets).astype(np.int64)

    @property
    def says(self) -> str:
        return f"many values, hashed into {self.buckets} places"


class LeftOutColumn(_Column):
    """A column that teaches nothing, or that would be learned by heart."""

    kind: Literal["left out"] = "left out"
    says: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


AnyColumn = Annotated[
    NumberColumn | BooleanColumn | DateColumn | CategoryColumn | HashedColumn | LeftOutColumn,
    Field(discriminator="kind"),
]


def count_days(day: date) -> float:
    """Days since 1970."""
    return float((day - date(1970, 1, 1)).days)
