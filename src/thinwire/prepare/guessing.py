"""What kind of column this is, by what its cells hold."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types

from thinwire.data.cells import Cells
from thinwire.errors import BadColumn
from thinwire.prepare.reading import BOOLEANS, date_format, is_text, numbers_of, trimmed
from thinwire.prepare.settings import KindName

__all__ = ["Guess", "guessed"]

_MOSTLY = 0.95  # with so many numbers among them, the other cells are slips
_FREE_TEXT = 0.9  # so many different values a row are names, notes or ids


@dataclass(frozen=True)
class Guess:
    """A kind; or None and the reason why the column is better left out."""

    kind: KindName | None
    why: str = ""


def guessed(cells: Cells, name: str, vocabulary: int) -> Guess:
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
    return _of_text(cells, name, trimmed(values), vocabulary)


def _of_text(cells: Cells, name: str, values: Any, vocabulary: int) -> Guess:
    words = pc.drop_null(values.unique())
    if {word.lower() for word in words.to_pylist()} <= BOOLEANS.keys():
        return Guess("boolean")
    if pc.any(pc.match_substring_regex(words, r"^0\d+$")).as_py():
        return Guess("category")  # 01234 is a code: as a number it would lose its zero
    wrong = numbers_of(values)[1]
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
    if date_format(words) is not None:
        return Guess("date")
    if not numbers_of(pc.replace_substring(values, ",", "."))[1].any():
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
