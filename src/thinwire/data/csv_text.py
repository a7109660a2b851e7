"""CSV files as text: what is wrong with one is said with its line."""

from __future__ import annotations

import codecs
import csv
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from thinwire.data.files import require_file
from thinwire.errors import BadTable

__all__ = ["header", "is_number", "line_of", "parsed"]

_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
_GAPS = ("", "NA", "N/A", "NULL", "null", "#N/A", "n/a", "<NA>")


def header(file: Path, delimiter: str) -> list[str]:
    """The columns' names, of a file that is UTF-8 text with a line of names."""
    require_file(file)
    _require_text(file)
    try:
        with file.open(encoding="utf-8-sig") as opened:
            first = next((line for line in opened if line.strip()), "").strip("\r\n")
    except UnicodeDecodeError as error:
        raise BadTable(f"{file}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    names = next(csv.reader([first], delimiter=delimiter), [""])
    other = next((sign for sign in _DELIMITERS if sign != delimiter and sign in first), None)
    if len(names) == 1 and other is not None:
        raise BadTable(
            f"{file}: the first line has no {delimiter!r}, but {_DELIMITERS[other]}: {first[:60]!r}; "
            f"write delimiter = {other!r}, or save it with commas"
        )
    if all(is_number(name) for name in names):
        raise BadTable(f"{file}: the first line holds numbers; it must name the columns")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadTable(f"{file}: the column name {sorted(twice)[0]!r} is there twice")
    return names


def parsed(file: Path, delimiter: str, types: dict[str, Any], gaps: Sequence[str] | None = None) -> Any:
    """A pyarrow table of these columns; text cells in `gaps` become null."""
    ragged: list[Any] = []

    def refused(row: Any) -> str:
        ragged.append(row)
        return "error"

    options = {} if gaps is None else {"null_values": list(gaps), "strings_can_be_null": True}
    try:
        return pa.csv.read_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=refused),
            convert_options=pa.csv.ConvertOptions(column_types=types, include_columns=list(types), **options),
        )
    except pa.ArrowInvalid:
        if not ragged:
            raise
        row = ragged[0]
        raise BadTable(
            f"{file}: line {line_of(file, row.number - 2)} has {row.actual_columns} columns, the first line names "
            f"{row.expected_columns}"
        ) from None


def line_of(file: Path, row: int) -> int:
    """The line of data row `row`, counted from 0: empty lines are not rows."""
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        filled = [number for number, line in enumerate(opened, 1) if line.strip("\r\n")]
    return filled[min(row + 1, len(filled) - 1)]


def is_number(text: str) -> bool:
    """A number, or a gap where one could be."""
    try:
        float(text)
    except ValueError:
        return text.strip() in _GAPS
    return "_" not in text


def _require_text(file: Path) -> None:
    """UTF-8 without NUL bytes; a byte order mark of UTF-8 is fine."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BadTable(f"{file} is UTF-16; save it as UTF-8")
        place = data.find(b"\0")
        if place >= 0:
            line = data[:place].count(b"\n") + 1
            raise BadTable(f"{file}: line {line} holds a NUL byte; is it a text file, and was it copied whole?")
