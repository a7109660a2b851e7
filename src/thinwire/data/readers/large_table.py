"""Tables larger than memory: shuffled batches of rows from an Arrow or Parquet file.

Blocks of neighbouring rows are drawn in random order; some blocks at a time are read, and their rows shuffled
together. The order follows from the number of rows, the seed and the sizes alone, not from how a file happens to
be stored, so parties with different files go through the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.types
from numpy.typing import NDArray

from thinwire.base.errors import BadInput, BadParameter
from thinwire.data.hashing import row_keys
from thinwire.data.readers.files import require_file
from thinwire.data.readers.tables import open_parquet, select_columns
from thinwire.storage.atomic_file import stage_file

_WRITTEN_ROWS = 8_192  # in a record batch of an Arrow file that we write


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
