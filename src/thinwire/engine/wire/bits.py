"""Integers of 1 to 32 bits, packed without gaps, and sets of indices near log2 C(n, k) bits; numpy only.

An integer of b bits is cut from its low end into the parts that b's binary digits name: bytes, then 4, then 2, then
1 bit. All integers' first parts are stored together, then all second parts, and so on, so that every part packs with
a kernel for a power of two.

Few indices are numbered: the set's rank among all sets of its size (Cover, 1973), exact to a bit. Many are written
as the gaps between them (Golomb, 1966; Rice, 1979): r low bits packed, the rest in unary. For random places that is
0.4 to 1.5 % over the limit.
"""

from __future__ import annotations

from functools import cache
from math import comb, log2

import numpy as np

from thinwire.base.errors import Malformed, Truncated
from thinwire.engine.compress.message import Array
from thinwire.engine.wire.buffers import BodyReader, BodyWriter


def bits_for(span: int) -> int:
    """Bits that integers from 0 to `span` need; 1 at least."""
    return max(1, span.bit_length())


@cache
def _parts(bits: int) -> list[tuple[int, int]]:
    """(offset, width) of each part of a b-bit integer."""
    widths = [8] * (bits // 8) + [width for width in (4, 2, 1) if bits & width]
    return [(sum(widths[:i]), width) for i, width in enumerate(widths)]


def pack_size(count: int, bits: int) -> int:
    """Bytes that `pack` makes of `count` integers."""
    return sum((count * width + 7) // 8 for _, width in _parts(bits))


def pack(values: Array, bits: int) -> bytes:
    """Non-negative integers below 2^bits as pack_size(len(values), bits) bytes."""
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


# Sets of indices near log2 C(n, k) bits: which k of n places ------------------------------------------------------


_MOST_NUMBERED = 24
_MOST_CHUNK = 1 << 20
_NUMBERED = 0xFF  # in the place of Rice's r


def write_indices(out: BodyWriter, indices: Array, size: int) -> None:
    """Writes rising indices below `size`; at least one."""
    out.whole(indices.size)
    if indices.size <= _MOST_NUMBERED:
        out.byte(_NUMBERED)
        rank = sum(comb(index, place) for place, index in enumerate(indices.tolist(), start=1))
        out.raw(rank.to_bytes(_rank_size(size, indices.size), "little"))
        return
    gaps = np.diff(indices, prepend=-1) - 1
    low_bits = _best_low_bits(gaps, size)
    out.byte(low_bits)
    if low_bits:
        out.raw(pack(gaps & ((1 << low_bits) - 1), low_bits))
    out.raw(encode_unary(gaps >> low_bits))


def read_indices(reader: BodyReader, size: int) -> Array:
    """The rising indices below `size`."""
    count = reader.count(size, "the number of indices")
    low_bits = reader.byte()
    if low_bits == _NUMBERED:
        return _unrank(reader, count, size)
    if low_bits > 31:
        raise Malformed(f"gaps with {low_bits} low bits")
    low = unpack(reader.raw(pack_size(count, low_bits)), count, low_bits) if low_bits else np.zeros(1, np.uint8)
    indices = decode_unary(reader, count, size >> low_bits).astype(np.int64)
    indices <<= low_bits
    indices += low
    indices += 1
    np.cumsum(indices, out=indices)
    indices -= 1
    if indices[-1] >= size:
        raise Malformed(f"an index is not below {size}")
    return indices


def encode_unary(values: Array) -> bytes:
    """Value v as v zero bits and a one; lowest bit first."""
    ends = np.cumsum(values.astype(np.int64) + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1, dtype=np.uint8)
    bits[ends] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def decode_unary(reader: BodyReader, count: int, most: int) -> Array:
    """`count` unary values up to `most`, as uint32; takes just their bytes."""
    found: list[Array] = []
    missing, zeros, size = count, 0, 64
    while missing:
        # Two bits each are nearly enough; grow, so that many zeros do not take many steps.
        size = min(max(missing // 4, 2 * size), _MOST_CHUNK)
        chunk = reader.raw(min(size, reader.remaining))
        if not len(chunk):
            raise Truncated(f"{count - missing} unary integers where {count} are announced")
        ends = np.flatnonzero(np.unpackbits(np.frombuffer(chunk, np.uint8), bitorder="little").view(np.bool_))
        if ends.size >= missing:
            used = int(ends[missing - 1]) // 8 + 1
            reader.back(len(chunk) - used)
            if ends.size > missing and int(ends[missing]) < 8 * used:
                raise Malformed("bits are set after the last unary integer")
            ends = ends[:missing]
        values = np.diff(ends, prepend=-1 - zeros) - 1
        zeros = 8 * len(chunk) - int(ends[-1]) - 1 if ends.size else zeros + 8 * len(chunk)
        if max(zeros if ends.size < missing else 0, int(values.max(initial=0))) > most:
            raise Malformed(f"a unary integer is over {most}")
        found.append(values.astype(np.uint32))
        missing -= values.size
    return np.concatenate(found)


def _best_low_bits(gaps: Array, size: int) -> int:
    guess = max(0, int(log2(max(1.0, 0.69 * size / gaps.size))))
    candidates = range(max(0, guess - 1), min(31, guess + 1) + 1)
    return min(candidates, key=lambda r: gaps.size * r + int(np.sum(gaps >> r)))


def _rank_size(size: int, count: int) -> int:
    return ((comb(size, count) - 1).bit_length() + 7) // 8


def _unrank(reader: BodyReader, count: int, size: int) -> Array:
    if count > _MOST_NUMBERED:
        raise Malformed(f"{count} numbered indices, {_MOST_NUMBERED} at most")
    rank = int.from_bytes(reader.raw(_rank_size(size, count)), "little")
    if rank >= comb(size, count):
        raise Malformed("the rank of an index set is beyond the last set")
    indices = np.empty(count, dtype=np.int64)
    above = size
    for place in range(count, 0, -1):
        below = place - 1
        while above - below > 1:  # the largest index whose sets still come before
            middle = (below + above) // 2
            if comb(middle, place) <= rank:
                below = middle
            else:
                above = middle
        indices[place - 1] = below
        rank -= comb(below, place)
        above = below
    return indices
