"""Files that are read whole, gzipped or not, and arrays of numbers or words in NumPy's .npz files.

Object arrays are pickles, and are refused.
"""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadFile, BadInput
from thinwire.base.format import did_you_mean

_PIECE = 1 << 20


def require_file(file: Path) -> None:
    """Refuses what cannot be opened or is empty, and says why."""
    if file.is_dir():
        raise BadFile(f"{file} is a folder, not a file")
    if not file.exists():
        raise BadFile(f"{file} does not exist; paths in a job file start from the job file's folder")
    if not os.access(file, os.R_OK):
        raise BadFile(f"{file} is not readable by this user")
    if file.stat().st_size == 0:
        raise BadFile(f"{file} is empty")


def read_bytes(file: Path) -> bytes:
    """The file's content, without its compression where it ends in .gz."""
    require_file(file)
    return b"".join(read_gzip(file)) if file.suffix == ".gz" else file.read_bytes()


def read_gzip(file: Path) -> Iterator[bytes]:
    """The content of a gzipped file, in pieces."""
    try:
        with gzip.open(file) as opened:
            while piece := opened.read(_PIECE):
                yield piece
    except EOFError:
        raise BadFile(f"{file}: truncated at byte {file.stat().st_size}; copy it again") from None
    except (OSError, zlib.error) as error:
        raise BadFile(f"{file}: damaged, or not gzip-compressed: {error}; copy it again") from None


# Arrays of numbers or words in NumPy's .npz files. Object arrays are pickles, and are refused ---------------------


_PARSING = Lock()  # an array's header is a literal: two threads that parse at once fail in CPython 3.11 (gh-106905)
_DAMAGED = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError)


def read_npz(file: Path, key: str | None) -> NDArray[Any]:
    """The array under `key`; numbers only, one row at least."""
    array = load_array(file, key)
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{file}: {key!r} holds {array.dtype}, not numbers; save it as float32 or int64")
    if array.ndim == 0 or not array.size:
        raise BadInput(f"{file}: {key!r} has shape {array.shape}, which has no rows; expected [rows, ...]")
    return array


def read_words(file: Path, key: str) -> tuple[str, ...]:
    """The words under `key`, an array of fixed-width text."""
    words = load_array(file, key)
    if words.dtype.kind != "U" or words.ndim != 1:
        raise BadInput(f"{file}: {key!r} holds {words.dtype}, not words")
    return tuple(words.tolist())


def load_array(file: Path, key: str | None) -> NDArray[Any]:
    """The array under `key`, of any kind but Python objects, which are never loaded."""
    require_file(file)
    with file.open("rb") as opened:
        try:
            # numpy.load unpickles only when asked to.
            arrays = np.load(opened)
        except _DAMAGED as error:
            raise BadInput(f"{file}: not an NPZ file: {error}; save it with numpy.savez") from None
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise BadInput(f"{file}: a single array, not an NPZ file; save it with numpy.savez")
        with arrays, _PARSING:
            return _read(file, key, arrays)


def _read(file: Path, key: str | None, arrays: Any) -> NDArray[Any]:
    if key not in arrays.files:
        raise BadInput(_no_key(file, key, arrays.files))
    try:
        array: NDArray[Any] = arrays[key]
    except _DAMAGED as error:
        if "allow_pickle" not in str(error):
            raise BadInput(f"{file}: {key!r} cannot be read: {error}") from None
        raise BadInput(
            f"{file}: {key!r} is an array of Python objects, which thinwire never loads; save it as numbers: "
            "array.astype('float32')"
        ) from None
    return array


def _no_key(file: Path, key: str | None, there: list[str]) -> str:
    names = ", ".join(map(repr, there)) or "nothing"
    if key is None:
        return f'{file}: name the array to read: key = "..."; the file holds {names}'
    return f"{file}: there is no {key!r}; the file holds {names}{did_you_mean(key, there)}"
