"""From the training rows of a column to a prepared column: what kind it is, by what its cells hold, then its fit."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types

from thinwire.base.errors import BadColumn
from thinwire.data.prepare import parsing
from thinwire.data.prepare.columns import (
    BooleanColumn,
    CategoryColumn,
    DateColumn,
    HashedColumn,
    LeftOutColumn,
    NumberColumn,
    Range,
    count_days,
    fit_scale,
)
from thinwire.data.prepare.parsing import BOOLEANS, convert_numbers, find_date_format, is_text, trim
from thinwire.data.prepare.settings import KindName, Settings
from thinwire.data.readers.cells import Cells

_MOSTLY = 0.95  # with so many numbers among them, the other cells are slips
_FREE_TEXT = 0.9  # so many different values a row are names, notes or ids


@dataclass(frozen=True)
class Guess:
    """A kind; or None and the reason why the column is better left out."""

    kind: KindName | None
    why: str = ""


def guess_kind(cells: Cells, name: str, vocabulary: int) -> Guess:
    """Refuses a column of numbers with a few other cells among them: somebody has to say what it is."""
    values = cells.column(name)
    if values.null_count == len(values):
        return Guess(None, "no training row has a value")
    kind = values.type
    if pa.types.is_boolean(kind):
        return Guess("boolean")
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return Guess("date")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return Guess("number")
    if pa.types.is_dictionary(kind) and not is_text(kind):
        return Guess("category")  # as pandas' own categories are, whatever they are made of
    if not is_text(kind):
        raise BadColumn(
            f"{cells.what}: column {name!r} holds {kind}, which is neither number, text nor date; leave it out"
        )
    return _of_text(cells, name, trim(values), vocabulary)


def _of_text(cells: Cells, name: str, values: Any, vocabulary: int) -> Guess:
    words = pc.drop_null(values.unique())
    if {word.lower() for word in words.to_pylist()} <= BOOLEANS.keys():
        return Guess("boolean")
    if pc.any(pc.match_substring_regex(words, r"^0\d+$")).as_py():
        return Guess("category")  # 01234 is a code: as a number it would lose its zero
    wrong = convert_numbers(values)[1]
    there = len(values) - values.null_count
    if not wrong.any():
        return Guess("number")
    if 1 - wrong.sum() / there >= _MOSTLY:
        row = int(wrong.argmax())
        word = values[row].as_py()
        point = ", with a point and not a comma" if "," in word else ""
        raise BadColumn(
            f"{cells.what}: {cells.where(row)}, column {name!r} holds {word!r}, but {there - wrong.sum()} of {there} "
            f"cells are numbers; correct it{point}, or say what it is: missing_words = [{_quoted(word)}], or "
            f"{_as_category(name)}"
        )
    if find_date_format(words) is not None:
        return Guess("date")
    if not convert_numbers(pc.replace_substring(values, ",", "."))[1].any():
        raise BadColumn(
            f"{cells.what}: column {name!r} holds numbers with a comma, such as {_with_comma(words)!r}; write them "
            f"with a point, and nothing between thousands, or say what it is: {_as_category(name)}"
        )
    if len(words) > vocabulary and len(words) >= _FREE_TEXT * there:
        return Guess(None, f"{len(words)} different texts in {there} rows: names, notes or ids")
    return Guess("category")


def _with_comma(words: Any) -> str:
    return str(next(word for word in words.to_pylist() if "," in word))


def _as_category(name: str) -> str:
    """As it is written in a job file."""
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)
    return f'types = {{ {key} = "category" }}'


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_LARGEST = 1e100  # squares of it are still numbers

Fitted = NumberColumn | BooleanColumn | DateColumn | CategoryColumn | HashedColumn | LeftOutColumn


def fit_column(cells: Cells, name: str, settings: Settings) -> Fitted:
    """What is said of the column, else what its cells look like; what is known of it, else what its rows say."""
    if name in settings.known:
        return _known(name, settings)
    kind = settings.kind(name)
    if kind == "boolean":  # there is nothing to fit
        return BooleanColumn(name=name, public=True)
    if kind is None:
        guess = guess_kind(cells, name, settings.vocabulary)
        if guess.kind is None:
            return LeftOutColumn(name=name, says=guess.why)
        kind = guess.kind
    values = cells.column(name)
    if values.null_count == 0 and len(values.unique()) == 1:
        return LeftOutColumn(name=name, says=f"every training row has {str(values[0].as_py())[:40]!r}")
    return _FITTED[kind](cells, name, settings)


def _known(name: str, settings: Settings) -> Fitted:
    """Of public facts alone. Gaps have their mark whether there are any or not: that would be a look at the rows."""
    match settings.known[name]:
        case int(buckets):
            return HashedColumn(name=name, public=True, buckets=buckets)
        case [date() as first, date() as last]:
            _require_rising(name, first, last)
            scale = Range(low=0.0, high=count_days(last) - count_days(first))
            return DateColumn(name=name, public=True, gaps=True, today=last, scale=scale, clock=False)
        case [str(), *_] as words:
            if len(set(words)) != len(words):
                raise BadColumn(f"known.{name} has a word twice")
            return CategoryColumn(name=name, public=True, gaps=True, words=tuple(str(word) for word in words))
        case [low, high]:
            _require_rising(name, low, high)
            low, high = float(low), float(high)  # type: ignore[arg-type]
            return NumberColumn(
                name=name, public=True, gaps=True, fill=(low + high) / 2, scale=Range(low=low, high=high)
            )
    raise BadColumn(f"known.{name} must be a range, a vocabulary or a number of buckets")


def _require_rising(name: str, low: object, high: object) -> None:
    if not low < high:  # type: ignore[operator]
        raise BadColumn(f"known.{name} must be [lowest, highest], got [{low}, {high}]")


def _number(cells: Cells, name: str, settings: Settings) -> Fitted:
    x = parsing.parse_numbers(cells, name)
    there = x[~np.isnan(x)]
    if not there.size:
        return LeftOutColumn(name=name, says="no training row has a value")
    gaps = len(there) < len(x)
    if there.min() == there.max():
        if not gaps:
            return LeftOutColumn(name=name, says=f"every training row has {there[0]:g}")
        return CategoryColumn(name=name, gaps=True, words=())  # whether there is a value is all that it says
    if not abs(there).max() < _LARGEST:
        raise BadColumn(f"{cells.what}: column {name!r} holds numbers of {abs(there).max():.1g}; are they meant?")
    fill = np.median(there) if settings.missing == "median" else there.mean()
    return NumberColumn(name=name, gaps=gaps, fill=float(fill), scale=fit_scale(there, settings.scaling))


def _date(cells: Cells, name: str, settings: Settings) -> Fitted:
    day = parsing.parse_days(cells, name)
    there = day[~np.isnan(day)]
    if not there.size or there.min() == there.max():
        return LeftOutColumn(name=name, says="training rows have one date at most")
    today = date(1970, 1, 1) + timedelta(days=int(np.ceil(there.max())))
    scale = fit_scale(count_days(today) - there, settings.scaling)
    clock = bool((there != np.floor(there)).any())
    return DateColumn(name=name, gaps=len(there) < len(day), today=today, scale=scale, clock=clock)


def _category(cells: Cells, name: str, settings: Settings) -> Fitted:
    values = parsing.parse_words(cells, name)
    counts = Counter({row["values"]: row["counts"] for row in values.value_counts().to_pylist()})
    missing = counts.pop(None, 0)
    words = sorted(word for word, count in counts.items() if count >= settings.min_count)
    # With most rows in the place for rare words, a vocabulary would say next to nothing.
    mostly_rare = 2 * sum(counts[word] for word in words) < counts.total()
    if len(words) > settings.vocabulary or (mostly_rare and len(counts) > settings.vocabulary):
        return HashedColumn(name=name, buckets=settings.buckets)
    if not words and not missing:
        return LeftOutColumn(
            name=name, says=f"{len(counts)} different texts, none of them in {settings.min_count} rows"
        )
    return CategoryColumn(name=name, gaps=missing > 0, words=tuple(words))


def _boolean(cells: Cells, name: str, _: Settings) -> Fitted:
    parsing.parse_booleans(cells, name)
    return BooleanColumn(name=name)


_FITTED = {"number": _number, "date": _date, "category": _category, "boolean": _boolean}
