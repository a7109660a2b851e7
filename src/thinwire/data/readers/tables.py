"""Tables of numbers: CSV with a line of names, and Parquet; columns by name, by pattern, or all but some.

What is wrong with a file is said with its line.
"""

from __future__ import annotations

import codecs
import csv
import mmap
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyarrow.types
from numpy.typing import NDArray

from thinwire.base.errors import BadColumn, BadFile, BadTable
from thinwire.base.format import did_you_mean, quote_names
from thinwire.data.readers.files import require_file

_PATTERN = "*?["


def select_columns(
    file: Path | str, names: Sequence[str], columns: Sequence[str] | None, all_but: Sequence[str] = ()
) -> tuple[str, ...]:
    """Which columns to read: those named, in that order, or all; without those of `all_but`.

    A name with *, ? or [ is a pattern, unless a column is called so.
    """
    left_out = {name for one in all_but for name in _fitting(file, names, one)}
    if columns is None:
        found = [name for name in names if name not in left_out]
    else:
        plain = [one for one in columns if one in names or not _is_pattern(one)]
        if len(set(plain)) != len(plain):
            raise BadColumn(f"{file}: columns names one column twice: {', '.join(plain)}")
        every = [name for one in columns for name in _fitting(file, names, one)]
        found = [name for name in dict.fromkeys(every) if name not in left_out]
    if not found:
        raise BadColumn(f"{file}: no column is left to read")
    return tuple(found)


def _fitting(file: Path | str, names: Sequence[str], asked: str) -> list[str]:
    if asked in names:
        return [asked]
    found = [name for name in names if _is_pattern(asked) and fnmatchcase(name, asked)]
    if not found:
        what = f"no column fits {asked!r}" if _is_pattern(asked) else f"there is no column {asked!r}"
        raise BadColumn(f"{file}: {what}, it has {quote_names(names)}{did_you_mean(asked, names)}")
    return found


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in _PATTERN)


_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
GAPS = ("", "NA", "N/A", "n/a", "NULL", "null", "#N/A", "<NA>", "NaN", "nan")  # what people write for "nothing"


def read_header(file: Path, delimiter: str) -> list[str]:
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


def parse_csv(file: Path, delimiter: str, types: dict[str, Any], gaps: Sequence[str] | None = None) -> Any:
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
            f"{file}: line {find_line(file, row.number - 2)} has {row.actual_columns} columns, the first line names "
            f"{row.expected_columns}"
        ) from None


def find_line(file: Path, row: int) -> int:
    """The line of data row `row`, counted from 0: empty lines are not rows."""
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        filled = [number for number, line in enumerate(opened, 1) if line.strip("\r\n")]
    return filled[min(row + 1, len(filled) - 1)]


def is_number(text: str) -> bool:
    """A number, or a gap where one could be."""
    try:
        float(text)
    except ValueError:
        return text.strip() in GAPS
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


def read_parquet_columns(file: Path, chosen: Callable[[Sequence[str]], Sequence[str]]) -> Any:
    """A pyarrow table of the columns that are `chosen` of those there are."""
    with open_parquet(file) as opened:
        try:
            return opened.read(columns=list(chosen(opened.schema_arrow.names)), use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise BadFile(f"{file}: a damaged Parquet file: {error}") from None


def open_parquet(file: Path) -> Any:
    """A pyarrow.parquet.ParquetFile; the file is mapped, not loaded."""
    require_file(file)
    try:
        return pa.parquet.ParquetFile(file, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise BadFile(f"{file}: not a Parquet file, or a damaged one: {error}") from None


_PREPARE = "convert it, leave it out, or let the party prepare its table: prepare = {}"


def read_csv(
    file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = (), delimiter: str = ","
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] and the columns' names."""
    names = select_columns(file, read_header(file, delimiter), columns, all_but)
    try:
        table = parse_csv(file, delimiter, dict.fromkeys(names, pa.float64()))
    except pa.ArrowInvalid as error:
        raise _wrong_cell(file, delimiter, names) or BadTable(f"{file}: {error}") from None
    return _array(file, table, names), names


def read_parquet(
    file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = ()
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] and the columns' names."""
    table = read_parquet_columns(file, lambda names: select_columns(file, names, columns, all_but))
    for name in table.column_names:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadColumn(f"{file}: column {name!r} holds {kind}, not numbers; {_PREPARE}")
    return _array(file, table, table.column_names), tuple(table.column_names)


def _wrong_cell(file: Path, delimiter: str, names: Sequence[str]) -> BadColumn | None:
    """Which cell is not a number; only looked for when one is not."""
    try:
        table = parse_csv(file, delimiter, dict.fromkeys(names, pa.string()))
    except pa.ArrowInvalid:
        return None
    found = []
    for name in names:
        cells = table.column(name).to_pylist()
        row = next((row for row, cell in enumerate(cells) if not is_number(cell or "nan")), None)
        if row is not None:
            found.append((row, name, cells[row]))
    if not found:
        return None
    row, name, cell = min(found, key=lambda one: one[0])
    return BadColumn(f"{file}: line {find_line(file, row)}, column {name!r} holds {cell!r}, not a number; {_PREPARE}")


def _array(file: Path, table: Any, names: Sequence[str]) -> NDArray[Any]:
    if table.num_rows == 0:
        raise BadTable(f"{file} names its columns, but has no rows")
    for name in names:
        column = table.column(name)
        if column.null_count:
            row = column.is_null().index(True).as_py()
            where = f"line {find_line(file, row)}" if file.suffix.lower() == ".csv" else f"row {row + 1}"
            raise BadColumn(
                f"{file}: {where}, column {name!r} is empty or not a number; fill it in, drop the row at every "
                "party, or let the party prepare its table: prepare = {}"
            )
    return np.stack([table.column(name).cast(pa.float64()).to_numpy() for name in names], axis=1)
