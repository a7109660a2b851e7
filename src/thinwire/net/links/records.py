"""What travels on a link around the frames: one byte of kind, then what belongs to it.

::

    HELLO     JSON      who dials, and what it has received so far
    WELCOME   JSON      the same from the party that listens
    FRAME     u64, ...  sequence number on this link, and the frame's first bytes
    MORE      ...       the next bytes of the same frame
    ALIVE               nothing to say, still here
    KEPT      u64       frames below this number are in the sender's checkpoints: forget them
    NEWS      JSON      who is away, who begins, why it ends

Sequence numbers are the link's own: header and body of a frame are the same bytes whenever they travel.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

from pydantic import Field

from thinwire.base.errors import Malformed, TooLarge
from thinwire.engine.wire.frame import HEADER_SIZE, body_length
from thinwire.net.grpc.service import BUDGETS, Role

CHUNK = 1 << 16  # bytes; a slow link must carry one well before its silence counts as the peer's
MIN_PIECE = 64  # bytes; smaller pieces would fill memory with what each costs to hold
MAX_JSON = BUDGETS[Role.FEATURE_PARTY].call_bytes
_NUMBERED = struct.Struct("<BQ")
FRAME_PREFIX = _NUMBERED.size

# How much of what a peer says is taken.
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Text = Annotated[str, Field(max_length=4096)]


class Record(IntEnum):
    """The first byte. The numbers are on the wire: add, never change."""

    HELLO = 1
    WELCOME = 2
    FRAME = 3
    MORE = 4
    ALIVE = 5
    KEPT = 6
    NEWS = 7


def json_record(kind: Record, value: dict[str, Any]) -> bytes:
    return bytes([kind]) + json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def parse_json(record: bytes) -> dict[str, Any]:
    """The object of a HELLO, WELCOME or NEWS."""
    if len(record) > MAX_JSON:
        raise TooLarge(f"a control message of {len(record)} bytes, the cap is {MAX_JSON}")
    try:
        value = json.loads(record[1:])
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a control message is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed(f"a control message is a JSON object, got {type(value).__name__}")
    return value


def parse_count(message: dict[str, Any], field: str) -> int:
    """A number of frames in a HELLO or WELCOME."""
    value = message.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise Malformed(f"{field} must be a count of frames, got {value!r}"[:200])
    return value


def number_record(kind: Record, number: int) -> bytes:
    return _NUMBERED.pack(kind, number)


def parse_number(record: bytes) -> int:
    if len(record) < _NUMBERED.size:
        raise Malformed(f"a record of {len(record)} bytes has no number")
    return int(_NUMBERED.unpack_from(record)[1])


def frame_records(sequence: int, header: bytes | memoryview, body: bytes | memoryview) -> Iterator[bytes]:
    """A frame in pieces of at most about CHUNK bytes."""
    yield b"".join((_NUMBERED.pack(Record.FRAME, sequence), header, body[:CHUNK]))
    view = memoryview(body)
    for start in range(CHUNK, len(body), CHUNK):
        yield b"".join((bytes([Record.MORE]), view[start : start + CHUNK]))


@dataclass(frozen=True, slots=True)
class WholeFrame:
    """A whole frame."""

    sequence: int
    header: bytes
    body: bytes


class FrameAssembler:
    """The frame that is coming in on one connection; raises WireError on anything that cannot be."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0  # bytes
        self._sequence = 0

    def begin(self, record: bytes, max_body: int) -> WholeFrame | None:
        """A FRAME record; the frame, where it is whole already."""
        if self._missing:
            raise Malformed(f"a frame begins while {self._missing} bytes of the one before are missing")
        self._sequence = parse_number(record)
        header = record[FRAME_PREFIX : FRAME_PREFIX + HEADER_SIZE]
        self._missing = body_length(header, max_body)
        self._pieces = [header]
        return self.add(record[FRAME_PREFIX + HEADER_SIZE :])

    def add(self, piece: bytes) -> WholeFrame | None:
        """What a MORE record holds: cut as the sender likes, but not into crumbs."""
        if not min(MIN_PIECE, self._missing) <= len(piece) <= self._missing or not self._pieces:
            raise Malformed(f"{len(piece)} bytes came where a frame had {self._missing} to go")
        self._pieces.append(piece)
        self._missing -= len(piece)
        if self._missing:
            return None
        (header, *body), self._pieces = self._pieces, []
        return WholeFrame(self._sequence, header, body[0] if len(body) == 1 else b"".join(body))
