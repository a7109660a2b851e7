"""The files of a run's folder that tell of rows, values or weights: readable, or encrypted. Both have one face."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from thinwire.at_rest.atomic_file import new_file, replace_file, write_all
from thinwire.at_rest.records import MARK, DamagedFile, Encrypting, RunKey, Write, decrypted
from thinwire.at_rest.wrapping import PLAIN_LOGS, PLAIN_RECORDS, EncryptedLines, EncryptedLogs, Logs, Wrapped

__all__ = ["PLAIN", "Content", "EncryptedFiles", "Files", "PlainFiles"]


class Content(Protocol):
    """What a file holds."""

    def pieces(self, size: int) -> Iterator[bytes | memoryview]: ...

    def area(self) -> mmap.mmap | bytearray:
        """All of it; what is changed there does not change the file."""
        ...


class Files(Protocol):
    """Reads and writes them. What is read is what was written, or DamagedFile is raised; OSError as usual."""

    @property
    def encrypted(self) -> bool: ...

    def read(self, path: Path) -> bytes: ...

    def replace(self, path: Path, data: bytes, mode: int = 0o666) -> None:
        """As `replace_file`."""
        ...

    def new(self, path: Path) -> AbstractContextManager[Write]:
        """A file that was not there, written in pieces; it is on the disk once the block ends."""
        ...

    def opened(self, path: Path) -> AbstractContextManager[Content]: ...

    def logs(self, folder: Path) -> Logs:
        """For a log's files in this folder."""
        ...

    def lines(self, path: Path) -> Wrapped:
        """For a file of lines."""
        ...


class PlainFiles:
    """As they are."""

    encrypted = False

    def read(self, path: Path) -> bytes:
        data = path.read_bytes()
        if data.startswith(MARK):
            raise DamagedFile(path, "is encrypted, and encryption.json, which says how, is not there")
        return data

    def replace(self, path: Path, data: bytes, mode: int = 0o666) -> None:
        replace_file(path, data, mode)

    @contextmanager
    def new(self, path: Path) -> Iterator[Write]:
        with new_file(path) as descriptor:
            yield lambda piece: write_all(descriptor, [piece])

    @contextmanager
    def opened(self, path: Path) -> Iterator[Content]:
        with path.open("rb", buffering=0) as file:
            yield _InFile(file)

    def logs(self, _: Path) -> Logs:
        return PLAIN_LOGS

    def lines(self, _: Path) -> Wrapped:
        return PLAIN_RECORDS


PLAIN = PlainFiles()


@dataclass(frozen=True)
class EncryptedFiles:
    """Under the run's key."""

    folder: Path
    key: RunKey
    encrypted = True

    def read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            return b"".join(decrypted(file.read, self.key, self._name(path), path))

    def replace(self, path: Path, data: bytes, mode: int = 0o666) -> None:
        parts: list[bytes | memoryview] = []
        encrypting = Encrypting(parts.append, self.key, self._name(path))
        encrypting.write(data)
        encrypting.finish()
        replace_file(path, b"".join(parts), mode)

    @contextmanager
    def new(self, path: Path) -> Iterator[Write]:
        with new_file(path) as descriptor:
            encrypting = Encrypting(lambda part: write_all(descriptor, [part]), self.key, self._name(path))
            yield encrypting.write
            encrypting.finish()

    @contextmanager
    def opened(self, path: Path) -> Iterator[Content]:
        """All of it in memory: what is decrypted must not lie in a file."""
        area = bytearray()
        with path.open("rb") as file:
            for record in decrypted(file.read, self.key, self._name(path), path):
                area += record
        yield _InMemory(area)

    def logs(self, folder: Path) -> Logs:
        return EncryptedLogs(self.key, self._name(folder))

    def lines(self, path: Path) -> Wrapped:
        return EncryptedLines(self.key, self._name(path))

    def _name(self, path: Path) -> str:
        """What a file is, wherever its generation of checkpoints stands: that is made in a folder of another name."""
        parts = path.relative_to(self.folder).parts
        return f"{parts[0]}/{parts[-1]}"


@dataclass(frozen=True)
class _InFile:
    file: BinaryIO

    def pieces(self, size: int) -> Iterator[bytes | memoryview]:
        while piece := self.file.read(size):
            yield piece

    def area(self) -> mmap.mmap | bytearray:
        return mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY)


@dataclass(frozen=True)
class _InMemory:
    held: bytearray

    def pieces(self, size: int) -> Iterator[bytes | memoryview]:
        view = memoryview(self.held)
        for start in range(0, len(view), size):
            yield view[start : start + size]

    def area(self) -> mmap.mmap | bytearray:
        return self.held
