"""A column on its way to a network: what kind it is, fitted on training rows, applied to any."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types
from numpy.typing import NDArray
from pydantic import Field

from thinwire.base.errors import BadColumn
from thinwire.data.hashing import code_known_words, hash_codes, row_keys
from thinwire.data.prepare import parsing
from thinwire.data.prepare.parsing import BOOLEANS, Floats, convert_numbers, find_date_format, is_text, trim
from thinwire.data.prepare.settings import BucketCount, Finite, KindName, Settings, StrictModel
from thinwire.data.prepare.statistics import (
    MOST_WORDS,
    SAMPLE_ROWS,
    AnyScale,
    ColumnSpread,
    Range,
    Unscaled,
    WordCounts,
    fit_scale,
)
from thinwire.data.readers.tables import Cells
from thinwire.data.readers.text_format import PLAIN, TextFormat

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
    keep: bool = False  # gaps are NaN, for models that take them; no output says where they are

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.gaps else (self.name,)

    def _marked(self, parts: list[Floats], missing: NDArray[np.bool_]) -> Floats:
        """With the indicator, where there is one."""
        return np.stack([*parts, missing.astype(np.float64)] if self.gaps else parts, axis=1)

    @property
    def _says_gaps(self) -> str:
        return ", gaps kept" if self.keep else ""


class NumberColumn(_WithGaps):
    """Missing values filled or kept, scaled."""

    kind: Literal["number"] = "number"
    fill: Finite  # of gaps that are not kept
    scale: AnyScale

    def apply(self, cells: Cells) -> Floats:
        x = parsing.parse_numbers(cells, self.name)
        missing = np.isnan(x)
        return self._marked([self.scale.apply(x if self.keep else np.where(missing, self.fill, x))], missing)

    @property
    def says(self) -> str:
        scale = "as it is" if isinstance(self.scale, Unscaled) else f"{self.scale.by} scale"
        if isinstance(self.scale, Unscaled) and self.scale.offset:
            scale += f" minus {self.scale.offset:.0f}"
        return scale + (f", missing values filled with {self.fill:.4g} and flagged" if self.gaps else self._says_gaps)


class BooleanColumn(_Column):
    """1 for true, -1 for false, 0 for nothing; or 1, 0 and NaN."""

    kind: Literal["boolean"] = "boolean"
    keep: bool = False  # gaps are NaN

    def apply(self, cells: Cells) -> Floats:
        found = parsing.parse_booleans(cells, self.name)[:, None]
        return found if self.keep else np.nan_to_num(2 * found - 1)

    @property
    def says(self) -> str:
        return "1, 0, gaps kept" if self.keep else "1, -1, and 0 if missing"


class DateColumn(_WithGaps):
    """How long ago, on a scale; the place in the year, in the week, and in the day where it is known.

    Places are points of a circle, two outputs each; or days since it began, for models that only compare.
    """

    kind: Literal["date"] = "date"
    today: date  # ages count back from here
    scale: AnyScale  # of the age in days
    clock: bool  # dates have a time of day

    @property
    def _is_circular(self) -> bool:
        return self.scale.by != "none"

    @property
    def outputs(self) -> tuple[str, ...]:
        circles = ("year", "week", "day") if self.clock else ("year", "week")
        axes = (" sine", " cosine") if self._is_circular else ("",)
        parts = [f"{self.name} {part}{axis}" for part in circles for axis in axes]
        return (f"{self.name} age", *parts, *([f"{self.name} missing"] if self.gaps else []))

    def apply(self, cells: Cells) -> Floats:
        day = parsing.parse_days(cells, self.name)
        missing = np.isnan(day)
        parts = [self.scale.apply(count_days(self.today) - day)]
        for length in (_YEAR, _WEEK, _DAY) if self.clock else (_YEAR, _WEEK):
            # Whole days but for the clock: a date's place in the week does not depend on the hour.
            place = day if length == _DAY else np.floor(day)
            angle = 2 * np.pi * place / length
            parts += [np.sin(angle), np.cos(angle)] if self._is_circular else [np.mod(place, length)]
        return self._marked(parts if self.keep else [np.where(missing, 0.0, part) for part in parts], missing)

    @property
    def says(self) -> str:
        circles = "year, week and day" if self.clock else "year and week"
        about = f"age in days before {self.today}, position in the {circles}"
        return about + (", gaps marked" if self.gaps else self._says_gaps)


class _Coded(_Column, ABC):
    """A category: one code a row, or an output for each code."""

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
        return f"{len(self.words)} values ({shown}), one bucket for rare or unseen values" + (
            ", one for missing values" if self.gaps else ""
        )


class HashedColumn(_Coded):
    """Too many words for a vocabulary: each falls into a bucket by its hash; bucket 0 is for nothing."""

    kind: Literal["hashed"] = "hashed"
    buckets: BucketCount

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
        return f"many values, hashed into {self.buckets} buckets"


CodedColumn = CategoryColumn | HashedColumn  # `size` says how many codes there are


class LeftOutColumn(_Column):
    """A column without information, or one that a model would overfit."""

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


# From the training rows of a column to a prepared column: what kind it is, by what its cells hold, then its fit ---


NO_VALUE = "no training row has a value"
_MOSTLY = 0.95  # with so many numbers among them, the other cells are slips
_SIGNS = {",": "comma", ".": "point"}
_FREE_TEXT = 0.9  # so many different values a row are names, notes or ids


def guess_kind(cells: Cells, name: str, vocabulary: int) -> KindName | LeftOutColumn:
    """The column's kind, or why it is better left out.

    Refuses a column of numbers with a few other cells among them: somebody has to say what it is.
    """
    values = cells.column(name)
    if values.null_count == len(values):
        return LeftOutColumn(name=name, says=NO_VALUE)
    kind = values.type
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return "date"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_dictionary(kind) and not is_text(kind):
        return "category"  # as pandas' own categories are, whatever they are made of
    if not is_text(kind):
        raise BadColumn(
            f"{cells.what}: column {name!r} holds {kind}, which is not a number, text or date; leave it out"
        )
    return _of_text(cells, name, trim(values), vocabulary)


def _of_text(cells: Cells, name: str, values: Any, vocabulary: int) -> KindName | LeftOutColumn:
    words = pc.drop_null(values.unique())
    if {word.lower() for word in words.to_pylist()} <= BOOLEANS.keys():
        return "boolean"
    if pc.any(pc.match_substring_regex(words, r"^0\d+$")).as_py():
        return "category"  # 01234 is a code: as a number it would lose its zero
    form = cells.form or PLAIN
    wrong = convert_numbers(values, form)[1]
    there = len(values) - values.null_count
    if not wrong.any():
        return "number"
    if 1 - wrong.sum() / there >= _MOSTLY:
        row = int(wrong.argmax())
        word = values[row].as_py()
        point = ", with a decimal point instead of a comma" if "," in word and form.decimal == "." else ""
        raise BadColumn(
            f"{cells.what}: {cells.where(row)}, column {name!r} holds {word!r}, but {there - wrong.sum()} of "
            f"{there} cells are numbers; correct it{point}, or declare what it is: missing_words = "
            f"[{_quoted(word)}], or {_as_category(name)}"
        )
    if find_date_format(words) is not None:
        return "date"
    other = "." if form.decimal == "," else ","
    if not convert_numbers(values, TextFormat(decimal=other))[1].any():
        some = next(word for word in words.to_pylist() if other in word)
        raise BadColumn(
            f"{cells.what}: column {name!r} holds numbers with a {_SIGNS[other]}, such as {some!r}; set "
            f'decimal = "{other}" next to the file, or declare what it is: {_as_category(name)}'
        )
    if len(words) > vocabulary and len(words) >= _FREE_TEXT * there:
        return LeftOutColumn(
            name=name, says=f"{len(words)} distinct texts in {there} rows: probably names, notes or ids"
        )
    return "category"


def _as_category(name: str) -> str:
    """As it is written in a job file."""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
    return f'types = {{ {key} = "category" }}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_LOOKED_AT = 1_024  # rows
_LARGEST = 1e100  # squares of it are still numbers


def fit_column(cells: Cells, name: str, settings: Settings) -> AnyColumn:
    """What is said of the column, else what its cells look like; what is known of it, else what its rows say."""
    if name in settings.known:
        return _known(name, settings)
    kind = settings.kind(name)
    if kind == "boolean":  # there is nothing to fit
        return BooleanColumn(name=name, public=True, keep=settings.keeps_gaps)
    if kind is None:
        guess = guess_kind(cells, name, settings.vocabulary)
        if isinstance(guess, LeftOutColumn):
            return guess
        kind = guess
    values = cells.column(name)
    # Of many different values, a table of all of them would be larger than the column.
    if values.null_count == 0 and len(values[:_LOOKED_AT].unique()) == 1 and len(values.unique()) == 1:
        return LeftOutColumn(name=name, says=f"every training row has {str(values[0].as_py())[:40]!r}")
    return _FITTED[kind](cells, name, settings)


def _known(name: str, settings: Settings) -> AnyColumn:
    """Of public facts alone. Gaps have their mark whether there are any or not: that would be a look at the rows."""
    keep, by = settings.keeps_gaps, settings.scaling
    match settings.known[name]:
        case int(buckets):
            return HashedColumn(name=name, public=True, buckets=buckets)
        case [date() as first, date() as last]:
            _require_rising(name, first, last)
            scale = Unscaled() if by == "none" else Range(low=0.0, high=count_days(last) - count_days(first))
            return DateColumn(name=name, public=True, gaps=not keep, keep=keep, today=last, scale=scale, clock=False)
        case [str(), *_] as words:
            if len(set(words)) != len(words):
                raise BadColumn(f"known.{name} lists a word twice")
            return CategoryColumn(name=name, public=True, gaps=True, words=tuple(str(word) for word in words))
        case [low, high]:
            _require_rising(name, low, high)
            low, high = float(low), float(high)  # type: ignore[arg-type]
            scale = Unscaled.between(low, high) if by == "none" else Range(low=low, high=high)
            return NumberColumn(name=name, public=True, gaps=not keep, keep=keep, fill=(low + high) / 2, scale=scale)
    raise BadColumn(f"known.{name} must be a range, a vocabulary or a number of buckets")


def _require_rising(name: str, low: object, high: object) -> None:
    if not low < high:  # type: ignore[operator]
        raise BadColumn(f"known.{name} must be [lowest, highest], got [{low}, {high}]")


def _number(cells: Cells, name: str, settings: Settings) -> AnyColumn:
    return build_number(cells.what, name, ColumnSpread.of(parsing.parse_numbers(cells, name)), settings)


def build_number(what: str, name: str, x: ColumnSpread, settings: Settings) -> AnyColumn:
    """Of how its values lie in the training rows."""
    if not x.count:
        return LeftOutColumn(name=name, says=NO_VALUE)
    if x.low == x.high:
        if not x.gaps:
            return LeftOutColumn(name=name, says=f"every training row has {x.low:g}")
        if not settings.keeps_gaps:
            return CategoryColumn(name=name, gaps=True, words=())  # whether there is a value is all that it says
    largest = max(abs(x.low), abs(x.high))
    if not largest < _LARGEST:
        raise BadColumn(f"{what}: column {name!r} holds numbers as large as {largest:.1g}; is that intended?")
    keep, scale = settings.keeps_gaps, fit_scale(x, settings.scaling)
    fill = x.mean if settings.missing == "mean" else x.median
    return NumberColumn(name=name, gaps=bool(x.gaps) and not keep, keep=keep, fill=fill, scale=scale)


def _date(cells: Cells, name: str, settings: Settings) -> AnyColumn:
    day = parsing.parse_days(cells, name)
    return build_date(name, ColumnSpread.of(day), settings, lambda today: ColumnSpread.of(today - day))


def build_date(
    name: str, day: ColumnSpread, settings: Settings, count_ages: Callable[[float], ColumnSpread] | None = None
) -> AnyColumn:
    """Of how its days lie; `count_ages` gives the ages on a day, more exactly than follows from the days."""
    if not day.count or day.low == day.high:
        return LeftOutColumn(name=name, says="training rows have at most one date")
    today = date(1970, 1, 1) + timedelta(days=int(np.ceil(day.high)))
    scale = fit_scale((count_ages or day.subtract_from)(count_days(today)), settings.scaling)
    keep = settings.keeps_gaps
    gaps = bool(day.gaps) and not keep
    return DateColumn(name=name, gaps=gaps, keep=keep, today=today, scale=scale, clock=not day.is_whole)


def _category(cells: Cells, name: str, settings: Settings) -> AnyColumn:
    counts = WordCounts()
    counts.add(parsing.parse_words(cells, name))
    return build_category(name, counts, settings)


def build_category(name: str, counts: WordCounts, settings: Settings) -> AnyColumn:
    """Of how many training rows have each word."""
    if counts.are_too_many:
        return HashedColumn(name=name, buckets=settings.buckets)
    every = counts.words
    words = sorted(word for word, count in every.items() if count >= settings.min_count)
    # With most rows in the place for rare words, a vocabulary would say next to nothing.
    mostly_rare = 2 * sum(every[word] for word in words) < every.total()
    if len(words) > settings.vocabulary or (mostly_rare and len(every) > settings.vocabulary):
        return HashedColumn(name=name, buckets=settings.buckets)
    if not words and not counts.missing:
        return LeftOutColumn(
            name=name, says=f"{len(every)} distinct texts, none of them in {settings.min_count} rows"
        )
    return CategoryColumn(name=name, gaps=counts.missing > 0, words=tuple(words))


def _boolean(cells: Cells, name: str, settings: Settings) -> AnyColumn:
    parsing.parse_booleans(cells, name)
    return BooleanColumn(name=name, keep=settings.keeps_gaps)


_FITTED = {"number": _number, "date": _date, "category": _category, "boolean": _boolean}


# The same of a column that is not held in memory: it comes in blocks of rows, as often as it is asked for ---------


def fit_large_column(read: Callable[[], Iterator[Cells]], rows: int, name: str, settings: Settings) -> AnyColumn:
    """Counts, means, ranges and vocabularies of all rows; the kind, medians and quantiles of a sample of them."""
    if name in settings.known or settings.kind(name) == "boolean":
        return fit_column(next(read()), name, settings)
    sample, gaps = _draw_sample(read, rows, name)
    if gaps == rows:
        return LeftOutColumn(name=name, says=NO_VALUE)
    kind: Any = settings.kind(name) or guess_kind(sample, name, settings.vocabulary)
    if isinstance(kind, LeftOutColumn):
        return _confirm_free_text(read, name, settings)
    match kind:
        case "number":
            values = parsing.parse_numbers(sample, name)
            spread = ColumnSpread.of_pieces((parsing.parse_numbers(block, name) for block in read()), values)
            return build_number(sample.what, name, spread, settings)
        case "date":
            values = parsing.parse_days(sample, name)
            return build_date(
                name, ColumnSpread.of_pieces((parsing.parse_days(block, name) for block in read()), values), settings
            )
        case "boolean":
            spread = ColumnSpread.of_pieces((parsing.parse_booleans(block, name) for block in read()), np.zeros(0))
            if spread.low == spread.high and not gaps:
                return LeftOutColumn(name=name, says=f"every training row has {str(sample.column(name)[0])[:40]!r}")
            return BooleanColumn(name=name, keep=settings.keeps_gaps)
    counts = _count_words(read, name)
    if len(counts.words) == 1 and not counts.missing and not counts.are_too_many:
        return LeftOutColumn(name=name, says=f"every training row has {next(iter(counts.words))[:40]!r}")
    return build_category(name, counts, settings)


def _draw_sample(read: Callable[[], Iterator[Cells]], rows: int, name: str) -> tuple[Cells, int]:
    """About SAMPLE_ROWS cells that hold a value, chosen by a hash of their row numbers; and how many hold none."""
    limit, gaps, found = np.uint64(min(1.0, SAMPLE_ROWS / rows) * (2**64 - 2048)), 0, []
    for block in read():
        valid = block.column(name).is_valid().to_numpy()
        gaps += int((~valid).sum())
        found.append(block[np.flatnonzero(valid & (row_keys(block.row_numbers, "sample") < limit))])
        if gaps and not any(map(len, found)) and valid.any():  # so few values that the sample may have none
            found.append(block[np.flatnonzero(valid)[:1]])
    return Cells.join(found), gaps


def _count_words(read: Callable[[], Iterator[Cells]], name: str) -> WordCounts:
    counts = WordCounts(MOST_WORDS)
    for block in read():
        counts.add(parsing.parse_words(block, name))
    return counts


def _confirm_free_text(read: Callable[[], Iterator[Cells]], name: str, settings: Settings) -> AnyColumn:
    """A sample of rows repeats fewer texts than all rows do."""
    counts = _count_words(read, name)
    if counts.different >= _FREE_TEXT * counts.there:
        says = f"{counts.different} different texts in {counts.there} rows: names, notes or ids"
        return LeftOutColumn(name=name, says=says)
    return build_category(name, counts, settings)
