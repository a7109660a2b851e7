"""Frames that come in pieces, put together again."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import Malformed
from thinwire.transport.records import FRAME_PREFIX, parsed_number
from thinwire.wire.frame import HEADER_SIZE, body_length

__all__ = ["Assembled", "Assembly"]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A whole frame."""

    sequence: int
    header: bytes
    body: bytes


class Assembly:
    """The frame that is coming in on one connection; raises WireError on anything that cannot be."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0  # bytes
        self._sequence = 0

    def begin(self, record: bytes, max_body: int) -> Assembled | None:
        """A FRAME record; the frame, where it is whole already."""
        if self._missing:
            raise Malformed(f"a frame begins while {self._missing} bytes of the one before are missing")
        self._sequence = parsed_number(record)
        header = record[FRAME_PREFIX : FRAME_PREFIX + HEADER_SIZE]
        self._missing = body_length(header, max_body)
        self._pieces = [header]
        return self.add(record[FRAME_PREFIX + HEADER_SIZE :])

    def add(self, piece: bytes) -> Assembled | None:
        """What a MORE record holds."""
        if len(piece) > self._missing or not self._pieces:
            raise Malformed(f"{len(piece)} bytes came where a frame had {self._missing} to go")
        self._pieces.append(piece)
        self._missing -= len(piece)
        if self._missing:
            return None
        header, *body = self._pieces
        self._pieces = []
        return Assembled(self._sequence, header, body[0] if len(body) == 1 else b"".join(body))
