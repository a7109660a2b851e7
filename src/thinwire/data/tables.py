"""Numeric tables: CSV with a line of names, and Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types
from numpy.typing import NDArray

from thinwire.data.csv_text import header, is_number, line_of, parsed
from thinwire.data.naming import wanted
from thinwire.data.parquet import read_columns
from thinwire.errors import BadColumn, BadTable

__all__ = ["read_csv", "read_parquet"]

_PREPARE = "convert it, leave it out, or let the party prepare its table: prepare = {}"


def read_csv(
    file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = (), delimiter: str = ","
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] and the columns' names."""
    names = wanted(file, header(file, delimiter), columns, all_but)
    try:
        table = parsed(file, delimiter, dict.fromkeys(names, pa.float64()))
    except pa.ArrowInvalid as error:
        raise _wrong_cell(file, delimiter, names) or BadTable(f"{file}: {error}") from None
    return _array(file, table, names), names


def read_parquet(
    file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = ()
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] and the columns' names."""
    table = read_columns(file, lambda names: wanted(file, names, columns, all_but))
    for name in table.column_names:
        kind = table.schema.field(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadColumn(f"{file}: column {name!r} holds {kind}, not numbers; {_PREPARE}")
    return _array(file, table, table.column_names), tuple(table.column_names)


def _wrong_cell(file: Path, delimiter: str, wanted: Sequence[str]) -> BadColumn | None:
    """Which cell is not a number; only looked for when one is not."""
    try:
        table = parsed(file, delimiter, dict.fromkeys(wanted, pa.string()))
    except pa.ArrowInvalid:
        return None
    found = []
    for name in wanted:
        cells = table.column(name).to_pylist()
        row = next((row for row, cell in enumerate(cells) if not is_number(cell or "nan")), None)
        if row is not None:
            found.append((row, name, cells[row]))
    if not found:
        return None
    row, name, cell = min(found, key=lambda one: one[0])
    return BadColumn(f"{file}: line {line_of(file, row)}, column {name!r} holds {cell!r}, not a number; {_PREPARE}")


def _array(file: Path, table: Any, names: Sequence[str]) -> NDArray[Any]:
    if table.num_rows == 0:
        raise BadTable(f"{file} names its columns, but has no rows")
    for name in names:
        column = table.column(name)
        if column.null_count:
            row = column.is_null().index(True).as_py()
            where = f"line {line_of(file, row)}" if file.suffix.lower() == ".csv" else f"row {row + 1}"
            raise BadColumn(
                f"{file}: {where}, column {name!r} is empty or not a number; fill it in, drop the row at every "
                "party, or let the party prepare its table: prepare = {}"
            )
    return np.stack([table.column(name).cast(pa.float64()).to_numpy() for name in names], axis=1)
