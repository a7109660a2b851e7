"""Integers of 1 to 32 bits, packed without gaps; numpy only.

An integer of b bits is cut from its low end into the parts that b's binary digits name: bytes, then 4,
then 2, then 1 bit. All integers' first parts are stored together, then all second parts, and so on, so
that every part packs with a kernel for a power of two.
"""

from __future__ import annotations

import numpy as np

from thinwire.base.errors import Malformed
from thinwire.engine.compress.message import Array


def bits_for(span: int) -> int:
    """Bits that integers from 0 to `span` need; 1 at least."""
    return max(1, span.bit_length())


def _parts(bits: int) -> list[tuple[int, int]]:
    """(offset, width) of each part of a b-bit integer."""
    widths = [8] * (bits // 8) + [width for width in (4, 2, 1) if bits & width]
    return [(sum(widths[:i]), width) for i, width in enumerate(widths)]


def packed_size(count: int, bits: int) -> int:
    """Bytes that `pack` makes of `count` integers."""
    return sum((count * width + 7) // 8 for _, width in _parts(bits))


def pack(values: Array, bits: int) -> bytes:
    """Non-negative integers below 2^bits as packed_size(len(values), bits) bytes."""
    if bits == values.dtype.itemsize * 8 == 8:
        return values.tobytes()
    packed = []
    for offset, width in _parts(bits):
        part = values >> offset if offset else values
        if offset + width < bits:
            part = part & ((1 << width) - 1)
        packed.append(_pack_part(part.astype(np.uint8, copy=False), width).tobytes())
    return b"".join(packed)


def unpack(data: bytes | memoryview, count: int, bits: int) -> Array:
    """The inverse of `pack`, in the narrowest unsigned dtype; refuses set bits after the last integer."""
    raw = np.frombuffer(data, np.uint8)
    dtype = np.dtype(np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32)
    values: Array | None = None
    start = 0
    for offset, width in _parts(bits):
        size = (count * width + 7) // 8
        part = _unpack_part(raw[start : start + size], width)
        if part[count:].any():
            raise Malformed("bits are set after the last packed integer")
        part = part[:count].astype(dtype, copy=False)
        values = part if values is None else values | (part << offset)
        start += size
    return np.zeros(count, dtype) if values is None else values


def _pack_part(part: Array, width: int) -> Array:
    if width == 8:
        return part
    if width == 1:
        return np.packbits(part, bitorder="little")
    fields = 8 // width
    if part.size % fields:
        part = np.concatenate([part, np.zeros(-part.size % fields, np.uint8)])
    words: Array = np.ascontiguousarray(part).view("<u2" if width == 4 else "<u4")
    words = words | words >> (8 - width)
    if width == 2:
        words |= words >> 12
    return words.astype(np.uint8)


def _unpack_part(raw: Array, width: int) -> Array:
    if width == 8:
        return raw
    if width == 1:
        return np.unpackbits(raw, bitorder="little")
    if width == 4:
        words = raw.astype("<u2")
        words |= words << 4
        words &= 0x0F0F
        return words.view(np.uint8)
    words = raw.astype("<u4")
    words |= words << 12
    words &= 0x000F000F
    words |= words << 6
    words &= 0x03030303
    return words.view(np.uint8)
