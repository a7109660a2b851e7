"""Tables larger than memory: shuffled batches of rows from an Arrow or Parquet file.

Blocks of neighbouring rows are drawn in random order; some blocks at a time are read, and their rows shuffled
together. The order follows from the number of rows, the seed and the sizes alone, not from how a file happens to
be stored, so parties with different files go through the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.types
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadIds, BadInput, BadParameter, BadTable
from thinwire.data.hashing import row_keys
from thinwire.data.readers.files import require_file
from thinwire.data.readers.tables import GAPS, Cells, StoredTable, TableFile, open_parquet, read_cells, select_columns
from thinwire.data.readers.text_format import TextFormat
from thinwire.engine.streams import Storage, make_table, release_pages
from thinwire.storage.atomic_file import stage_file

_WRITTEN_ROWS = 8_192  # in a record batch of an Arrow file that we write
HELD_ROWS = 1 << 18  # of a table that is held whole; more are read in blocks
HELD_BYTES = 128 << 20  # of such a CSV file
COPY_IN_MEMORY = 256 << 20  # bytes of a copy of rows; a larger one goes to a file
_GROUP_BYTES = 32 << 20  # of rows that are written together


@dataclass(frozen=True)
class Shuffle:
    """An order of rows. `together` blocks of `block` rows are in memory at a time."""

    seed: int
    block: int = 4_096
    together: int = 16

    def __post_init__(self) -> None:
        for name in ("block", "together"):
            if getattr(self, name) < 1:
                raise BadParameter(f"Shuffle: {name} must be 1 or more, got {getattr(self, name)}")

    def groups(self, rows: int, epoch: int) -> Iterator[NDArray[np.int64]]:
        """Row numbers, a group of blocks at a time; together, every row once."""
        blocks = np.arange(-(-rows // self.block))
        order = blocks[np.argsort(row_keys(blocks, self.seed, epoch, "blocks"), kind="stable")]
        for start in range(0, len(order), self.together):
            first = np.sort(order[start : start + self.together]) * self.block
            own = (first[:, None] + np.arange(self.block)).reshape(-1)
            own = own[own < rows]
            yield own[np.argsort(row_keys(own, self.seed, epoch, "rows"), kind="stable")]


class LargeTable:
    """Columns of numbers in a .arrow or .parquet file, as float32; the file is mapped, not loaded."""

    def __init__(self, file: Path, columns: Sequence[str] | None = None, all_but: Sequence[str] = ()) -> None:
        require_file(file)
        self.file = file
        self._source = (_open_parquet if file.suffix == ".parquet" else _open_arrow)(file)
        schema = self._source.schema
        self.columns = select_columns(file, schema.names, columns, all_but)
        for name in self.columns:
            kind = schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                raise BadInput(f"{file}: column {name!r} holds {kind}, not numbers")
        self._ends = np.cumsum(self._source.sizes)
        if not len(self):
            raise BadInput(f"{file} has no rows")

    def __enter__(self) -> LargeTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def close(self) -> None:
        self._source.close()

    def batches(self, size: int, shuffle: Shuffle, epoch: int = 0) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Row numbers [B] and their values [B, columns], a last short batch included."""
        if size < 1:
            raise BadParameter(f"batches: size must be 1 or more, got {size}")
        rows, values = np.zeros(0, dtype=np.int64), np.zeros((0, len(self.columns)), dtype=np.float32)
        for group in shuffle.groups(len(self), epoch):
            rows, values = np.concatenate([rows, group]), np.concatenate([values, self.take(group)])
            whole = len(rows) // size * size
            for start in range(0, whole, size):
                yield rows[start : start + size], values[start : start + size]
            rows, values = rows[whole:].copy(), values[whole:].copy()
        if len(rows):
            yield rows, values

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """These rows' values [rows, columns], in this order. Each stored piece is read once, one at a time."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise BadParameter(f"{self.file}: row {rows.min()} or {rows.max()} is not one of its {len(self)} rows")
        found = np.empty((len(rows), len(self.columns)), dtype=np.float32)
        pieces = np.searchsorted(self._ends, rows, side="right")
        for piece in np.unique(pieces):
            own = np.flatnonzero(pieces == piece)
            start = int(self._ends[piece]) - self._source.sizes[piece]
            places = rows[own] - start
            try:
                for k, column in enumerate(self._source.read(int(piece), self.columns)):
                    found[own, k] = _values(self.file, self.columns[k], column, places)
            except (pa.ArrowException, OSError) as error:
                raise BadInput(f"{self.file}: damaged after row {start}: {error}") from None
        return found


def write_arrow(file: Path, blocks: Iterable[Any]) -> None:
    """Tables of numbers, one after the other, as one Arrow file of float32 to be mapped; whole or not at all."""
    try:
        with stage_file(file, sync=False) as part, pa.OSFile(str(part), "wb") as opened:
            writer = None
            for block in blocks:
                floats = block.cast(pa.schema([(name, pa.float32()) for name in block.column_names]))
                writer = writer or pa.ipc.new_file(opened, floats.schema)
                writer.write_table(floats, max_chunksize=_WRITTEN_ROWS)
            if writer is None:
                raise BadInput(f"{file}: there is nothing to write")
            writer.close()
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{file}: cannot be written: {error}") from None


def _values(file: Path, name: str, column: Any, places: NDArray[np.int64]) -> NDArray[np.float32]:
    """Some values of a stored piece of a column, without turning the rest of it into floats."""
    if column.null_count:
        row = pc.is_null(column).index(True).as_py()
        raise BadInput(f"{file}: column {name!r} has an empty value (row {row + 1} of a stored piece); fill it in")
    values: NDArray[np.float32] = column.to_numpy()[places].astype(np.float32)
    return values


@dataclass(frozen=True)
class _Pieces:
    """What a file stores: record batches or row groups."""

    schema: Any  # pyarrow.Schema
    sizes: list[int]
    read: Callable[[int, Sequence[str]], Iterable[Any]]  # columns of a piece
    close: Callable[[], None]


def _open_arrow(file: Path) -> _Pieces:
    """An uncompressed Arrow file is read straight from the mapping."""
    mapped = pa.memory_map(str(file))
    try:
        reader = pa.ipc.open_file(mapped)
        sizes = [reader.get_batch(piece).num_rows for piece in range(reader.num_record_batches)]
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{file}: not an Arrow file, or damaged: {error}") from None
    return _Pieces(
        reader.schema, sizes, lambda piece, names: reader.get_batch(piece).select(list(names)).columns, mapped.close
    )


def _open_parquet(file: Path) -> _Pieces:
    """A Parquet file is decoded a column of a row group at a time."""
    opened = open_parquet(file)
    sizes = [opened.metadata.row_group(piece).num_rows for piece in range(opened.metadata.num_row_groups)]

    def read(piece: int, names: Sequence[str]) -> Iterator[Any]:
        for name in names:
            yield opened.read_row_group(piece, columns=[name], use_threads=False).column(0).combine_chunks()

    return _Pieces(opened.schema_arrow, sizes, read, opened.close)


# Cells of a table that is never held whole ------------------------------------------------------------------------


_BLOCK_CELLS = 1 << 21  # of a block of rows


@dataclass(frozen=True, eq=False)
class LargeCells:
    """Columns of some rows of a stored table; they are read when they are needed, a block of rows at a time."""

    stored: StoredTable
    names: tuple[str, ...]
    storage: Storage  # where numbers that are made of them lie
    rows: NDArray[np.int64] | None = None  # None: all
    file: TableFile | None = None  # by which messages name rows; the stored table itself
    form: TextFormat | None = None

    def __len__(self) -> int:
        return len(self.stored) if self.rows is None else len(self.rows)

    def __getitem__(self, rows: NDArray[np.int64]) -> LargeCells:
        """These rows, in this order."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    @property
    def what(self) -> str:
        """For messages."""
        return str(self.file or self.stored)

    def select(self, names: Sequence[str]) -> LargeCells:
        return replace(self, names=tuple(names))

    def read(self) -> Cells:
        """All of it, which is for a column at a time."""
        whole = Cells(self.stored.read(self.names), self.file or self.stored, form=self.form)
        return whole if self.rows is None else whole[self.rows]

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], Cells]]:
        """Cells of neighbouring rows, and their places in this table."""
        rows, order, start = self.rows, None, 0
        if rows is not None and (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows)
            rows = rows[order]
        for batch in self.stored.batches(self.names, max(1_024, _BLOCK_CELLS // len(self.names))):
            stop = start + len(batch)
            numbers = np.arange(start, stop)
            cells = Cells(pa.Table.from_batches([batch]), self.file or self.stored, numbers, self.form)
            if rows is None:
                yield numbers, cells
            else:
                first, last = np.searchsorted(rows, [start, stop])
                places = np.arange(first, last) if order is None else order[first:last]
                if len(places):
                    yield places, cells[rows[first:last] - start]
            start = stop

    def read_different(self, most: int) -> Cells | None:
        """The first row of each value of a single column; None where there are more values, or fractions."""
        (name,), found = self.names, dict[Any, Cells]()
        if pa.types.is_floating(self.stored.schema.field(name).type):
            return None
        for _, cells in self.blocks():
            column = cells.column(name)
            for value in [one for one in column.unique().to_pylist() if one not in found]:
                place = column.is_null().index(True) if value is None else column.index(value)
                found[value] = cells[np.array([place.as_py()])]
            if len(found) > most:
                return None
        return Cells.join(list(found.values()))

    def collect(self, apply: Callable[[Cells], Tensor]) -> Tensor:
        """One number a row [N], in memory."""
        found: Tensor | None = None
        for places, cells in self.blocks():
            numbers = apply(cells)
            found = numbers.new_empty(len(self)) if found is None else found
            found[torch.from_numpy(places)] = numbers
        if found is None:
            raise BadInput(f"{self.what} has no rows")
        return found

    def convert(self, apply: Callable[[Cells], Tensor]) -> Tensor:
        """Every row's numbers [N, width], in memory or in a file; a row's do not depend on the others."""
        found: Tensor | None = None
        for places, cells in self.blocks():
            numbers = apply(cells)
            if found is None:
                found = make_table(len(self), numbers.shape[1], self.storage, f"the numbers of {self.what}")
            found[torch.from_numpy(places)] = numbers
            release_pages(found)
        if found is None:
            raise BadInput(f"{self.what} has no rows")
        return found


# A copy of rows that come in a stream, in the order of their ids -------------------------------------------------


@dataclass
class RisingKey:
    """Watches that every row's id is above the one before, as bytes of text or as numbers."""

    says: str
    name: str
    rows: int = 0
    last: Any = None  # a column of one value

    def find_fall(self, batch: Any) -> str | None:
        """What is wrong with the next rows; None where nothing is."""
        keys = batch.column(self.name)
        if keys.null_count:
            row = self.rows + keys.is_null().index(True).as_py()
            raise BadIds(f"{self.says}: row {row + 1} has no {self.name!r}, by which rows are ordered; give it one")
        if self.last is not None:
            keys = pa.concat_arrays([self.last, keys])
        wrong = pc.greater_equal(keys[:-1], keys[1:]).index(True).as_py()
        offset, self.last = self.rows - (self.last is not None), keys[-1:]
        self.rows += len(batch)
        if wrong < 0:
            return None
        here, there = keys[wrong].as_py(), keys[wrong + 1].as_py()
        if here == there:
            raise BadIds(
                f"{self.says}: row {offset + wrong + 2} repeats the {self.name!r} {here!r} of the row before"
            )
        return f"row {offset + wrong + 2} has {self.name!r} = {there!r} after {here!r}"


def copy_rows(says: str, schema: Any, batches: Iterable[Any], key: str | None, storage: Storage) -> StoredTable:
    """In memory, or in a file where that is too much; refuses rows that do not come in the order of the key."""
    rising = None if key is None else RisingKey(says, key)
    room, size = min(COPY_IN_MEMORY, storage.memory_limit_bytes), 0
    kept: list[Any] = []
    with ExitStack() as undo:
        writer = None
        for batch in batches:
            if rising is not None and (fall := rising.find_fall(batch)) is not None:
                raise BadIds(
                    f"{says}: {fall}: the database sorts {key!r} in an order other than byte order; end the query "
                    'with your own ORDER BY (PostgreSQL: ORDER BY id COLLATE "C")'
                )
            kept.append(batch)
            size += batch.nbytes
            if size > (room if writer is None else _GROUP_BYTES):
                writer = writer or undo.enter_context(closing(_CopyFile(says, schema, storage)))
                writer.write(kept)
                kept, size = [], 0
        if writer is None:
            return StoredTable(says, pa.Table.from_batches(kept, schema))
        found = StoredTable(says, writer.finish(kept))
        finalize(found, undo.pop_all().close)
        return found


class _CopyFile:
    """A Parquet file without a name."""

    def __init__(self, says: str, schema: Any, storage: Storage) -> None:
        self._says, self._schema, self._storage = says, schema, storage
        self._file = storage.file()
        self._writer = pa.parquet.ParquetWriter(pa.PythonFile(self._file, "w"), schema, compression="zstd")

    def write(self, batches: Sequence[Any]) -> None:
        with self._map_errors():
            self._writer.write_table(pa.Table.from_batches(batches, self._schema))

    def finish(self, last: Sequence[Any]) -> Any:
        """The file, to be read."""
        if last:
            self.write(last)
        with self._map_errors():
            self._writer.close()
        self._file.seek(0)
        return pa.parquet.ParquetFile(pa.PythonFile(self._file, "r"))

    def close(self) -> None:
        with suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._file.close()

    @contextmanager
    def _map_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise BadInput(
                f"{self._says}: no room for a copy of it in {self._storage.place}: {error.strerror or error}; free "
                "some, or name a folder on a larger disk: job.scratch"
            ) from None


def copy_csv(file: Path, names: Sequence[str], form: TextFormat, storage: Storage) -> StoredTable:
    """Columns of a CSV file as text, to be read as often as needed without looking for the cells again."""
    schema = pa.schema([(name, pa.string()) for name in names])
    try:
        reader = pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(use_threads=False, encoding=form.arrow_encoding),
            parse_options=pa.csv.ParseOptions(delimiter=form.delimiter),
            convert_options=pa.csv.ConvertOptions(
                column_types=schema, include_columns=list(names), null_values=list(GAPS), strings_can_be_null=True
            ),
        )
        return copy_rows(str(file), schema, reader, None, storage)
    except (pa.ArrowInvalid, UnicodeError) as error:
        read_cells(file, names, (), form)  # which says what is wrong, and where
        raise BadTable(f"{file}: {error}") from None
