"""How much of a large table may be in memory, and the rest of it as tensors that lie in a file.

The system reads what is touched, and takes it back when it is let go; until then a touched page counts as this
process's memory. Letting go loses nothing: the file has it.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from thinwire.base.errors import BadParameter

_LEAST_RESIDENT = 64 << 20  # bytes; with less, a batch's rows would be read again and again


@dataclass(frozen=True, slots=True)
class Storage:
    """Where large tables live: in memory up to a limit each, and in a file beyond it.

    Of a table in a file, no more than the limit is in memory at a time, or 64 MiB where the limit is lower. The file
    has no name and disappears with the process.

    Args:
        memory_limit_bytes: largest table that stays in memory.
        folder: folder on a disk, not on a memory file system; the system's temporary folder unless given.
        spills: False refuses tables over the limit instead of writing a file.

    Raises:
        BadParameter: a negative limit, or a folder that does not exist.

    Examples:
        >>> tw.Storage(memory_limit_bytes=1 << 20).resident_bytes >= 1 << 20
        True
    """

    memory_limit_bytes: int = 4 << 30
    folder: Path | None = None
    spills: bool = True  # False: nobody has named a folder, and none may be taken

    def __post_init__(self) -> None:
        if self.memory_limit_bytes < 0:
            raise BadParameter.about(
                "Storage", "memory_limit_bytes", f"must be 0 or more, got {self.memory_limit_bytes}"
            )
        if self.folder is not None and not Path(self.folder).is_dir():
            raise BadParameter(f"Storage: the folder {self.folder} does not exist; create it first")

    def require_folder(self) -> Storage:
        """For an encrypted run: files in `folder` are not encrypted, so its owner must have chosen it."""
        return self if self.folder is not None else replace(self, spills=False)

    @property
    def place(self) -> Path:
        """The folder where files lie."""
        return self.folder or Path(tempfile.gettempdir())

    @property
    def resident_bytes(self) -> int:
        """How much of a file may be in memory."""
        return max(self.memory_limit_bytes, _LEAST_RESIDENT)

    def file(self) -> BinaryIO:
        """An empty file without a name."""
        if not self.spills:
            raise BadParameter(
                f"a table exceeds job.memory_limit_mb ({self.memory_limit_bytes / 2**20:g} MiB); this run is "
                "encrypted, but tables that spill to disk are not. Raise the limit, or set job.scratch to a folder "
                "on an encrypted disk"
            )
        try:
            return tempfile.TemporaryFile(dir=self.place, buffering=0)
        except OSError as error:
            raise BadParameter(f"Storage: cannot create a file in {self.place}: {error.strerror}") from error

    def reserve(self, file: BinaryIO, start: int, size: int, what: str) -> None:
        """Takes room on the disk now: a full one would otherwise kill the process at some later write."""
        try:
            os.posix_fallocate(file.fileno(), start, size)
        except OSError as error:
            raise BadParameter(
                f"Storage: no space for {what} of {size} bytes in {self.place}: {error.strerror}; free some space, "
                "give another folder, or raise memory_limit_bytes"
            ) from error


def make_table(rows: int, width: int, storage: Storage, what: str) -> Tensor:
    """An uninitialised float32 table [rows, width], in memory or in a file, as the storage's limit decides.

    Args:
        rows: number of rows.
        width: number of columns.
        storage: memory limit and folder.
        what: names the table in messages.

    Examples:
        >>> tw.streams.make_table(3, 4, tw.Storage(), "a table").shape
        torch.Size([3, 4])
    """
    size = 4 * rows * width
    if size <= storage.memory_limit_bytes:
        return torch.empty(rows, width)
    with storage.file() as file:
        storage.reserve(file, 0, size, what)
        return map_file(file, size).view(torch.float32).view(rows, width)


class _MappedFile(mmap.mmap):
    touched = 0  # bytes of pages since they were let go of


BLOCK = 1 << 24  # bytes
# By their first address. A tensor over one keeps it alive, and with it the file.
_MAPS: WeakValueDictionary[int, mmap.mmap] = WeakValueDictionary()
_MOST_TOUCHED = 512 << 20  # bytes of pages that single rows have brought into memory, before they are let go of


def map_file(file: BinaryIO, size: int) -> Tensor:
    """The file's first `size` bytes, not a copy: who changes the tensor changes the file."""
    area = _MappedFile(file.fileno(), size)
    area.madvise(mmap.MADV_RANDOM)  # a batch's rows lie anywhere; their neighbours are not worth reading
    return view_bytes(area)


def view_bytes(area: mmap.mmap | bytearray | memoryview) -> Tensor:
    """Its bytes, not a copy."""
    found = torch.frombuffer(area, dtype=torch.uint8)
    if isinstance(area, mmap.mmap):
        _MAPS[found.data_ptr()] = area
    return found


def release_pages(tensor: Tensor) -> None:
    """Releases the memory behind a tensor that lives in a file; other tensors are left alone.

    Args:
        tensor: any tensor.

    Examples:
        >>> tw.streams.release_pages(torch.zeros(3))
    """
    area = _MAPS.get(tensor.untyped_storage().data_ptr())
    if area is not None:
        area.madvise(mmap.MADV_DONTNEED)  # shared with the file: what was changed stays there


def release_touched_pages(tensor: Tensor, rows: int) -> None:
    """The same once enough rows were read since, because a released page takes time to load again.

    Args:
        tensor: any tensor.
        rows: rows read since the last call.

    Examples:
        >>> tw.streams.release_touched_pages(torch.zeros(3), rows=2)
    """
    area = _MAPS.get(tensor.untyped_storage().data_ptr())
    if not isinstance(area, _MappedFile):
        return
    area.touched += rows * mmap.PAGESIZE
    if area.touched > _MOST_TOUCHED:
        release_pages(tensor)
        area.touched = 0


def blocks(tensor: Tensor) -> Iterator[Tensor]:
    """A contiguous tensor as flat blocks, in order; each is released when the next is taken.

    Args:
        tensor: any contiguous tensor.

    Examples:
        >>> sum(len(block) for block in tw.streams.blocks(torch.zeros(3, 4)))
        12
    """
    flat = tensor.view(-1)
    step = max(1, BLOCK // tensor.itemsize)
    for start in range(0, flat.numel(), step):
        yield flat[start : start + step]
        release_pages(tensor)
