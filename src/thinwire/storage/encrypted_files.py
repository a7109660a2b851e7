"""A run's files on disk, readable or encrypted; both have one face.

An encrypted file is records of AES-256-GCM under a key of the file's own:

::

    mark      8   "TWREST1", a zero
    salt     32   random
    records       256 KiB of content each, the last one what is left; 16 bytes of tag behind each

The file's key is HKDF-SHA256 of the run's key with the salt, for the run's number and the file's name: what lies in
another place, or in another run's folder, does not open. A record's nonce is its index and whether it is the last:
records that are changed, missing, out of order or cut off do not open either.

Files that grow at their end hold records, encrypted one by one. A file of a log begins with a mark and a salt, as
whole files do; each of its records is a random nonce and AES-256-GCM over the bytes, bound to the record's number.
Where records begin and end stays readable, so that what a crash left of the last one is told from damage as in a log
that is not encrypted.
"""

from __future__ import annotations

import base64
import mmap
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from thinwire.base.errors import BadState
from thinwire.storage.atomic_file import new_file, replace_file, write_all

MARK = b"TWREST1\0"
RECORD = 1 << 18  # bytes of content
TAG = 16
_SALT = 32
HEADER_SIZE = len(MARK) + _SALT
_NONCE = struct.Struct("<QHBB")

Write = Callable[[bytes | memoryview], None]


class DamagedFile(BadState):
    """An encrypted file is not what was written in its place."""

    def __init__(self, path: Path, what: str) -> None:
        self.what = f"{path.name} {what}"
        super().__init__(
            f"{path} {what}; bring the run's folder back from a copy, or begin a new run in another folder"
        )


@dataclass(frozen=True, slots=True)
class RunKey:
    """The key, for one run's folder."""

    secret: bytes = field(repr=False)
    run: bytes  # drawn when the folder was begun

    def cipher(self, name: str, salt: bytes) -> AESGCM:
        """For the file of this name and salt."""
        return AESGCM(self._derived(b"file " + name.encode(), salt))

    def check(self) -> str:
        """Tells this key from another one, and nothing about it."""
        return self._derived(b"check", b"").hex()

    def _derived(self, purpose: bytes, salt: bytes) -> bytes:
        return HKDF(SHA256(), 32, salt, b"thinwire at rest 1 " + self.run + purpose).derive(self.secret)


def new_header() -> bytes:
    return MARK + secrets.token_bytes(_SALT)


class Encrypting:
    """Writes one file's content in pieces; `finish` says that there is no more."""

    def __init__(self, write: Write, key: RunKey, name: str) -> None:
        header = new_header()
        self._write = write
        self._cipher = key.cipher(name, header[len(MARK) :])
        self._held = bytearray()
        self._index = 0
        write(header)

    def write(self, piece: bytes | memoryview) -> None:
        rest = memoryview(piece).cast("B")
        while len(rest) > 0:
            if len(self._held) == RECORD:  # more follows: it is not the last one
                self._put(last=False)
            room = RECORD - len(self._held)
            self._held += rest[:room]
            rest = rest[room:]

    def finish(self) -> None:
        self._put(last=True)

    def _put(self, last: bool) -> None:
        self._write(self._cipher.encrypt(_nonce(self._index, last), bytes(self._held), None))
        self._held.clear()
        self._index += 1


def decrypt_records(read: Callable[[int], bytes], key: RunKey, name: str, path: Path) -> Iterator[bytes]:
    """A file's content, record by record, each once it is known to be what was written. Raises DamagedFile."""
    header = read(HEADER_SIZE)
    if not header.startswith(MARK):
        raise DamagedFile(path, "is not encrypted, as this run's files are: it was replaced or cut off")
    if len(header) < HEADER_SIZE:
        raise DamagedFile(path, "is cut off")
    cipher = key.cipher(name, header[len(MARK) :])
    index, record = 0, read(RECORD + TAG)
    while True:
        following = read(RECORD + TAG)
        try:
            yield cipher.decrypt(_nonce(index, last=not following), record, None)
        except (InvalidTag, ValueError):
            raise DamagedFile(path, "is damaged, cut off, or of another place or run: it does not open") from None
        if not following:
            return
        index, record = index + 1, following


def _nonce(index: int, last: bool) -> bytes:
    return _NONCE.pack(index, 0, 0, last)


Parts = Sequence[bytes | memoryview]
_NUMBER = struct.Struct("<Q")
_NONCE_SIZE = 12
_LINE_MARK = b"TWREST1 "


class Wrapped(Protocol):
    """How records lie in one file."""

    @property
    def header(self) -> bytes:
        """What the file begins with."""
        ...

    def wrap(self, number: int, parts: Parts) -> Parts: ...

    def unwrap(self, number: int, record: bytes) -> bytes:
        """Raises ValueError where it is not what `wrap` gave for this number."""
        ...


class Logs(Protocol):
    """How the files of one log are written and read."""

    @property
    def header_size(self) -> int: ...

    def begin(self) -> Wrapped:
        """For files that are written from now on."""
        ...

    def of(self, header: bytes) -> Wrapped:
        """For a file that begins so. Raises ValueError where none does."""
        ...


class _PlainRecords:
    header = b""

    def wrap(self, _: int, parts: Parts) -> Parts:
        return parts

    def unwrap(self, _: int, record: bytes) -> bytes:
        return record


class _PlainLogs:
    header_size = 0

    def begin(self) -> Wrapped:
        return PLAIN_RECORDS

    def of(self, _: bytes) -> Wrapped:
        return PLAIN_RECORDS


PLAIN_RECORDS = _PlainRecords()
PLAIN_LOGS = _PlainLogs()


class _EncryptedRecords:
    def __init__(self, header: bytes, cipher: AESGCM) -> None:
        self.header = header
        self._cipher = cipher

    def wrap(self, number: int, parts: Parts) -> Parts:
        # Random, not the number: after a failed write another record may take the same number.
        nonce = secrets.token_bytes(_NONCE_SIZE)
        return [nonce, self._cipher.encrypt(nonce, b"".join(parts), _NUMBER.pack(number))]

    def unwrap(self, number: int, record: bytes) -> bytes:
        try:
            return self._cipher.decrypt(record[:_NONCE_SIZE], record[_NONCE_SIZE:], _NUMBER.pack(number))
        except InvalidTag:
            raise ValueError("it does not open") from None


class EncryptedLogs:
    """`name` is the log's in its run's folder, such as sent/bank."""

    header_size = HEADER_SIZE

    def __init__(self, key: RunKey, name: str) -> None:
        self._key = key
        self._name = name

    def begin(self) -> Wrapped:
        return self.of(new_header())

    def of(self, header: bytes) -> Wrapped:
        if len(header) != HEADER_SIZE or not header.startswith(MARK):
            raise ValueError("it does not begin as an encrypted log does")
        return _EncryptedRecords(header, self._key.cipher(self._name, header[len(MARK) :]))


class EncryptedLines:
    """Lines of text, each with the mark."""

    header = b""

    def __init__(self, key: RunKey, name: str) -> None:
        self._records = _EncryptedRecords(b"", key.cipher(name, b""))

    def wrap(self, number: int, parts: Parts) -> Parts:
        return [_LINE_MARK, base64.b64encode(b"".join(self._records.wrap(number, parts)))]

    def unwrap(self, number: int, record: bytes) -> bytes:
        if not record.startswith(_LINE_MARK):
            raise ValueError("it is not encrypted")
        return self._records.unwrap(number, base64.b64decode(record[len(_LINE_MARK) :], validate=True))


class Content(Protocol):
    """What a file holds."""

    def pieces(self, size: int) -> Iterator[bytes | memoryview]: ...

    def area(self) -> mmap.mmap | bytearray:
        """All of it; what is changed there does not change the file."""
        ...


class Files(Protocol):
    """Reads and writes them. What is read is what was written, or DamagedFile is raised; OSError as usual."""

    @property
    def is_encrypted(self) -> bool: ...

    def read(self, path: Path) -> bytes: ...

    def replace(self, path: Path, data: bytes, mode: int = 0o666) -> None:
        """As `replace_file`."""
        ...

    def new(self, path: Path) -> AbstractContextManager[Write]:
        """A file that was not there, written in pieces; it is on the disk once the block ends."""
        ...

    def open_file(self, path: Path) -> AbstractContextManager[Content]: ...

    def logs(self, folder: Path) -> Logs:
        """For a log's files in this folder."""
        ...

    def lines(self, path: Path) -> Wrapped:
        """For a file of lines."""
        ...


class PlainFiles:
    """As they are."""

    is_encrypted = False

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
    def open_file(self, path: Path) -> Iterator[Content]:
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
    is_encrypted = True

    def read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            return b"".join(decrypt_records(file.read, self.key, self._name(path), path))

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
    def open_file(self, path: Path) -> Iterator[Content]:
        """All of it in memory: what is decrypted must not lie in a file."""
        area = bytearray()
        with path.open("rb") as file:
            for record in decrypt_records(file.read, self.key, self._name(path), path):
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
