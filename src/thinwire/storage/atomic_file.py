"""Writing so that a crash leaves the old or the new, and what was written is on the disk."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from thinwire.base.errors import ThinwireError

_MOST_PARTS = 512  # writev takes 1024 at least


class WriteFailed(ThinwireError):
    """The system refused to write; nothing that was there before is lost."""

    def __init__(self, path: Path, bytes_needed: int, error: OSError) -> None:
        self.path = path
        self.bytes_needed = bytes_needed
        self.is_out_of_files = error.errno in (errno.EMFILE, errno.ENFILE)
        self.lacks_room = self.is_out_of_files or error.errno in (errno.ENOSPC, errno.EDQUOT)  # waiting may help
        super().__init__(f"{path}: could not write {bytes_needed} bytes: {error.strerror or error}")


@contextmanager
def map_write_errors(path: Path, bytes_needed: int = 0, kind: type[WriteFailed] = WriteFailed) -> Iterator[None]:
    """What the system refuses in this block is raised as WriteFailed, or as a kind of it."""
    try:
        yield
    except OSError as error:
        raise kind(path, bytes_needed, error) from error


def make_folder(path: Path) -> None:
    """A run's folder, or one in it: for its owner alone, unless somebody has made it with other rights."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def replace_file(path: Path, data: bytes, mode: int = 0o666, sync: bool = True) -> None:
    """The file holds the old bytes or the new ones; with `sync`, the new ones once this returns, whatever happens."""
    for unfinished in path.parent.glob(f".{path.name}.*.part"):
        unfinished.unlink(missing_ok=True)
    with stage_file(path, sync) as part, new_file(part, mode, sync=False) as descriptor:
        write_all(descriptor, [data])


@contextmanager
def stage_file(path: Path, sync: bool = True) -> Iterator[Path]:
    """A place for a file that takes its name once the block ends well, and is gone if it does not."""
    # A name of its own: a process that was stopped while writing would go on in this file.
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        if sync:
            sync_file(part)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if sync:
        sync_folder(path.parent)


@contextmanager
def new_file(path: Path, mode: int = 0o600, sync: bool = True) -> Iterator[int]:
    """A file that was not there, for its owner alone; it is on the disk once the block ends."""
    with open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as descriptor:
        yield descriptor
        if sync:
            os.fsync(descriptor)


def append_file(path: Path, data: bytes, end: int | None = None) -> None:
    """All of the data or none of it, on the disk once this returns; what stands from `end` on, if given, goes."""
    with open_descriptor(path, os.O_WRONLY | os.O_CREAT) as descriptor:
        end = os.fstat(descriptor).st_size if end is None else end
        try:
            os.ftruncate(descriptor, end)
            os.lseek(descriptor, end, os.SEEK_SET)
            write_all(descriptor, [data])
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    if end == 0:
        sync_folder(path.parent)


@contextmanager
def open_descriptor(path: Path, flags: int, mode: int = 0o600) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_all(descriptor: int, parts: Sequence[bytes | memoryview]) -> None:
    """One system call, where the system takes all of it at once."""
    left: list[bytes | memoryview] = [*parts] if len(parts) <= _MOST_PARTS else [b"".join(parts)]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left:
            left[0] = memoryview(left[0])[written:]


def sync_file(path: Path) -> None:
    with open_descriptor(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """What was made, renamed or removed in the folder is on the disk, not only in memory."""
    with open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)
