"""A file of numbered, checksummed records that only ever grows at its end.

::

    sequence  u64   counts up by one from the number in the file's name
    length    u32   of the bytes
    check     u32   low half of XXH3-64 over sequence and length: the length may be trusted
    checksum  u64   XXH3-64 over sequence, length, check and the bytes
    bytes

Little-endian. A process that was killed leaves a last record that the file's end cuts off, a power cut may leave
zeros from some point on; both are a torn tail, whose append never returned or was not yet synced. Anything else
that does not fit is damage.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from thinwire.base.errors import BadState
from thinwire.storage.encrypted_files import PLAIN_LOGS, PLAIN_RECORDS, Logs, Wrapped

_HEAD = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_CHECKED = _HEAD.size + _CHECK.size
HEADER_SIZE = _CHECKED + _CHECKSUM.size
_NAME = re.compile(r"(\d{6,})-(\d{10,})\.log")


class DamagedLog(BadState):
    """Records that were written are not what they were, or are gone."""

    def __init__(self, path: Path, offset: int | None, what: str) -> None:
        self.path = path
        self.offset = offset
        place = f"{path}" if offset is None else f"{path}, byte {offset}"
        super().__init__(
            f"{place}: {what}; bring the file back from a copy, or begin a new run, since what was sent cannot be "
            "made again with certainty"
        )


@dataclass(slots=True)
class Segment:
    """One file: the process that wrote it, its first number, and where its records begin."""

    path: Path
    incarnation: int
    first: int
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    size: int = 0  # bytes of its header and of whole records
    wrapped: Wrapped = PLAIN_RECORDS

    @classmethod
    def named(cls, folder: Path, incarnation: int, first: int, wrapped: Wrapped) -> Segment:
        path = folder / f"{incarnation:06d}-{first:010d}.log"
        return cls(path, incarnation, first, size=len(wrapped.header), wrapped=wrapped)

    @property
    def end(self) -> int:
        """One past the last number."""
        return self.first + len(self.offsets)

    def read(self, sequence: int) -> bytes:
        """The bytes of a record, checked again."""
        index = sequence - self.first
        offset = self.offsets[index]
        until = self.offsets[index + 1] if index + 1 < len(self.offsets) else self.size
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                record = os.pread(descriptor, until - offset, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DamagedLog(self.path, offset, f"number {sequence} cannot be read: {error.strerror}") from None
        if len(record) != until - offset or not _is_whole(memoryview(record), sequence):
            raise DamagedLog(self.path, offset, f"the record is damaged: number {sequence} is lost")
        try:
            return self.wrapped.unwrap(sequence, record[HEADER_SIZE:])
        except ValueError as error:
            raise DamagedLog(self.path, offset, f"number {sequence} is lost: {error}") from None


def packed_header(sequence: int, parts: Sequence[bytes | memoryview]) -> bytes:
    head = _HEAD.pack(sequence, sum(map(len, parts)))
    head += _CHECK.pack(xxhash.xxh3_64_intdigest(head) & 0xFFFFFFFF)
    digest = xxhash.xxh3_64(head)
    for part in parts:
        digest.update(part)
    return head + _CHECKSUM.pack(digest.intdigest())


def segments_in(folder: Path) -> list[Segment]:
    """Every segment by its name alone, in the order of (first number, incarnation)."""
    found = []
    for path in folder.iterdir():
        named = _NAME.fullmatch(path.name)
        if named is not None:
            found.append(Segment(path, int(named[1]), int(named[2])))
    return sorted(found, key=lambda segment: (segment.first, segment.incarnation))


def scan(segment: Segment, below: int | None, logs: Logs = PLAIN_LOGS) -> None:
    """Finds the segment's records below this number, up to a torn tail. Raises DamagedLog."""
    try:
        data = memoryview(segment.path.read_bytes())
    except OSError as error:
        raise DamagedLog(segment.path, None, f"it cannot be read: {error.strerror}") from None
    header = bytes(data[: logs.header_size])
    if len(header) < logs.header_size or (header and not any(data)):
        return  # killed, or cut from power, before its first record
    try:
        segment.wrapped = logs.of(header)
    except ValueError as error:
        raise DamagedLog(segment.path, 0, str(error)) from None
    segment.size = logs.header_size
    while segment.size < len(data) and (below is None or segment.end < below):
        rest = data[segment.size :]
        size = _record_size(rest)
        if (size is None and len(rest) < HEADER_SIZE) or (size is not None and size > len(rest)):
            return
        if size is None or not _is_whole(rest[:size], segment.end):
            if not any(rest):  # a power cut left room without bytes
                return
            lost = f"the record is damaged: number {segment.end}, and whatever followed it here, is lost"
            raise DamagedLog(segment.path, segment.size, lost)
        segment.offsets.append(segment.size)
        segment.size += size


def _record_size(data: memoryview) -> int | None:
    """Of header and bytes; None: no header that may be trusted."""
    if len(data) < _CHECKED:
        return None
    (check,) = _CHECK.unpack_from(data, _HEAD.size)
    if check != xxhash.xxh3_64_intdigest(data[: _HEAD.size]) & 0xFFFFFFFF:
        return None
    return HEADER_SIZE + int(_HEAD.unpack_from(data)[1])


def _is_whole(record: memoryview, sequence: int) -> bool:
    if _record_size(record) != len(record) or _HEAD.unpack_from(record)[0] != sequence:
        return False
    digest = xxhash.xxh3_64(record[:_CHECKED])
    digest.update(record[HEADER_SIZE:])
    (checksum,) = _CHECKSUM.unpack_from(record, _CHECKED)
    return bool(digest.intdigest() == checksum)
