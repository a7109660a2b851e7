"""The N x E estimate behind error feedback: in memory, or memory-mapped past a limit.

Both ends of a stream hold one and change it alike, so that it stays the same to the bit.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor

from thinwire.errors import BadParameter, BadState

__all__ = ["Storage", "Surrogate"]

_DIGEST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Storage:
    """Where large tables live: in memory up to `memory_limit_bytes` each, else in a file in `folder`.

    The file has no name and takes its whole size at once; it is gone with the process. `folder` is the
    system's folder for temporary files unless given; give a disk's, not a memory file system's.
    """

    memory_limit_bytes: int = 4 << 30
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.memory_limit_bytes < 0:
            raise BadParameter(f"Storage: memory_limit_bytes must be 0 or more, got {self.memory_limit_bytes}")
        if self.folder is not None and not Path(self.folder).is_dir():
            raise BadParameter(f"Storage: the folder {self.folder} does not exist; make it first")


class Surrogate:
    """G, one row of floats for each row of the alignment; zeros at the start."""

    def __init__(self, rows: int, width: int, storage: Storage = Storage()) -> None:
        for field, value in (("rows", rows), ("width", width)):
            if value < 1:
                raise BadParameter(f"Surrogate: {field} must be 1 or more, got {value}")
        self.bytes = 4 * rows * width
        self.in_memory = self.bytes <= storage.memory_limit_bytes
        self._table = (
            torch.zeros(rows, width, dtype=torch.float32) if self.in_memory else _mapped(rows, width, storage)
        )

    @property
    def table(self) -> Tensor:
        """All of it, not a copy; shape [N, E]."""
        return self._table

    def at(self, rows: Tensor) -> Tensor:
        """A copy of some rows; shape [B, E]."""
        return self._table.index_select(0, rows)

    def add(self, rows: Tensor, change: Tensor) -> None:
        """G[rows] += change, in the same order at both ends."""
        self._table.index_add_(0, rows, change)

    def add_all(self, change: Tensor) -> None:
        """G += change."""
        self._table += change

    def digest(self) -> int:
        """XXH3-64 of the table's bytes: equal at both ends, or the stream is broken."""
        running = xxhash.xxh3_64()
        flat = self._table.numpy().reshape(-1)
        for start in range(0, flat.size, _DIGEST_BYTES // 4):
            running.update(flat[start : start + _DIGEST_BYTES // 4].data)
        return running.intdigest()

    def load(self, table: Tensor) -> None:
        """Takes over a saved table."""
        if table.dtype != torch.float32 or table.shape != self._table.shape:
            raise BadState(
                f"the saved surrogate is {table.dtype} {tuple(table.shape)}, this stream needs "
                f"torch.float32 {tuple(self._table.shape)}; was it saved with other parties or widths?"
            )
        if not bool(torch.isfinite(torch.stack(torch.aminmax(table))).all()):
            raise BadState("the saved surrogate holds NaN or infinity")
        self._table.copy_(table)


def _mapped(rows: int, width: int, storage: Storage) -> Tensor:
    folder = storage.folder or Path(tempfile.gettempdir())
    size = 4 * rows * width
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Reserved now: a full disk would otherwise kill the process at some later write.
            os.posix_fallocate(file.fileno(), 0, size)
            return torch.from_numpy(np.memmap(file, dtype=np.float32, mode="r+", shape=(rows, width)))
    except OSError as error:
        raise BadParameter(
            f"Storage: no room for a surrogate of {size} bytes in {folder}: {error.strerror}; free some, "
            "give another folder, or raise memory_limit_bytes"
        ) from error
