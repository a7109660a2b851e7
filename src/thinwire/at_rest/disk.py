"""Writing so that a crash leaves the old or the new, and what was written is on the disk."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from thinwire.errors import ThinwireError

__all__ = ["WriteFailed", "new_file", "replace_file", "sync_folder", "write_all"]

_MOST_PARTS = 512  # writev takes 1024 at least


class WriteFailed(ThinwireError):
    """The system refused to write; nothing that was there before is lost."""

    def __init__(self, path: Path, bytes_needed: int, error: OSError) -> None:
        self.path = path
        self.bytes_needed = bytes_needed
        super().__init__(f"{path}: {bytes_needed} bytes could not be written: {error.strerror or error}")


def write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    """One system call, where the system takes all of it at once."""
    left: list[bytes | memoryview] = [*parts] if len(parts) <= _MOST_PARTS else [b"".join(parts)]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = memoryview(left[0])[written:]


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in the folder is on the disk, not only in memory."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """The file holds the old bytes or the new ones, and the new ones once this returns, whatever happens."""
    for unfinished in path.parent.glob(f".{path.name}.*.part"):
        unfinished.unlink(missing_ok=True)
    # A name of its own: a process that was stopped while writing would go on in this file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(descriptor, [data])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """A file that was not there, for its owner alone; it is on the disk once the block ends."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
