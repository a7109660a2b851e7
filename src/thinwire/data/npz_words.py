"""Words in NumPy's .npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from thinwire.data.opening import require_file
from thinwire.errors import BadInput

__all__ = ["read_words"]


def read_words(file: Path, key: str) -> tuple[str, ...]:
    """The words under `key`, an array of fixed-width text; Python objects are never loaded."""
    require_file(file)
    try:
        with np.load(file) as arrays:
            words = arrays[key]
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{file}: {key!r} cannot be read: {error}") from None
    if words.dtype.kind != "U" or words.ndim != 1:
        raise BadInput(f"{file}: {key!r} holds {words.dtype}, not words")
    return tuple(words.tolist())
