"""Tables, CSV with a line of names and Parquet: columns by name, by pattern, or all but some; as numbers or as cells.

A table that is no single file, but a folder or a query's rows, is a `StoredTable`, and is read as a Parquet file is.

What is wrong with a file is said with its line.
"""

from __future__ import annotations

import codecs
import csv
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import pyarrow.types
from numpy.typing import NDArray

from thinwire.base.errors import BadColumn, BadFile, BadTable
from thinwire.base.format import did_you_mean, quote_names
from thinwire.data.readers.files import require_file
from thinwire.data.readers.text_format import PLAIN, TextFormat

_PATTERN = "*?["


class StoredTable:
    """A table with types of its own, read whole or in a stream, always in one order.

    It is a pyarrow table, a Parquet file, or a data set of several; `says` names it in messages.
    """

    suffix: ClassVar[str] = ".parquet"  # as which it is read

    def __init__(self, says: str, source: Any) -> None:
        self._says, self._source = says, source
        is_file = isinstance(source, pa.parquet.ParquetFile)
        self.schema = (source.schema_arrow if is_file else source.schema).remove_metadata()

    def __str__(self) -> str:
        return self._says

    @cached_property
    def _rows(self) -> int:
        match self._source:
            case pa.Table():
                return int(self._source.num_rows)
            case pa.parquet.ParquetFile():
                return int(self._source.metadata.num_rows)
        return int(self._source.count_rows())

    def __len__(self) -> int:
        return self._rows

    def read(self, columns: Sequence[str]) -> Any:
        """A pyarrow table of these columns."""
        return pa.Table.from_batches(self.batches(columns), pa.schema([self.schema.field(name) for name in columns]))

    def batches(self, columns: Sequence[str], rows: int = 65_536) -> Iterator[Any]:
        """Record batches of these columns, of so many rows at most."""
        try:
            yield from self._iterate(list(columns), rows)
        except (pa.ArrowException, OSError) as error:
            raise BadFile(f"{self}: a damaged Parquet file: {error}; write it again") from None

    def _iterate(self, columns: list[str], rows: int) -> Iterator[Any]:
        match self._source:
            case pa.Table():
                yield from self._source.select(columns).to_batches(rows)
            case pa.parquet.ParquetFile():
                for batch in self._source.iter_batches(rows, columns=columns, use_threads=False):
                    yield batch.select(columns)
            case _:
                scan = self._source.scanner(
                    columns=columns, batch_size=rows, use_threads=False, batch_readahead=1, fragment_readahead=1
                )
                yield from scan.to_batches()


@dataclass(frozen=True)
class StoredColumn:
    """One column, as often as needed, without holding it."""

    table: StoredTable
    name: str

    def __post_init__(self) -> None:
        select_columns(str(self.table), self.table.schema.names, [self.name])

    @property
    def type(self) -> Any:
        return self.table.schema.field(self.name).type

    def iterchunks(self) -> Iterator[Any]:
        """Arrow arrays."""
        for batch in self.table.batches([self.name]):
            yield batch.column(0)

    def cast(self, kind: Any) -> Any:
        """A pyarrow column of another type."""
        return pa.chunked_array([chunk.cast(kind) for chunk in self.iterchunks()], kind)

    def to_pylist(self) -> list[Any]:
        return [cell for chunk in self.iterchunks() for cell in chunk.to_pylist()]


TableFile: TypeAlias = Path | StoredTable


def open_stored(file: TableFile) -> StoredTable:
    """A Parquet file, or what is a stored table already."""
    return file if isinstance(file, StoredTable) else StoredTable(str(file), open_parquet(file))


def select_columns(
    file: TableFile | str, names: Sequence[str], columns: Sequence[str] | None, all_but: Sequence[str] = ()
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


def _fitting(file: TableFile | str, names: Sequence[str], asked: str) -> list[str]:
    if asked in names:
        return [asked]
    found = [name for name in names if _is_pattern(asked) and fnmatchcase(name, asked)]
    if not found:
        what = f"no column matches {asked!r}" if _is_pattern(asked) else f"there is no column {asked!r}"
        raise BadColumn(f"{file}: {what}; the columns are {quote_names(names)}{did_you_mean(asked, names)}")
    return found


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in _PATTERN)


_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
GAPS = ("", "NA", "N/A", "n/a", "NULL", "null", "#N/A", "<NA>", "NaN", "nan")  # what people write for "nothing"


def read_header(file: Path, form: TextFormat) -> list[str]:
    """The columns' names, of a text file with a line of names."""
    require_file(file)
    if not form.holds_nul_bytes:
        _require_text(file)
    delimiter = form.delimiter
    try:
        with file.open(encoding=form.python_encoding) as opened:
            first = next((line for line in opened if line.strip()), "").strip("\r\n")
    except UnicodeError as error:
        raise form.explain_bytes(file, error) from None
    names = next(csv.reader([first], delimiter=delimiter), [""])
    other = next((sign for sign in _DELIMITERS if sign != delimiter and sign in first), None)
    if len(names) == 1 and other is not None:
        raise BadTable(
            f"{file}: the first line has no {delimiter!r}, but {_DELIMITERS[other]}: {first[:60]!r}; set delimiter "
            f"= {other!r}, or save it with commas"
        )
    if all(is_number(name, form) for name in names):
        raise BadTable(f"{file}: the first line holds numbers; it must be a header with the column names")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadTable(f"{file}: the column name {sorted(twice)[0]!r} appears twice")
    return names


def parse_csv(file: Path, form: TextFormat, types: dict[str, Any], gaps: Sequence[str] | None = None) -> Any:
    """A pyarrow table of these columns; text cells in `gaps` become null."""
    ragged: list[Any] = []

    def refused(row: Any) -> str:
        ragged.append(row)
        return "error"

    options = {} if gaps is None else {"null_values": list(gaps), "strings_can_be_null": True}
    try:
        return pa.csv.read_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False, encoding=form.arrow_encoding),
            parse_options=pa.csv.ParseOptions(delimiter=form.delimiter, invalid_row_handler=refused),
            convert_options=pa.csv.ConvertOptions(
                column_types=types, include_columns=list(types), decimal_point=form.decimal, **options
            ),
        )
    except UnicodeError as error:
        raise form.explain_bytes(file, error) from None
    except pa.ArrowInvalid as error:
        if not ragged and "invalid UTF8" in str(error):
            raise form.explain_bytes(file, UnicodeError(str(error))) from None
        if not ragged:
            raise
        row = ragged[0]
        raise BadTable(
            f"{file}: line {find_line(file, row.number - 2, form)} has {row.actual_columns} columns, but the header "
            f"has {row.expected_columns}"
        ) from None


def find_line(file: Path, row: int, form: TextFormat = PLAIN) -> int:
    """The line of data row `row`, counted from 0: empty lines are not rows."""
    with file.open(encoding=form.python_encoding, errors="replace") as opened:
        filled = [number for number, line in enumerate(opened, 1) if line.strip("\r\n")]
    return filled[min(row + 1, len(filled) - 1)]


def is_number(text: str, form: TextFormat = PLAIN) -> bool:
    """A number, or a gap where one could be."""
    if not form.has_plain_numbers:
        return text.strip() in GAPS or form.spell_number(text.strip()) is not None
    try:
        float(text)
    except ValueError:
        return text.strip() in GAPS
    return "_" not in text


def _require_text(file: Path) -> None:
    """Without NUL bytes; a byte order mark of UTF-8 is fine."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise BadTable(f'{file} is UTF-16; set encoding = "utf-16" next to the file, or save it as UTF-8')
        place = data.find(b"\0")
        if place >= 0:
            line = data[:place].count(b"\n") + 1
            raise BadTable(f"{file}: line {line} holds a NUL byte; is it a text file, and was it copied completely?")


def open_parquet(file: Path) -> Any:
    """A pyarrow.parquet.ParquetFile; the file is mapped, not loaded."""
    require_file(file)
    try:
        return pa.parquet.ParquetFile(file, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise BadFile(f"{file}: not a Parquet file, or damaged: {error}") from None


_PREPARE = "convert it, leave it out, or let the party prepare its table: prepare = {}"


def read_numbers(
    file: TableFile,
    columns: Sequence[str] | None = None,
    all_but: Sequence[str] = (),
    form: TextFormat = PLAIN,
    with_gaps: bool = False,
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """float64 [N, columns] of a CSV or Parquet file, and the columns' names; NaN for gaps, refused unless said."""
    if form.thousands is None or not _is_csv(file):
        table = _read_table(file, columns, all_but, form, pa.float64())
    else:
        table = _ungroup(file, form, _read_table(file, columns, all_but, form, pa.string(), GAPS))
    return stack_numbers(Cells(table, file, form=form), with_gaps), tuple(table.column_names)


def stack_numbers(cells: Cells, with_gaps: bool) -> NDArray[Any]:
    """float64 [N, columns] of columns of numbers; refuses others, and gaps unless said."""
    for name in cells.names:
        kind = cells.column(name).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadColumn(f"{cells.what}: column {name!r} holds {kind}, not numbers; {_PREPARE}")
    if not with_gaps:
        _require_cells(cells)
    return np.stack([cells.column(name).cast(pa.float64()).to_numpy() for name in cells.names], axis=1)


def _is_csv(file: TableFile) -> TypeGuard[Path]:
    return file.suffix.lower() == ".csv"


def _ungroup(file: Path, form: TextFormat, text: Any) -> Any:
    """The same table as numbers: pyarrow reads a decimal sign, but no groups of thousands."""
    columns = []
    for name in text.column_names:
        cells = pc.utf8_trim_whitespace(text.column(name))
        numbers = form.spell_numbers(cells)
        if numbers.null_count != cells.null_count:
            raise _wrong_cell(file, form, text.column_names) or BadTable(
                f"{file}: column {name!r} is not all numbers"
            )
        columns.append(numbers.cast(pa.float64()))
    return pa.table(columns, names=text.column_names)


def _read_table(
    file: TableFile,
    columns: Sequence[str] | None,
    all_but: Sequence[str],
    form: TextFormat,
    kind: Any,
    gaps: Sequence[str] | None = None,
) -> Any:
    """A pyarrow table, one row at least; cells of a CSV file are of this `kind`, a Parquet file has its own types."""
    names = select_columns(file, column_names(file, form), columns, all_but)
    if _is_csv(file):
        try:
            table = parse_csv(file, form, dict.fromkeys(names, kind), gaps)
        except pa.ArrowInvalid as error:
            raise _wrong_cell(file, form, names) or BadTable(f"{file}: {error}") from None
    else:
        table = open_stored(file).read(names)
    if table.num_rows == 0:
        raise BadTable(f"{file} has a header, but no rows")
    return table


def _wrong_cell(file: Path, form: TextFormat, names: Sequence[str]) -> BadColumn | None:
    """Which cell is not a number; only looked for when one is not."""
    try:
        table = parse_csv(file, form, dict.fromkeys(names, pa.string()))
    except pa.ArrowInvalid:
        return None
    found = []
    for name in names:
        cells = table.column(name).to_pylist()
        row = next((row for row, cell in enumerate(cells) if not is_number(cell or "nan", form)), None)
        if row is not None:
            found.append((row, name, cells[row]))
    if not found:
        return None
    row, name, cell = min(found, key=lambda one: one[0])
    line = find_line(file, row, form)
    return BadColumn(f"{file}: line {line}, column {name!r} holds {cell!r}, not a number; {_PREPARE}")


def _require_cells(cells: Cells) -> None:
    for name in cells.names:
        column = cells.column(name)
        if column.null_count:
            row = column.is_null().index(True).as_py()
            raise BadColumn(
                f"{cells.what}: {cells.where(row)}, column {name!r} is missing or not a number; fill it in, drop the "
                "row at every party, or let the party prepare its table: prepare = {}"
            )


# A table as it stands: text of a CSV file, a Parquet file's own types; gaps stay gaps -----------------------------


@dataclass(frozen=True, eq=False)
class Cells:
    """Columns of some rows, and where each of them stands."""

    table: Any  # pyarrow.Table
    file: TableFile | None = None
    numbers: NDArray[np.int64] | None = None  # of the rows in the file, from 0; None: all, in its order
    form: TextFormat | None = None  # how a text file writes numbers; None: they come from elsewhere

    @classmethod
    def of(cls, table: Any) -> Cells:
        """Anything that pyarrow makes a table of: a pyarrow table, a data frame, a dict of columns."""
        if isinstance(table, Cells):
            return table
        try:
            return cls(pa.table(table))
        except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
            raise BadTable(f"{type(table).__name__} is not a table: {error}; give columns by name") from None

    @classmethod
    def join(cls, parts: Sequence[Cells]) -> Cells:
        """Rows of one table, one behind the other."""
        rows = pa.concat_tables([part.table for part in parts]).combine_chunks()
        return replace(parts[0], table=rows, numbers=np.concatenate([part.row_numbers for part in parts]))

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Of the rows in the file, from 0."""
        return np.arange(len(self)) if self.numbers is None else self.numbers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, rows: NDArray[np.int64]) -> Cells:
        """These rows, in this order."""
        return Cells(self.table.take(pa.array(rows)), self.file, self.row_numbers[rows], self.form)

    def without(self, names: Sequence[str]) -> Cells:
        kept = [name for name in self.names if name not in names]
        return replace(self, table=self.table.select(kept))

    def column(self, name: str) -> Any:
        """A pyarrow column."""
        if name not in self.names:
            raise BadColumn(f"{self.what}: there is no column {name!r}; the columns are {quote_names(self.names)}")
        return self.table.column(name)

    @property
    def what(self) -> str:
        """For messages."""
        return "the table" if self.file is None else str(self.file)

    def where(self, row: int) -> str:
        """Which row this is, as people look it up: a line of a CSV file."""
        number = row if self.numbers is None else int(self.numbers[row])
        if self.file is not None and _is_csv(self.file):
            return f"line {find_line(self.file, number, self.form or PLAIN)}"
        return f"row {number + 1}"


def read_cells(
    file: TableFile,
    columns: Sequence[str] | None = None,
    all_but: Sequence[str] = (),
    form: TextFormat = PLAIN,
    gaps: Sequence[str] = GAPS,
) -> Cells:
    """Columns of a CSV or Parquet file; text in `gaps` counts as nothing."""
    table = _read_table(file, columns, all_but, form, pa.string(), gaps)
    return Cells(table, file, form=form if _is_csv(file) else None)


def column_names(file: TableFile, form: TextFormat = PLAIN) -> tuple[str, ...]:
    """What a table calls its columns."""
    if _is_csv(file):
        return tuple(read_header(file, form))
    if file.suffix.lower() != StoredTable.suffix:
        kind = file.suffix or "a file without a suffix"
        raise BadFile(f"{file}: cannot read {kind!r}; tables are .csv and .parquet")
    return tuple(open_stored(file).schema.names)
