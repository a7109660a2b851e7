"""From the training rows of a column to a prepared column."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta

import numpy as np

from thinwire.data.cells import Cells
from thinwire.errors import BadColumn
from thinwire.prepare import reading
from thinwire.prepare.columns import Boolean, Category, Date, Hashed, LeftOut, Number, days_of
from thinwire.prepare.guessing import guessed
from thinwire.prepare.scaling import Range, fitted_scale
from thinwire.prepare.settings import Settings

__all__ = ["fitted"]

_LARGEST = 1e100  # squares of it are still numbers

Fitted = Number | Boolean | Date | Category | Hashed | LeftOut


def fitted(cells: Cells, name: str, settings: Settings) -> Fitted:
    """What is said of the column, else what its cells look like; what is known of it, else what its rows say."""
    if name in settings.known:
        return _known(name, settings)
    kind = settings.kind(name)
    if kind == "boolean":  # there is nothing to fit
        return Boolean(name=name, public=True)
    if kind is None:
        guess = guessed(cells, name, settings.vocabulary)
        if guess.kind is None:
            return LeftOut(name=name, says=guess.why)
        kind = guess.kind
    values = cells.column(name)
    if values.null_count == 0 and len(values.unique()) == 1:
        return LeftOut(name=name, says=f"every training row has {str(values[0].as_py())[:40]!r}")
    return _FITTED[kind](cells, name, settings)


def _known(name: str, settings: Settings) -> Fitted:
    """Of public facts alone. Gaps have their mark whether there are any or not: that would be a look at the rows."""
    match settings.known[name]:
        case int(buckets):
            return Hashed(name=name, public=True, buckets=buckets)
        case [date() as first, date() as last]:
            _require_rising(name, first, last)
            scale = Range(low=0.0, high=days_of(last) - days_of(first))
            return Date(name=name, public=True, gaps=True, today=last, scale=scale, clock=False)
        case [str(), *_] as words:
            if len(set(words)) != len(words):
                raise BadColumn(f"known.{name} has a word twice")
            return Category(name=name, public=True, gaps=True, words=tuple(str(word) for word in words))
        case [low, high]:
            _require_rising(name, low, high)
            low, high = float(low), float(high)  # type: ignore[arg-type]
            return Number(name=name, public=True, gaps=True, fill=(low + high) / 2, scale=Range(low=low, high=high))
    raise BadColumn(f"known.{name} must be a range, a vocabulary or a number of buckets")


def _require_rising(name: str, low: object, high: object) -> None:
    if not low < high:  # type: ignore[operator]
        raise BadColumn(f"known.{name} must be [lowest, highest], got [{low}, {high}]")


def _number(cells: Cells, name: str, settings: Settings) -> Fitted:
    x = reading.numbers(cells, name)
    there = x[~np.isnan(x)]
    if not there.size:
        return LeftOut(name=name, says="no training row has a value")
    gaps = len(there) < len(x)
    if there.min() == there.max():
        if not gaps:
            return LeftOut(name=name, says=f"every training row has {there[0]:g}")
        return Category(name=name, gaps=True, words=())  # whether there is a value is all that it says
    if not abs(there).max() < _LARGEST:
        raise BadColumn(f"{cells.what}: column {name!r} holds numbers of {abs(there).max():.1g}; are they meant?")
    fill = np.median(there) if settings.missing == "median" else there.mean()
    return Number(name=name, gaps=gaps, fill=float(fill), scale=fitted_scale(there, settings.scaling))


def _date(cells: Cells, name: str, settings: Settings) -> Fitted:
    day = reading.days(cells, name)
    there = day[~np.isnan(day)]
    if not there.size or there.min() == there.max():
        return LeftOut(name=name, says="training rows have one date at most")
    today = date(1970, 1, 1) + timedelta(days=int(np.ceil(there.max())))
    scale = fitted_scale(days_of(today) - there, settings.scaling)
    clock = bool((there != np.floor(there)).any())
    return Date(name=name, gaps=len(there) < len(day), today=today, scale=scale, clock=clock)


def _category(cells: Cells, name: str, settings: Settings) -> Fitted:
    values = reading.words(cells, name)
    counts = Counter({row["values"]: row["counts"] for row in values.value_counts().to_pylist()})
    missing = counts.pop(None, 0)
    words = sorted(word for word, count in counts.items() if count >= settings.min_count)
    # With most rows in the place for rare words, a vocabulary would say next to nothing.
    mostly_rare = 2 * sum(counts[word] for word in words) < counts.total()
    if len(words) > settings.vocabulary or (mostly_rare and len(counts) > settings.vocabulary):
        return Hashed(name=name, buckets=settings.buckets)
    if not words and not missing:
        return LeftOut(name=name, says=f"{len(counts)} different texts, none of them in {settings.min_count} rows")
    return Category(name=name, gaps=missing > 0, words=tuple(words))


def _boolean(cells: Cells, name: str, _: Settings) -> Fitted:
    reading.booleans(cells, name)
    return Boolean(name=name)


_FITTED = {"number": _number, "date": _date, "category": _category, "boolean": _boolean}
