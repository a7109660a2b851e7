"""What a party may say about the preparation of its table; everything else is guessed or fitted."""

from __future__ import annotations

from datetime import date
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from thinwire.base.errors import BadColumn
from thinwire.data.hashing import BUCKETS
from thinwire.data.readers.tables import select_columns

KindName = Literal["number", "category", "date", "boolean"]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Pair = Annotated[list[Finite], Field(min_length=2, max_length=2)]
Days = Annotated[list[date], Field(min_length=2, max_length=2)]
Words = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]
BucketCount = Annotated[int, Field(ge=BUCKETS[0], le=BUCKETS[-1])]


FOR_TREES = {"missing": "keep", "scaling": "none", "categories": "codes"}  # a table as it is, unless told otherwise


class StrictModel(BaseModel):
    """No unknown keys, no values of another type, no changes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Settings(StrictModel):
    """How columns become numbers; the names in `types` may be patterns.

    `known` holds what is public about a column: a range, a range of days, a vocabulary, or a number of buckets. Such
    a column is prepared without a look at its rows, which a guarantee for single rows needs.
    """

    types: dict[str, KindName] = {}
    missing: Literal["median", "mean", "keep"] = "median"  # what fills a gap among numbers; keep: it is NaN
    scaling: Literal["standard", "quantile", "none"] = "standard"
    categories: Literal["one_hot", "codes"] = "one_hot"  # codes: deep_tower, wide_and_deep, trees, scorecard
    vocabulary: Annotated[int, Field(ge=1)] = 50  # words of a category; one with more of them is hashed
    min_count: Annotated[int, Field(ge=1)] = 5  # a word that fewer rows have counts as unseen
    buckets: BucketCount = 64  # of a hashed category
    missing_words: list[str] = []  # cells that count as nothing, such as "?"
    known: dict[str, BucketCount | Pair | Days | Words] = {}

    @property
    def keeps_gaps(self) -> bool:
        return self.missing == "keep"

    def kind(self, name: str) -> KindName | None:
        """What is said about the kind of a column, if anything is."""
        if name in self.known:
            return _kind_of(self.known[name])
        return self.types.get(name) or next((k for one, k in self.types.items() if fnmatchcase(name, one)), None)

    def require_columns(self, what: str, names: tuple[str, ...]) -> None:
        """Refuses settings of columns that are not there, and of a column that is two things."""
        for name in self.known:
            if name not in names:
                select_columns(what, names, [name])
            stated = self.types.get(name)
            if stated not in (None, self.kind(name)):
                raise BadColumn(f"known.{name} describes a {self.kind(name)}, but types declares {stated}")
        select_columns(what, names, list(self.types) or None)


def _kind_of(known: int | list[float] | list[date] | list[str]) -> KindName:
    match known:
        case [date(), *_]:
            return "date"
        case [str(), *_] | int():
            return "category"
        case _:
            return "number"
