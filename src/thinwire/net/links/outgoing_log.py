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
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import xxhash

from thinwire.base.errors import BadInput, BadState
from thinwire.storage.atomic_file import (
    WriteFailed,
    make_folder,
    map_write_errors,
    open_descriptor,
    sync_file,
    sync_folder,
    write_all,
)
from thinwire.storage.encrypted_files import PLAIN_LOGS, PLAIN_RECORDS, Logs, Wrapped

_HEAD = struct.Struct("<QI")
_CHECK = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_CHECKED = _HEAD.size + _CHECK.size
HEADER_SIZE = _CHECKED + _CHECKSUM.size
_NAME = re.compile(r"(\d{6,})-(\d{10,})\.log")
_WIDTH = 8  # bytes an answer
SEGMENT_SIZE = 64 << 20  # bytes


class DamagedLog(BadState):
    """Records that were written are not what they were, or are gone."""

    def __init__(self, path: Path, offset: int | None, what: str) -> None:
        self.path = path
        self.offset = offset
        place = f"{path}" if offset is None else f"{path}, byte {offset}"
        super().__init__(
            f"{place}: {what}; restore the file from a backup, or start a new run, because the messages that were "
            "sent cannot be reproduced with certainty"
        )


@dataclass(slots=True)
class LogSegment:
    """One file: the process that wrote it, its first number, and where its records begin."""

    path: Path
    incarnation: int
    first: int
    offsets: array[int] = field(default_factory=lambda: array("Q"))
    size: int = 0  # bytes of its header and of whole records
    wrapped: Wrapped = PLAIN_RECORDS

    @classmethod
    def create(cls, folder: Path, incarnation: int, first: int, wrapped: Wrapped) -> LogSegment:
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
            with open_descriptor(self.path, os.O_RDONLY) as descriptor:
                record = os.pread(descriptor, until - offset, offset)
        except OSError as error:
            failed = LogFailed(self.path, 0, error)
            if failed.is_out_of_files:
                raise failed from error
            raise DamagedLog(self.path, offset, f"number {sequence} cannot be read: {error.strerror}") from None
        if len(record) != until - offset or not _is_whole(memoryview(record), sequence):
            raise DamagedLog(self.path, offset, f"the record is damaged: number {sequence} is lost")
        try:
            return self.wrapped.unwrap(sequence, record[HEADER_SIZE:])
        except ValueError as error:
            raise DamagedLog(self.path, offset, f"number {sequence} is lost: {error}") from None


def pack_header(sequence: int, parts: Sequence[bytes | memoryview]) -> bytes:
    head = _HEAD.pack(sequence, sum(map(len, parts)))
    head += _CHECK.pack(xxhash.xxh3_64_intdigest(head) & 0xFFFFFFFF)
    digest = xxhash.xxh3_64(head)
    for part in parts:
        digest.update(part)
    return head + _CHECKSUM.pack(digest.intdigest())


def list_segments(folder: Path) -> list[LogSegment]:
    """Every segment by its name alone, in the order of (first number, incarnation)."""
    found = []
    for path in folder.iterdir():
        named = _NAME.fullmatch(path.name)
        if named is not None:
            found.append(LogSegment(path, int(named[1]), int(named[2])))
    return sorted(found, key=lambda segment: (segment.first, segment.incarnation))


def scan_segment(segment: LogSegment, below: int | None, logs: Logs = PLAIN_LOGS) -> None:
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


class LogFailed(WriteFailed):
    """A record could not be written, for another reason than a full disk."""


class OutgoingLog:
    """Numbered records, each whole or not there at all; one process writes, any thread may read.

    `on_full` hears what could not be written, or read, for lack of room or of open files; it sleeps or raises, then
    the same is tried again.
    `logs` says how records lie on the disk: as they are, or encrypted.
    """

    def __init__(
        self, folder: Path, incarnation: int, on_full: Callable[[WriteFailed], None], logs: Logs = PLAIN_LOGS
    ) -> None:
        self._folder = folder
        self._wrapped = logs.begin()
        self._incarnation = incarnation
        self._on_full = on_full
        self._lock = Lock()
        self._syncing = Lock()
        self._unsynced = False
        self._roll = False
        self._descriptor = -1
        with map_write_errors(folder, kind=LogFailed):
            make_folder(folder)
            self._segments = _held(folder, incarnation, logs)
            self._next = self._segments[-1].end if self._segments else 0
            self._start_segment()
            sync_folder(folder)
            sync_folder(folder.parent)

    @property
    def next_sequence(self) -> int:
        """One past the highest number that was ever held."""
        return self._next

    @property
    def first_sequence(self) -> int:
        """The lowest number held; `next_sequence` where none is."""
        return self._segments[0].first

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(segment.size for segment in self._segments)

    def __contains__(self, sequence: int) -> bool:
        return self.first_sequence <= sequence < self._next

    def append(self, sequence: int, parts: Sequence[bytes | memoryview], durable: bool = False) -> None:
        """Once it returns, kill -9 loses nothing; with `durable`, nor does a power cut."""
        wrapped = self._wrapped.wrap(sequence, parts)
        record = [pack_header(sequence, wrapped), *wrapped]
        size = sum(map(len, record))
        while (failed := self._append(sequence, record, size)) is not None:
            self._on_full(failed)
        if durable:
            self.sync()

    def read(self, sequence: int) -> bytes:
        frame = self.find(sequence)
        if frame is None:
            held = f"{self.first_sequence} up to, not including, {self._next}"
            raise DamagedLog(self._folder, None, f"number {sequence} is asked for, the log holds {held}")
        return frame

    def find(self, sequence: int) -> bytes | None:
        """The frame, or None where it is not held, or no longer: peers may let it be pruned at any moment."""
        while True:
            try:
                with self._lock:
                    if sequence not in self:
                        return None
                    index = bisect_right(self._segments, sequence, key=lambda segment: segment.first) - 1
                    return self._segments[index].read(sequence)
            except LogFailed as failed:  # too many files are open
                self._on_full(failed)

    def roll(self) -> None:
        """The next append begins a new segment: prune removes whole ones."""
        with self._lock:
            self._roll = True

    def sync(self) -> None:
        """A power cut loses nothing that was appended before."""
        while (failed := self._sync()) is not None:
            self._on_full(failed)

    def _sync(self) -> LogFailed | None:
        """What it lacks, where too many files are open."""
        with self._syncing:  # who comes second waits until the first is through
            with self._lock:
                if not self._unsynced:
                    return None
            try:
                self._sync_copy()
            except OSError as error:
                with self._lock:
                    self._unsynced = True
                failed = LogFailed(self._folder, 0, error)
                if failed.is_out_of_files:
                    return failed
                raise failed from error
        return None

    def _sync_copy(self) -> None:
        """Of the descriptor: an append may begin another segment meanwhile."""
        with self._lock:
            descriptor = os.dup(self._descriptor)  # there is none in a log that takes no more
            self._unsynced = False
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_folder(self._folder)

    def prune(self, below: int) -> None:
        """Removes the segments that hold nothing from this number on."""
        with self._lock:
            if self._segments[0].end > below or self._segments[0].first == self._next:
                return
            if self._segments[-1].offsets and self._next <= below:
                with suppress(OSError):  # room is made later if there is none for an empty file
                    self._start_segment()
                    sync_folder(self._folder)
            known = {segment.path for segment in self._segments}
            for other in list_segments(self._folder):
                if other.incarnation < self._incarnation and other.path not in known:
                    other.path.unlink(missing_ok=True)  # a replaced process began it after we came
            # In order: killed half-way, the log has no hole.
            while len(self._segments) > 1 and self._segments[0].end <= below:
                self._segments.pop(0).path.unlink(missing_ok=True)

    def close(self) -> None:
        """Syncs and lets go; the log takes no more."""
        self.sync()
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _append(self, sequence: int, record: Sequence[bytes | memoryview], size: int) -> LogFailed | None:
        """What it lacks, where there is no room; then nothing was written."""
        with self._lock:
            if sequence != self._next:
                raise BadInput(f"{self._folder}: number {sequence} is appended, {self._next} is due")
            try:
                if self._segments[-1].offsets and (self._roll or self._segments[-1].size + size > SEGMENT_SIZE):
                    self._start_segment()
                self._roll = False
                self._unsynced = True
                write_all(self._descriptor, record)
            except OSError as error:
                self._drop_unfinished()
                failed = LogFailed(self._segments[-1].path, size, error)
                if failed.lacks_room:
                    return failed
                raise failed from error
            segment = self._segments[-1]
            segment.offsets.append(segment.size)
            segment.size += size
            self._next += 1
            return None

    def _drop_unfinished(self) -> None:
        """Back to the end of the last whole record; a log that cannot go back takes no more."""
        segment = self._segments[-1]
        try:
            os.ftruncate(self._descriptor, segment.size)
        except OSError as error:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1
            raise LogFailed(segment.path, 0, error) from error

    def _start_segment(self) -> None:
        """An empty segment of our own from the next number on; the one before is on disk first."""
        new = LogSegment.create(self._folder, self._incarnation, self._next, self._wrapped)
        if self._unsynced:
            os.fsync(self._descriptor)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(new.path, flags, 0o600)
        if new.size:
            try:
                write_all(descriptor, [self._wrapped.header])
            except OSError:
                os.close(descriptor)
                raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self._unsynced = True
        if self._segments and self._segments[-1].path == new.path:
            self._segments.pop()
        self._segments.append(new)


def _held(folder: Path, incarnation: int, logs: Logs) -> list[LogSegment]:
    """The segments that count, without a hole; what is void is removed. Raises DamagedLog."""
    found = list_segments(folder)
    newest = max((segment.incarnation for segment in found), default=0)
    if newest > incarnation:
        raise BadState(
            f"{folder}: process {newest} of this run has written here, this is process {incarnation}; stop it"
        )
    held: list[LogSegment] = []
    for segment in found:
        newer = [other.first for other in found if other.incarnation > segment.incarnation]
        if any(first <= segment.first for first in newer):
            segment.path.unlink(missing_ok=True)
            continue
        scan_segment(segment, min(newer, default=None), logs)
        if held and held[-1].end != segment.first:
            lost = f"numbers {held[-1].end} to {segment.first - 1} are lost before {segment.path.name}"
            raise DamagedLog(held[-1].path, held[-1].size, lost)
        held.append(segment)
    if held:  # a killed process did not sync its last records; ours must not stand after a gap
        sync_file(held[-1].path)
    return held


def append_answer(log: OutgoingLog, value: int) -> None:
    """To a program's question, which a replay is given again; it is there after a crash once this returns."""
    log.append(log.next_sequence, (value.to_bytes(_WIDTH, "little"),))


def read_answer(log: OutgoingLog, index: int) -> int | None:
    """None: not asked yet."""
    if index >= log.next_sequence:
        return None
    return int.from_bytes(log.read(index), "little")
