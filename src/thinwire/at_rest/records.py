"""An encrypted file: records of AES-256-GCM under a key of the file's own.

::

    mark      8   "TWREST1", a zero
    salt     32   random
    records       256 KiB of content each, the last one what is left; 16 bytes of tag behind each

The file's key is HKDF-SHA256 of the run's key with the salt, for the run's number and the file's name: what lies in
another place, or in another run's folder, does not open. A record's nonce is its index and whether it is the last:
records that are changed, missing, out of order or cut off do not open either.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from thinwire.errors import BadState

__all__ = ["HEADER_SIZE", "MARK", "RECORD", "DamagedFile", "Encrypting", "RunKey", "decrypted", "new_header"]

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


def decrypted(read: Callable[[int], bytes], key: RunKey, name: str, path: Path) -> Iterator[bytes]:
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
