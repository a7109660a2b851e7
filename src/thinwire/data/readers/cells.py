"""A table as it stands: text of a CSV file, a Parquet file's own types; gaps stay gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thinwire.base.errors import BadColumn, BadFile, BadTable
from thinwire.base.format import quote_names
from thinwire.data.readers.tables import (
    GAPS,
    find_line,
    open_parquet,
    parse_csv,
    read_header,
    read_parquet_columns,
    select_columns,
)


@dataclass(frozen=True, eq=False)
class Cells:
    """Columns of some rows, and where each of them stands."""

    table: Any  # pyarrow.Table
    file: Path | None = None
    numbers: NDArray[np.int64] | None = None  # of the rows in the file, from 0; None: all, in its order

    @classmethod
    def of(cls, table: Any) -> Cells:
        """Anything that pyarrow makes a table of: a pyarrow table, a data frame, a dict of columns."""
        if isinstance(table, Cells):
            return table
        try:
            return cls(pa.table(table))
        except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
            raise BadTable(f"{type(table).__name__} is no table: {error}; give columns by name") from None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, rows: NDArray[np.int64]) -> Cells:
        """These rows, in this order."""
        before = np.arange(len(self)) if self.numbers is None else self.numbers
        return Cells(self.table.take(pa.array(rows)), self.file, before[rows])

    def without(self, names: Sequence[str]) -> Cells:
        kept = [name for name in self.names if name not in names]
        return Cells(self.table.select(kept), self.file, self.numbers)

    def column(self, name: str) -> Any:
        """A pyarrow column."""
        if name not in self.names:
            raise BadColumn(f"{self.what}: there is no column {name!r}, it has {quote_names(self.names)}")
        return self.table.column(name)

    @property
    def what(self) -> str:
        """For messages."""
        return "the table" if self.file is None else str(self.file)

    def where(self, row: int) -> str:
        """Which row this is, as people look it up: a line of a CSV file."""
        number = row if self.numbers is None else int(self.numbers[row])
        if self.file is not None and self.file.suffix.lower() == ".csv":
            return f"line {find_line(self.file, number)}"
        return f"row {number + 1}"


def read_cells(
    file: Path,
    columns: Sequence[str] | None = None,
    all_but: Sequence[str] = (),
    delimiter: str = ",",
    gaps: Sequence[str] = GAPS,
) -> Cells:
    """Columns of a CSV or Parquet file; text in `gaps` counts as nothing."""
    match file.suffix.lower():
        case ".csv":
            names = select_columns(file, read_header(file, delimiter), columns, all_but)
            try:
                table = parse_csv(file, delimiter, dict.fromkeys(names, pa.string()), gaps)
            except pa.ArrowInvalid as error:
                raise BadTable(f"{file}: {error}") from None
        case ".parquet":
            table = read_parquet_columns(file, lambda names: select_columns(file, names, columns, all_but))
        case _:
            raise _no_table(file)
    if table.num_rows == 0:
        raise BadTable(f"{file} names its columns, but has no rows")
    return Cells(table, file)


def column_names(file: Path, delimiter: str = ",") -> tuple[str, ...]:
    """What a table calls its columns."""
    if file.suffix.lower() == ".csv":
        return tuple(read_header(file, delimiter))
    if file.suffix.lower() != ".parquet":
        raise _no_table(file)
    with open_parquet(file) as opened:
        return tuple(opened.schema_arrow.names)


def _no_table(file: Path) -> BadFile:
    kind = file.suffix or "a file without a suffix"
    return BadFile(f"{file}: cannot read {kind!r}; tables are .csv and .parquet")
