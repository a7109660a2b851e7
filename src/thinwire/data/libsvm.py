"""LIBSVM files: a label, then index:value for whatever is not zero; indices from 1."""

from __future__ import annotations

import bz2
import gzip
import zlib
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.data.files import require_file
from thinwire.errors import BadInput

__all__ = ["read_libsvm"]

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


def read_libsvm(file: Path, features: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Features [N, features] and labels [N]; plain, .gz or .bz2."""
    require_file(file)
    try:
        with _OPENERS.get(file.suffix, open)(file, "rb") as opened:
            data: bytes = opened.read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{file}: damaged or cut off: {error}") from None
    # Arrays, not lists: a large file has millions of values.
    labels, rows, columns, values = array("d"), array("q"), array("q"), array("f")
    for number, line in enumerate(data.split(b"\n"), 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        try:
            indices, own = _row(words, features)
            labels.append(float(words[0]))
        except ValueError as error:
            raise BadInput(f"{file}: line {number}: {error or 'not a row of numbers'}") from None
        rows.extend([len(labels) - 1] * len(indices))
        columns.extend(indices)
        values.extend(own)
    if not labels:
        raise BadInput(f"{file} has no rows")
    x = np.zeros((len(labels), features), dtype=np.float32)
    x[np.frombuffer(rows, np.int64), np.frombuffer(columns, np.int64)] = np.frombuffer(values, np.float32)
    return x, np.frombuffer(labels, np.float64)


def _row(words: list[bytes], features: int) -> tuple[list[int], list[float]]:
    indices, values = [], []
    last = 0
    for word in words[1:]:
        index, colon, value = word.partition(b":")
        place = int(index) if colon else 0
        if not last < place <= features:
            raise ValueError(
                f"{word.decode(errors='replace')!r}: expected index:value, indices rising up to {features}"
            )
        indices.append(place - 1)
        values.append(float(value))
        last = place
    return indices, values
