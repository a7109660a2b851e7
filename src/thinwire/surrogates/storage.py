"""How much of a large table may be in memory, and where the rest of it goes."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from thinwire.errors import BadParameter

__all__ = ["Storage"]

_LEAST_RESIDENT = 64 << 20  # bytes; with less, a batch's rows would be read again and again


@dataclass(frozen=True, slots=True)
class Storage:
    """Where large tables live: in memory up to `memory_limit_bytes` each, else in a file in `folder`.

    Of a table in a file no more than the limit is in memory at a time, or 64 MiB where the limit is lower. The file
    has no name and is gone with the process. `folder` is the system's folder for temporary files unless given; give
    a disk's, not a memory file system's.
    """

    memory_limit_bytes: int = 4 << 30
    folder: Path | None = None
    spills: bool = True  # False: nobody has named a folder, and none may be taken

    def __post_init__(self) -> None:
        if self.memory_limit_bytes < 0:
            raise BadParameter(f"Storage: memory_limit_bytes must be 0 or more, got {self.memory_limit_bytes}")
        if self.folder is not None and not Path(self.folder).is_dir():
            raise BadParameter(f"Storage: the folder {self.folder} does not exist; make it first")

    def named_only(self) -> Storage:
        """For an encrypted run: files in `folder` are not encrypted, so its owner must have chosen it."""
        return self if self.folder is not None else replace(self, spills=False)

    @property
    def resident_bytes(self) -> int:
        """How much of a file may be in memory."""
        return max(self.memory_limit_bytes, _LEAST_RESIDENT)

    def file(self) -> BinaryIO:
        """An empty file without a name."""
        if not self.spills:
            raise BadParameter(
                f"a table is larger than job.memory_limit_mb ({self.memory_limit_bytes / 2**20:g} MiB) allows; this "
                "run is encrypted, and what goes to a file for lack of memory is not. Raise the limit, or name a "
                "folder for it, on a disk that is encrypted itself: job.scratch"
            )
        folder = self.folder or Path(tempfile.gettempdir())
        try:
            return tempfile.TemporaryFile(dir=folder, buffering=0)
        except OSError as error:
            raise BadParameter(f"Storage: no file can be made in {folder}: {error.strerror}") from error

    def reserve(self, file: BinaryIO, start: int, size: int, what: str) -> None:
        """Takes room on the disk now: a full one would otherwise kill the process at some later write."""
        try:
            os.posix_fallocate(file.fileno(), start, size)
        except OSError as error:
            folder = self.folder or Path(tempfile.gettempdir())
            raise BadParameter(
                f"Storage: no room for {what} of {size} bytes in {folder}: {error.strerror}; free some, "
                "give another folder, or raise memory_limit_bytes"
            ) from error
