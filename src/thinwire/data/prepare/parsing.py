"""Cells as numbers, booleans and days; which of them are none of it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types
from numpy.typing import NDArray

from thinwire.base.errors import BadColumn
from thinwire.data.readers.tables import Cells
from thinwire.data.readers.text_format import PLAIN, TextFormat

Floats: TypeAlias = NDArray[np.float64]

BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), 1.0) | dict.fromkeys(("false", "no", "f", "n", "0"), 0.0)
_FORMATS = (
    *("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d %H:%M"),
    *("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z", "%Y/%m/%d", "%d.%m.%Y"),
)
_FRACTION = r"(:\d\d)\.\d+"  # of a second
_DAY_SECONDS = 86_400


def parse_numbers(cells: Cells, name: str) -> Floats:
    """float64, NaN where nothing is; refuses anything else."""
    values = cells.column(name)
    found, wrong = convert_numbers(values, cells.form or PLAIN)
    if wrong.any():
        raise _wrong(cells, name, int(wrong.argmax()), "not a number")
    infinite = np.isinf(found)
    if infinite.any():
        raise _wrong(cells, name, int(infinite.argmax()), "which is not a finite number")
    return found


def convert_numbers(values: Any, form: TextFormat = PLAIN) -> tuple[Floats, NDArray[np.bool_]]:
    """float64 with NaN for gaps and for what is no number, and which cells are no number."""
    if _is_time(values.type):
        return np.full(len(values), np.nan), np.ones(len(values), dtype=bool)
    if not is_text(values.type):
        return _floats(pc.cast(values, pa.float64(), safe=False)), np.zeros(len(values), dtype=bool)
    text = trim(values)
    numbers = form.spell_numbers(text)
    wrong = pc.and_(pc.is_valid(text), pc.is_null(numbers))
    return _floats(pc.cast(numbers, pa.float64())), wrong.to_numpy().astype(bool)


def parse_booleans(cells: Cells, name: str) -> Floats:
    """1 and 0, NaN where nothing is."""
    values = cells.column(name)
    if pa.types.is_boolean(values.type):
        return _floats(pc.cast(values, pa.float64()))
    text = pc.utf8_lower(parse_words(cells, name))
    places = pc.index_in(text, value_set=pa.array(list(BOOLEANS)))
    wrong = pc.and_(pc.is_valid(text), pc.is_null(places)).to_numpy().astype(bool)
    if wrong.any():
        raise _wrong(cells, name, int(wrong.argmax()), "neither true nor false")
    table = np.array([*BOOLEANS.values(), np.nan])
    found: Floats = table[pc.fill_null(places, len(BOOLEANS)).to_numpy()]
    return found


def parse_days(cells: Cells, name: str) -> Floats:
    """Days since 1970, with a fraction for the time of day; NaN where nothing is."""
    values = cells.column(name)
    if is_text(values.type):
        text = trim(values)
        form = find_date_format(pc.drop_null(text.unique()))
        if form is None:
            row = _first_without_date(text)
            raise _wrong(
                cells,
                name,
                row,
                "not a date like the others; write dates as 2024-12-31, 2024-12-31T23:59:59 or 31.12.2024",
            )
        values = _times(text, form)
    elif values.null_count < len(values) and not _is_time(values.type):
        raise BadColumn(f"{cells.what}: column {name!r} holds {values.type}, not dates")
    seconds = pc.cast(pc.cast(values, pa.timestamp("s"), safe=False), pa.int64())
    return _floats(pc.cast(seconds, pa.float64())) / _DAY_SECONDS


def find_date_format(words: Any) -> str | None:
    """How all of these dates are written."""
    return next((form for form in _FORMATS if _times(words, form).null_count == 0), None)


def parse_words(cells: Cells, name: str) -> Any:
    """Text of any column, trimmed; nothing but spaces is nothing."""
    values = cells.column(name)
    return trim(values if is_text(values.type) else pc.cast(values, pa.string()))


def trim(values: Any) -> Any:
    """Text without spaces around it; null where nothing is left."""
    if pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    text = pc.utf8_trim_whitespace(pc.cast(values, pa.string()))
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_time(kind: Any) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _floats(values: Any) -> Floats:
    found: Floats = pc.fill_null(values, float("nan")).to_numpy()
    return found


def _times(text: Any, form: str) -> Any:
    """To the second; null where it is written in another form."""
    return pc.strptime(pc.replace_substring_regex(text, _FRACTION, r"\1"), form, "s", error_is_null=True)


def _first_without_date(text: Any) -> int:
    """The first cell that is written otherwise than most are."""
    valid = pc.is_valid(text).to_numpy().astype(bool)
    unfit = [valid & pc.is_null(_times(text, form)).to_numpy().astype(bool) for form in _FORMATS]
    fewest = min(unfit, key=lambda one: int(one.sum()))
    return int(fewest.argmax())


def _wrong(cells: Cells, name: str, row: int, what: str) -> BadColumn:
    value = cells.column(name)[row].as_py()
    return BadColumn(
        f"{cells.what}: {cells.where(row)}, column {name!r} holds {str(value)[:60]!r}, {what}; correct it"
    )
