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
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

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
        super().__init__(f"{path} {what}; restore the run folder from a backup, or start a new run in another folder")


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
        raise DamagedFile(path, "is truncated")
    cipher = key.cipher(name, header[len(MARK) :])
    index, record = 0, read(RECORD + TAG)
    while True:
        following = read(RECORD + TAG)
        try:
            yield cipher.decrypt(_nonce(index, last=not following), record, None)
        except (InvalidTag, ValueError):
            raise DamagedFile(
                path, "is damaged, cut off, or from another path or run: it cannot be decrypted"
            ) from None
        if not following:
            return
        index, record = index + 1, following


def _nonce(index: int, last: bool) -> bytes:
    return _NONCE.pack(index, 0, 0, last)


Parts = Sequence[bytes | memoryview]
_NUMBER = struct.Struct("<Q")
_NONCE_SIZE = 12
_LINE_MARK = b"TWREST1 "


@dataclass(frozen=True)
class Wrapped:
    """How records lie in one file: as they are, or encrypted; in a file of text, each is a line with the mark."""

    header: bytes = b""  # what the file begins with
    cipher: AESGCM | None = None
    is_text: bool = False

    def wrap(self, number: int, parts: Parts) -> Parts:
        if self.cipher is None:
            return parts
        # Random, not the number: after a failed write another record may take the same number.
        nonce = secrets.token_bytes(_NONCE_SIZE)
        sealed = [nonce, self.cipher.encrypt(nonce, b"".join(parts), _NUMBER.pack(number))]
        return [_LINE_MARK, base64.b64encode(b"".join(sealed))] if self.is_text else sealed

    def unwrap(self, number: int, record: bytes) -> bytes:
        """Raises ValueError where it is not what `wrap` gave for this number."""
        if self.cipher is None:
            return record
        if self.is_text:
            if not record.startswith(_LINE_MARK):
                raise ValueError("it is not encrypted")
            record = base64.b64decode(record[len(_LINE_MARK) :], validate=True)
        try:
            return self.cipher.decrypt(record[:_NONCE_SIZE], record[_NONCE_SIZE:], _NUMBER.pack(number))
        except InvalidTag:
            raise ValueError("it cannot be decrypted") from None


PLAIN_RECORDS = Wrapped()


@dataclass(frozen=True)
class Logs:
    """How the files of one log are written and read; `name` is the log's in its run's folder, such as sent/bank."""

    key: RunKey | None = None
    name: str = ""

    @property
    def header_size(self) -> int:
        return 0 if self.key is None else HEADER_SIZE

    def begin(self) -> Wrapped:
        """For files that are written from now on."""
        return self.of(b"" if self.key is None else new_header())

    def of(self, header: bytes) -> Wrapped:
        """For a file that begins so. Raises ValueError where none does."""
        if self.key is None:
            return PLAIN_RECORDS
        if len(header) != HEADER_SIZE or not header.startswith(MARK):
            raise ValueError("it does not begin as an encrypted log does")
        return Wrapped(header, self.key.cipher(self.name, header[len(MARK) :]))


PLAIN_LOGS = Logs()


@dataclass(frozen=True)
class Files:
    """Reads and writes a run's files: as they are, or under the key of the run in `folder`.

    What is read is what was written, or DamagedFile is raised; OSError as usual.
    """

    folder: Path = Path()
    key: RunKey | None = None

    @property
    def is_encrypted(self) -> bool:
        return self.key is not None

    def read(self, path: Path) -> bytes:
        if self.key is not None:
            return b"".join(self._decrypt(path, self.key))
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise DamagedFile(path, "is not a regular file")  # a pipe or a device may have no end
        data = path.read_bytes()
        if data.startswith(MARK):
            raise DamagedFile(path, "is encrypted, and encryption.json, which describes how, is missing")
        return data

    def replace(self, path: Path, data: bytes) -> None:
        """As `replace_file`, for its owner alone."""
        if self.key is not None:
            parts: list[bytes | memoryview] = []
            encrypting = Encrypting(parts.append, self.key, self._name(path))
            encrypting.write(data)
            encrypting.finish()
            data = b"".join(parts)
        replace_file(path, data, mode=0o600)

    @contextmanager
    def new(self, path: Path) -> Iterator[Write]:
        """A file that was not there, written in pieces; it is on the disk once the block ends."""
        with new_file(path) as descriptor:

            def write(piece: bytes | memoryview) -> None:
                write_all(descriptor, [piece])

            if self.key is None:
                yield write
                return
            encrypting = Encrypting(write, self.key, self._name(path))
            yield encrypting.write
            encrypting.finish()

    @contextmanager
    def open_file(self, path: Path) -> Iterator[BinaryIO]:
        """To be read in pieces; an encrypted one is in memory: what is decrypted must not lie in a file."""
        if self.key is None:
            with path.open("rb", buffering=0) as file:
                yield file
            return
        held = BytesIO()
        for record in self._decrypt(path, self.key):
            held.write(record)
        held.seek(0)
        yield held

    def logs(self, folder: Path) -> Logs:
        """For a log's files in this folder."""
        return PLAIN_LOGS if self.key is None else Logs(self.key, self._name(folder))

    def lines(self, path: Path) -> Wrapped:
        """For a file of lines."""
        if self.key is None:
            return PLAIN_RECORDS
        return Wrapped(cipher=self.key.cipher(self._name(path), b""), is_text=True)

    def _decrypt(self, path: Path, key: RunKey) -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from decrypt_records(file.read, key, self._name(path), path)

    def _name(self, path: Path) -> str:
        """What a file is, wherever its generation of checkpoints stands: that is made in a folder of another name."""
        parts = path.relative_to(self.folder).parts
        return f"{parts[0]}/{parts[-1]}"


PLAIN = Files()


def map_content(file: BinaryIO) -> mmap.mmap | memoryview:
    """All that an open file holds; what is changed there does not change the file."""
    if isinstance(file, BytesIO):
        return file.getbuffer()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
