"""The idx format of MNIST and its relatives: a magic number, the sizes, then bytes."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.data.files import read_bytes
from thinwire.errors import BadInput

__all__ = ["read_idx"]

_UNSIGNED_BYTES = 8


def read_idx(file: Path, axes: int) -> NDArray[np.uint8]:
    """uint8 with `axes` axes, gzipped or not."""
    data = read_bytes(file)
    start = 4 + 4 * axes
    if len(data) < start:
        raise BadInput(f"{file}: ends at byte {len(data)}, within its header of {start} bytes")
    if data[:4] != bytes([0, 0, _UNSIGNED_BYTES, axes]):
        raise BadInput(
            f"{file}: starts with {data[:4].hex()} at byte 0, expected 0000{_UNSIGNED_BYTES:02x}{axes:02x}: "
            f"an idx file of bytes with {axes} axes"
        )
    shape = tuple(int(size) for size in np.frombuffer(data, ">u4", axes, 4))
    wanted = start + prod(shape)
    if len(data) != wanted:
        what = "is cut off" if len(data) < wanted else "goes on"
        raise BadInput(f"{file}: {what} at byte {min(len(data), wanted)}; {shape} values end at byte {wanted}")
    if not prod(shape):
        raise BadInput(f"{file}: its header announces {shape}: no values")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
