"""Numeric tables: CSV with a line of names, and Parquet."""

from __future__ import annotations

import codecs
import csv
import mmap
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyarrow.types
from numpy.typing import NDArray

from thinwire.data.opening import require_file
from thinwire.errors import BadInput

__all__ = ["read_csv", "read_parquet", "wanted_columns"]

_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


def read_csv(
    file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = (), delimiter: str = ","
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] and the columns' names."""
    require_file(file)
    _require_text(file)
    names = _header(file, delimiter)
    wanted = wanted_columns(file, names, columns, all_but)
    try:
        table = _parsed(file, delimiter, dict.fromkeys(wanted, pa.float64()))
    except pa.ArrowInvalid as error:
        raise BadInput(_wrong_cell(file, delimiter, wanted) or f"{file}: {error}") from None
    _require_rows(file, table)
    return _array(file, table, wanted), wanted


def read_parquet(
    file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = ()
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] and the columns' names."""
    require_file(file)
    try:
        with pa.parquet.ParquetFile(file) as opened:
            names = opened.schema_arrow.names
            wanted = wanted_columns(file, names, columns, all_but)
            table = opened.read(columns=list(wanted), use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise BadInput(f"{file}: not a Parquet file, or a damaged one: {error}") from None
    _require_rows(file, table)
    for name in wanted:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadInput(f"{file}: column {name!r} holds {kind}, not numbers; convert it, or leave it out")
    return _array(file, table, wanted), wanted


# CSV ------------------------------------------------------------------------------------------------------


def _require_text(file: Path) -> None:
    """UTF-8 without NUL bytes; a byte order mark of UTF-8 is fine."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BadInput(f"{file} is UTF-16; save it as UTF-8")
        place = data.find(b"\0")
        if place >= 0:
            line = data[:place].count(b"\n") + 1
            raise BadInput(f"{file}: line {line} holds a NUL byte; is it a text file, and was it copied whole?")


def _header(file: Path, delimiter: str) -> list[str]:
    try:
        with file.open(encoding="utf-8-sig") as opened:
            first = next((line for line in opened if line.strip()), "").strip("\r\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: not UTF-8 text ({error.reason}); save it as UTF-8") from None
    names = next(csv.reader([first], delimiter=delimiter), [""])
    other = next((sign for sign in _DELIMITERS if sign != delimiter and sign in first), None)
    if len(names) == 1 and other is not None:
        raise BadInput(
            f"{file}: the first line has no {delimiter!r}, but {_DELIMITERS[other]}: {first[:60]!r}; "
            f"write delimiter = {other!r}, or save it with commas"
        )
    if all(_is_number(name) for name in names):
        raise BadInput(f"{file}: the first line holds numbers; it must name the columns")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadInput(f"{file}: the column name {sorted(twice)[0]!r} is there twice")
    return names


def _parsed(file: Path, delimiter: str, types: dict[str, Any]) -> Any:
    ragged: list[Any] = []

    def refused(row: Any) -> str:
        ragged.append(row)
        return "error"

    text = not all(pa.types.is_floating(kind) for kind in types.values())
    try:
        return pa.csv.read_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=refused),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, include_columns=list(types), strings_can_be_null=not text
            ),
        )
    except pa.ArrowInvalid:
        if not ragged:
            raise
        row = ragged[0]
        raise BadInput(
            f"{file}: line {_line(file, row.number - 2)} has {row.actual_columns} columns, the first line names "
            f"{row.expected_columns}"
        ) from None


def _wrong_cell(file: Path, delimiter: str, wanted: Sequence[str]) -> str | None:
    """Which cell is not a number; only looked for when one is not."""
    try:
        table = _parsed(file, delimiter, dict.fromkeys(wanted, pa.string()))
    except pa.ArrowInvalid:
        return None
    found = []
    for name in wanted:
        cells = table.column(name).to_pylist()
        row = next((row for row, cell in enumerate(cells) if not _is_number(cell or "nan")), None)
        if row is not None:
            found.append((row, name, cells[row]))
    if not found:
        return None
    row, name, cell = min(found, key=lambda one: one[0])
    return f"{file}: line {_line(file, row)}, column {name!r} holds {cell!r}, not a number"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text.strip() in ("", "NA", "N/A", "NULL", "null", "#N/A", "n/a", "<NA>")
    return "_" not in text


def _line(file: Path, row: int) -> int:
    """The line of data row `row`, counted from 0: empty lines are not rows."""
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        filled = [number for number, line in enumerate(opened, 1) if line.strip("\r\n")]
    return filled[min(row + 1, len(filled) - 1)]


# Both -----------------------------------------------------------------------------------------------------


def wanted_columns(
    file: Path, names: Sequence[str], columns: Sequence[str] | None, all_but: Sequence[str]
) -> tuple[str, ...]:
    for name in [*(columns or ()), *all_but]:
        if name not in names:
            near = get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadInput(f"{file}: there is no column {name!r}, it has {_listed(names)}{hint}")
    found = tuple(columns) if columns is not None else tuple(name for name in names if name not in all_but)
    if len(set(found)) != len(found):
        raise BadInput(f"{file}: columns names one column twice: {', '.join(found)}")
    if not found:
        raise BadInput(f"{file}: no column is left to read")
    return found


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _require_rows(file: Path, table: Any) -> None:
    if table.num_rows == 0:
        raise BadInput(f"{file} names its columns, but has no rows")


def _array(file: Path, table: Any, wanted: Sequence[str]) -> NDArray[Any]:
    for name in wanted:
        column = table.column(name)
        if column.null_count:
            row = column.is_null().index(True).as_py()
            where = f"line {_line(file, row)}" if file.suffix.lower() == ".csv" else f"row {row + 1}"
            raise BadInput(
                f"{file}: {where}, column {name!r} is empty or not a number; fill it in, or drop the row at "
                "every party"
            )
    return np.stack([table.column(name).cast(pa.float64()).to_numpy() for name in wanted], axis=1)
