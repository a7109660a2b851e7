"""The header around a body: who, what, which round, how long, and a checksum over all of it.

36 bytes, little-endian; `FORMAT.md` has the offsets. Parties are indices in the job's order, not names.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from thinwire.base.errors import BadInput, Malformed, TooLarge, TrailingBytes, Truncated, UnknownTag
from thinwire.base.types import Kind

MAGIC = b"tw"
VERSION = 1
MAX_BODY = 1 << 30  # bytes

_HEADER = struct.Struct("<2sBBHHQIII")
_CHECKSUM = struct.Struct("<Q")
HEADER_SIZE = _HEADER.size + _CHECKSUM.size
_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between two parties of a run.

    Args:
        run: 64-bit number of the run.
        sender: number of the sending party.
        receiver: number of the receiving party.
        kind: what the message carries.
        round: from 0.
        attempt: counts restarts.
        body: the encoded symbols; of a received frame, a view of it.

    Examples:
        >>> tw.wire.Frame(1, 0, 1, tw.types.Kind.EMBEDDING, 0, 0, b"abc").kind.name
        'EMBEDDING'
    """

    run: int  # 64 bits
    sender: int
    receiver: int
    kind: Kind
    round: int
    attempt: int
    body: bytes | memoryview  # a view of the frame it came in


def pack_frame(frame: Frame, max_body: int = MAX_BODY) -> bytes:
    """Header and body as they go over the link.

    Args:
        frame: the message.
        max_body: largest body that is accepted.

    Raises:
        WireError: the body is too large.
        BadInput: a number of the frame does not fit its field.

    Examples:
        >>> frame = tw.wire.Frame(1, 0, 1, tw.types.Kind.EMBEDDING, 0, 0, b"abc")
        >>> tw.wire.unpack_frame(tw.wire.pack_frame(frame)) == frame
        True
    """
    return b"".join((frame_header(frame, max_body), frame.body))


def frame_header(frame: Frame, max_body: int = MAX_BODY) -> bytes:
    """The header alone, for links that take header and body apart."""
    header = _described(frame, max_body)
    return header + _CHECKSUM.pack(_checksum(header, frame.body))


def frame_size(frame: Frame, max_body: int = MAX_BODY) -> int:
    """How many bytes it has on a link; refuses what no header can say. Nothing is packed."""
    return len(_described(frame, max_body)) + _CHECKSUM.size + len(frame.body)


def _described(frame: Frame, max_body: int) -> bytes:
    if len(frame.body) > max_body:
        raise TooLarge(f"a body of {len(frame.body)} bytes, the cap is {max_body}; use smaller batches")
    try:
        return _HEADER.pack(
            MAGIC,
            VERSION,
            frame.kind,
            frame.sender,
            frame.receiver,
            frame.run,
            frame.round,
            frame.attempt,
            len(frame.body),
        )
    except struct.error as error:
        raise BadInput(f"frame: {error}; round and attempt have 32 bits, a party's index 16") from None


def body_length(header: bytes | memoryview, max_body: int = MAX_BODY) -> int:
    """How many bytes follow a header, for readers of a byte stream.

    Args:
        header: the first bytes of a frame.
        max_body: largest body that is accepted.

    Raises:
        WireError: not a frame, another version, or a body that is too large.

    Examples:
        >>> frame = tw.wire.Frame(1, 0, 1, tw.types.Kind.EMBEDDING, 0, 0, b"abc")
        >>> tw.wire.body_length(tw.wire.pack_frame(frame))
        3
    """
    if len(header) < HEADER_SIZE:
        raise Truncated(f"a frame's header has {HEADER_SIZE} bytes, not {len(header)}")
    magic, version, *_, length = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise Malformed("these bytes are not a thinwire frame")
    if version != VERSION:
        raise UnknownTag(f"frame version {version}, this build speaks {VERSION}; use the same version on both sides")
    if length > max_body:
        raise TooLarge(f"a body of {length} bytes is announced, the cap is {max_body}")
    return int(length)


def unpack_frame(data: bytes | bytearray | memoryview, max_body: int = MAX_BODY) -> Frame:
    """Parses one frame.

    Args:
        data: exactly one frame.
        max_body: largest body that is accepted.

    Raises:
        WireError: anything else.

    Examples:
        >>> frame = tw.wire.Frame(1, 0, 1, tw.types.Kind.EMBEDDING, 0, 0, b"abc")
        >>> bytes(tw.wire.unpack_frame(tw.wire.pack_frame(frame)).body)
        b'abc'
    """
    view = memoryview(data if isinstance(data, bytes) else bytes(data))
    return open_frame(view[:HEADER_SIZE], view[HEADER_SIZE:], max_body)


def open_frame(header: bytes | memoryview, body: bytes | memoryview, max_body: int = MAX_BODY) -> Frame:
    """The frame of this header and body."""
    length = body_length(header, max_body)
    if len(body) != length:
        error = Truncated if len(body) < length else TrailingBytes
        size = HEADER_SIZE + length
        raise error(f"a frame of {size} bytes is announced, {HEADER_SIZE + len(body)} are here")
    (checksum,) = _CHECKSUM.unpack_from(header, _HEADER.size)
    if checksum != _checksum(header[: _HEADER.size], body):
        raise Malformed("the frame's checksum is wrong: it was damaged on the way")
    _, _, kind, sender, receiver, run, round, attempt, _ = _HEADER.unpack_from(header)
    if kind not in _KINDS:
        raise UnknownTag(f"message kind {kind} is unknown; the sender runs a newer version")
    return Frame(run, sender, receiver, _KINDS[kind], round, attempt, body)


def _checksum(header: bytes | memoryview, body: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(header)
    digest.update(body)
    return digest.intdigest()
