"""Which rows a party holds, in order, as one digest that can be compared without showing an id."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.types

from thinwire.data.cells import read_cells
from thinwire.data.opening import require_file
from thinwire.errors import BadColumn, BadFile, BadIds, BadInput
from thinwire.job.messages import did_you_mean

__all__ = ["RowIds", "digest_of", "read_id_texts", "read_ids"]

_MOST = 5  # rows named in one message
_DAMAGED = (OSError, ValueError, TypeError, EOFError, KeyError, NotImplementedError, BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class RowIds:
    """The rows' ids, in order, as SHA-256 over each id's length in 8 bytes and its UTF-8 text.

    The text counts exactly as it stands: '007' is not '7', and spaces and Unicode forms matter. Whoever can
    guess all ids of a party can check the guess against the digest.
    """

    digest: str
    count: int


def read_ids(file: Path, key: str | None = None, column: str | None = None, delimiter: str = ",") -> RowIds:
    """The digest of an array of an NPZ file, or of one column of a table; refuses rows that it cannot tell apart."""
    try:
        return digest_of(read_id_texts(file, key, column, delimiter))
    except BadInput as error:
        raise (error if str(error).startswith(str(file)) else error.at(str(file))) from None


def read_id_texts(
    file: Path, key: str | None = None, column: str | None = None, delimiter: str = ","
) -> list[str | None]:
    """Each row's id as it stands there; None where there is none."""
    require_file(file)
    if file.suffix.lower() == ".npz":
        if column is not None:
            raise BadInput(f"{file}: 'column' does not fit .npz: columns have names in tables; an NPZ file has keys")
        return _of_npz(file, key)
    if key is not None:
        raise BadInput(f"{file}: 'key' does not fit {file.suffix or 'this file'}: keys are for NPZ files")
    if column is None:
        raise BadInput(f'{file}: say which column holds the ids: column = "..."')
    return _of_table(file, column, delimiter)


def digest_of(ids: Sequence[str | None]) -> RowIds:
    """Of ids in order; every row needs one of its own."""
    missing = [row for row, text in enumerate(ids, 1) if not text]
    if missing:
        what = "1 row has no id" if len(missing) == 1 else f"{len(missing)} rows have no id"
        raise BadIds(f"{what}: {_rows(missing)}; give every row one, or drop it at every party")
    first: dict[str | None, int] = {}
    again = [(row, first[text]) for row, text in enumerate(ids, 1) if first.setdefault(text, row) != row]
    if again:
        shown = ", ".join(f"row {row} has that of row {before}" for row, before in again[:_MOST])
        more = f" and {len(again) - _MOST} more" if len(again) > _MOST else ""
        what = "1 id is there twice" if len(again) == 1 else f"{len(again)} ids are there already"
        raise BadIds(f"{what}: {shown}{more}; every row needs an id of its own")
    digest = hashlib.sha256()
    for row, text in enumerate(ids, 1):
        try:
            data = (text or "").encode()
        except UnicodeEncodeError:
            raise BadIds(f"row {row} has an id that is no Unicode text: {text!r}") from None
        digest.update(len(data).to_bytes(8, "big") + data)
    return RowIds(digest.hexdigest(), len(ids))


def _of_npz(file: Path, key: str | None) -> list[str | None]:
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:  # numpy.load unpickles only when asked to
            there = list(arrays.files)
            array = arrays[key] if key in there else None
    except _DAMAGED as error:
        raise BadFile(f"{file}: no ids can be read: {error}; write text or whole numbers with numpy.savez") from None
    if array is None:
        raise BadColumn(_unknown(file, "array", "key", key, there))
    if array.ndim != 1 or array.dtype.kind not in "iuU":
        raise BadColumn(
            f"{file}: {key!r} holds {array.dtype} of shape {array.shape}; ids are text or whole numbers, [N]"
        )
    return [str(one) for one in array.tolist()]


def _of_table(file: Path, column: str, delimiter: str) -> list[str | None]:
    cells = read_cells(file, [column], delimiter=delimiter, gaps=("",)).column(column)
    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(pa.string())
    kind = cells.type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise BadColumn(f"{file}: column {column!r} holds {kind}; ids are text or whole numbers")
    return [None if cell is None else str(cell) for cell in cells.to_pylist()]


def _unknown(file: Path, what: str, field: str, asked: str | None, there: Sequence[str]) -> str:
    if asked is None:
        return f'{file}: say which {what} holds the ids: {field} = "..."'
    return f"{file}: there is no {what} {asked!r}, it has {', '.join(map(repr, there))}{did_you_mean(asked, there)}"


def _rows(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST]))
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}" + ("" if len(rows) <= _MOST else " ...")
