"""What could be said publicly about a column, proposed from the file: somebody has to replace it by what is known."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any

import numpy as np

from thinwire.init.looking import Table
from thinwire.prepare import Preparation, Settings, reading
from thinwire.prepare.columns import Boolean, Category, Date, Hashed, LeftOut

__all__ = ["proposed"]


def proposed(table: Table, preparation: Preparation, settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """Settings under which no column is fitted, and the columns that are better left out."""
    known: dict[str, Any] = {}
    types: dict[str, Any] = {}
    left_out: list[str] = []
    for column in preparation.columns:
        match column:
            case LeftOut():
                left_out.append(column.name)
            case Boolean():
                types[column.name] = "boolean"
            case Category():
                known[column.name] = list(column.words) or settings.buckets
            case Hashed():
                known[column.name] = column.buckets
            case Date():
                days = reading.days(table.cells, column.name)
                years = [int(1970 + np.floor(day / 365.2425)) for day in (np.nanmin(days), np.nanmax(days))]
                known[column.name] = [column.today.replace(year=years[0], month=1, day=1)]
                known[column.name].append(column.today.replace(year=years[1] + 1, month=1, day=1))
            case _:
                x = reading.numbers(table.cells, column.name)
                known[column.name] = _outwards(float(np.nanmin(x)), float(np.nanmax(x)))
    return settings.model_copy(update={"known": known, "types": types}), tuple(left_out)


def _outwards(low: float, high: float) -> list[float]:
    """A round range around a range."""
    step = 10.0 ** floor(log10(high - low))
    return [floor(low / step) * step, ceil(high / step) * step]
