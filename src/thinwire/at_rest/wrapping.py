"""Records of files that grow at their end: as they are, or encrypted one by one.

A file of a log begins with a mark and a salt, as whole files do; each of its records is a random nonce and
AES-256-GCM over the bytes, bound to the record's number. Where records begin and end stays readable, so that what a
crash left of the last one is told from damage as in a log that is not encrypted.
"""

from __future__ import annotations

import base64
import secrets
import struct
from collections.abc import Sequence
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from thinwire.at_rest.records import HEADER_SIZE, MARK, RunKey, new_header

__all__ = ["PLAIN_LOGS", "PLAIN_RECORDS", "EncryptedLines", "EncryptedLogs", "Logs", "Wrapped"]

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
