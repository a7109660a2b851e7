"""One file, of any kind we read, as features or labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.types
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadColumn, BadFile, BadInput
from thinwire.base.format import quote_names
from thinwire.data.readers.files import load_array, read_npz
from thinwire.data.readers.large_table import LargeTable
from thinwire.data.readers.tables import (
    Cells,
    StoredColumn,
    StoredTable,
    TableFile,
    open_stored,
    read_cells,
    read_numbers,
    stack_numbers,
)
from thinwire.data.readers.text_format import PLAIN, TextFormat

_KINDS = ".npz, .csv, .parquet and .arrow"
_PIECE = 1 << 18  # ids at a time


@dataclass(frozen=True)
class Values:
    """What a file held; the columns' names where it has columns."""

    array: NDArray[Any]
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: NDArray[np.int64]) -> Values:
        return Values(self.array[rows], self.names)

    @property
    def shape(self) -> list[int]:
        """Of a row."""
        return list(self.array.shape[1:])


def compare_columns(trained: Sequence[str] | None, new: Sequence[str] | None) -> str | None:
    """What is wrong with the new columns' names; None where nothing is, or where one of the two has no names."""
    if trained is None or new is None or trained == new:
        return None
    missing, extra = ([name for name in a if name not in b] for a, b in ((trained, new), (new, trained)))
    if missing or extra:
        return f"lacks {quote_names(missing)}" if missing else f"has {quote_names(extra)} too"
    return "has them in another order"


def read_features(
    file: TableFile,
    key: str | None = None,
    columns: Sequence[str] | None = None,
    all_but: Sequence[str] = (),
    form: TextFormat = PLAIN,
    with_gaps: bool = False,
) -> Values:
    """float32 [N, ...]: an array of an NPZ file, or columns of a table, all of them unless named.

    NaN is for gaps, which are refused unless said.
    """
    if _is_npz(file, key, columns=columns, all_but=all_but):
        array, places = read_npz(file, key), None
    else:
        array, places = _table(file, columns, all_but, form, with_gaps)
    if array.ndim == 1:
        array = array[:, None]
    return Values(_to_floats(str(file), key, array, places, with_gaps), places)


def convert_to_floats(cells: Cells, with_gaps: bool) -> Tensor:
    """float32 [N, columns] of some rows of a table of numbers."""
    first = int(cells.row_numbers[0])
    array = stack_numbers(cells, with_gaps)
    return torch.from_numpy(_to_floats(cells.what, None, array, cells.names, with_gaps, first))


def _to_floats(
    what: str, key: str | None, array: NDArray[Any], names: tuple[str, ...] | None, with_gaps: bool, first: int = 0
) -> NDArray[np.float32]:
    """`first` is the number of the first row, for messages."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
        floats = array.astype(np.float32)
    finite = np.nan_to_num(floats, nan=0, posinf=np.inf) if with_gaps else floats
    _require_finite(what, key, finite, names, first)
    return floats


def read_labels(
    file: TableFile, key: str | None = None, column: str | None = None, form: TextFormat = PLAIN
) -> NDArray[Any]:
    """[N]: int64 where every label is an integer, else float32."""
    if _is_npz(file, key, column=column):
        array = read_npz(file, key)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise BadInput(f"{file}: {key!r} has shape {array.shape}; labels are one number per row, [N]")
        places = None
    else:
        if column is None:
            raise BadInput(f'{file}: name the column that holds the labels: column = "..."')
        table, places = _table(file, [column], (), form)
        array = table[:, 0]
    _require_finite(str(file), key, array, places)
    whole = array.astype(np.int64) if np.abs(array).max() < 2**53 else None
    return whole if whole is not None and np.array_equal(whole, array) else array.astype(np.float32)


def read_id_texts(
    file: TableFile, key: str | None = None, column: str | None = None, form: TextFormat = PLAIN
) -> list[str | None]:
    """Each row's id as it stands there; None where there is none."""
    return list(chain.from_iterable(stream_id_texts(file, key, column, form)))


def stream_id_texts(
    file: TableFile, key: str | None = None, column: str | None = None, form: TextFormat = PLAIN
) -> Iterator[list[str | None]]:
    """The same in pieces, so that all of them never are in memory; a Parquet file is also read in pieces."""
    for chunk in read_id_column(file, key, column, form).iterchunks():
        for start in range(0, len(chunk), _PIECE):
            cells = chunk.slice(start, _PIECE).to_pylist()
            yield [None if cell is None else str(cell) for cell in cells]


def read_id_column(
    file: TableFile, key: str | None = None, column: str | None = None, form: TextFormat = PLAIN
) -> Any:
    """The same as an Arrow column of text or whole numbers: there may be very many."""
    if _is_npz(file, key, column=column):
        array = load_array(file, key)
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise BadColumn(
                f"{file}: {key!r} holds {array.dtype} of shape {array.shape}; ids must be text or integers, [N]"
            )
        return pa.chunked_array([pa.array(array)])
    if column is None:
        raise BadInput(f'{file}: name the column that holds the ids: column = "..."')
    if file.suffix.lower() == StoredTable.suffix:
        cells: Any = StoredColumn(open_stored(file), column)
    else:
        cells = read_cells(file, [column], form=form, gaps=("",)).column(column)
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(pa.string())
    kind = cells.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise BadColumn(f"{file}: column {column!r} holds {kind}; ids must be text or integers")
    return cells


def _table(
    file: TableFile, columns: Sequence[str] | None, all_but: Sequence[str], form: TextFormat, with_gaps: bool = False
) -> tuple[NDArray[Any], tuple[str, ...]]:
    if isinstance(file, StoredTable) or file.suffix.lower() in (".csv", ".parquet"):
        return read_numbers(file, columns, all_but, form, with_gaps)
    match file.suffix.lower():
        case ".arrow":
            with LargeTable(file, columns, all_but) as table:
                return table.take(np.arange(len(table))), table.columns
    raise BadFile(f"{file}: cannot read {file.suffix or 'a file without a suffix'!r}; supported formats: {_KINDS}")


def _is_npz(file: TableFile, key: str | None, **of_tables: Any) -> TypeGuard[Path]:
    """Refuses what is said of another kind of file."""
    found = file.suffix.lower() == ".npz"
    other = "columns are for tables; an NPZ file has keys" if found else "keys are for NPZ files"
    for name, value in (of_tables if found else {"key": key}).items():
        if value:
            raise BadInput(f"{file}: {name!r} does not fit {file.suffix or 'this file'}: {other}")
    return found


def _require_finite(
    file: str, key: str | None, array: NDArray[Any], columns: tuple[str, ...] | None, first: int = 0
) -> None:
    wrong = ~np.isfinite(array)
    if not wrong.any():
        return
    place = np.argwhere(wrong)[0]
    value = array[tuple(place)]
    what = "NaN" if np.isnan(value) else "infinity, or a number too large for float32"
    where = f"row {first + place[0] + 1}"
    if columns is not None:
        where = f"column {columns[place[1] if len(place) > 1 else 0]!r}, {where}"
    elif len(place) > 1:
        where = f"{key!r}, {where}, place {', '.join(str(index + 1) for index in place[1:])}"
    else:
        where = f"{key!r}, {where}"
    raise BadColumn(f"{file}: {where} holds {what}; fill it in or drop the row at every party")
