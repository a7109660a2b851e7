"""Arrays of integers as few bytes: near their entropy, or nearly so and fast.

| coding   | what it is                                     | good for                               |
|----------|------------------------------------------------|----------------------------------------|
| CONSTANT | one value                                      | a constant                             |
| PACKED   | as many bits as the span needs (bits.py)       | evenly used levels; masked counts      |
| ZSTD     | zstd on bits packed to a power of two          | fast and close, on large arrays        |
| RANGE    | range asymmetric numeral system, one table     | within a percent of the entropy        |
| UNARY    | value v is v zeros and a one                   | geometric: the quotients of index gaps |
| SPARSE   | places and values of all but the common value  | nearly all the same; fast              |
| COLUMNS  | as RANGE, a table for each column              | embeddings, whose columns differ       |

| PARENTS  | columns given another column (parents.py)      | tables whose columns depend on others  |

`FORMAT.md` has the bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
import zstandard

from thinwire.base.errors import BadParameter, Malformed, UnknownTag
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import codes_dtype
from thinwire.engine.wire.bits import (
    bits_for,
    decode_unary,
    encode_unary,
    pack,
    pack_size,
    read_indices,
    unpack,
    write_indices,
)
from thinwire.engine.wire.buffers import BodyReader, BodyWriter
from thinwire.engine.wire.parents import plan_parents, read_parents
from thinwire.engine.wire.tables import RunReader, count_bits, encode_runs, weight_bytes

Effort: TypeAlias = Literal["small", "fast"]

MOST_TABLE = 1024  # symbols
_MOST_COLUMN_TABLE = 256  # symbols of a column
_FEW_SYMBOLS = 64  # from so many on, tables of columns must be a small part of the packed size
_SMALL_PART = 1 / 16
_WORTH_ZSTD = 0.97  # fast: zstd must save this much over plain packing
_LEAST_RUN = 8  # bytes beside the table of a range-coded array, at least
_MOSTLY_ONE = 0.92  # fast: above this share of one value, listing the others is cheaper and smaller
_SPAN_LIMIT = 2**32


class Coding(IntEnum):
    """The numbers are on the wire: add, never change."""

    CONSTANT = 0
    PACKED = 1
    ZSTD = 2
    RANGE = 3
    UNARY = 4
    SPARSE = 5
    COLUMNS = 6
    PARENTS = 7


# Of codings of the same size the first is written.
_PREFERRED = (Coding.PACKED, Coding.UNARY, Coding.RANGE, Coding.ZSTD, Coding.COLUMNS, Coding.PARENTS)


def check_effort(effort: str) -> None:
    if effort not in ("small", "fast"):
        raise BadParameter(f"effort must be 'small' or 'fast', got {effort!r}")


def write_integers(out: BodyWriter, values: Array, effort: Effort, width: int = 1) -> None:
    """Writes a flat array of integers, rows of `width`; the reader is told its length."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        out.byte(Coding.CONSTANT)
        out.zigzag(low)
        return
    span = high - low
    offsets = values if low == 0 else _offsets(values, low, span)
    coding, payload = _smallest(offsets, span, width) if effort == "small" else _fastest(offsets, span)
    out.byte(coding)
    out.zigzag(low)
    out.whole(span)
    out.raw(payload)


def read_integers(reader: BodyReader, count: int, least: int, most: int) -> Array:
    """`count` integers from `least` to `most`, in the narrowest dtype that the announced range needs."""
    coding = reader.byte()
    low = reader.zigzag()
    span = 0 if coding == Coding.CONSTANT else reader.count(_SPAN_LIMIT - 1, "the span of the integers")
    if low < least or low + span > most:
        raise Malformed(f"integers from {low} to {low + span} are announced, {least} to {most} are allowed")
    if coding == Coding.CONSTANT:
        return np.full(count, low, dtype=codes_dtype(low, low))
    decode = _DECODERS.get(coding)
    if decode is None:
        raise UnknownTag(f"coding {coding} of integers is unknown; the sender runs a newer version")
    offsets = decode(reader, count, span)
    if int(offsets.max()) != span or int(offsets.min()) != 0:
        raise Malformed(f"the integers do not span 0 to {span} as announced")
    return offsets if low == 0 else _shifted(offsets, low, span)


def _offsets(values: Array, low: int, span: int) -> Array:
    """values - low; the narrow arithmetic wraps around to the right result."""
    dtype = codes_dtype(0, span)
    offsets: Array = values.astype(dtype)
    offsets -= dtype.type(low % (1 << 8 * dtype.itemsize))
    return offsets


def _shifted(offsets: Array, low: int, span: int) -> Array:
    dtype = codes_dtype(low, low + span)
    unsigned = np.dtype(f"u{dtype.itemsize}")
    values: Array = offsets.astype(unsigned)
    values += unsigned.type(low % (1 << 8 * dtype.itemsize))
    return values.view(dtype)


# Choosing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a coding would take, and the coding itself once it is chosen."""

    size: int  # estimated
    write: Callable[[], bytes]


def _smallest(offsets: Array, span: int, width: int) -> tuple[Coding, bytes]:
    bits = bits_for(span)
    zstd = _zstd(offsets, span, _ZSTD.small)
    packed = _Plan(pack_size(offsets.size, bits), lambda: pack(offsets, bits))
    plans = {
        Coding.PACKED: packed,
        Coding.UNARY: _Plan(_unary_size(offsets), lambda: encode_unary(offsets)),
        Coding.ZSTD: _Plan(len(zstd), lambda: zstd),
    }
    if min(span + 1, MOST_TABLE // 2) + _LEAST_RUN < packed.size:  # a table alone is longer than many a short array
        plans[Coding.RANGE] = _range(offsets, span)
    if _may_differ(plans[Coding.PACKED].size, offsets.size, span, width):
        plans[Coding.COLUMNS] = _columns(offsets, span, width)
        least = min(plan.size for plan in plans.values())
        forest = plan_parents(offsets.reshape(-1, width), plans[Coding.COLUMNS].size, least)
        if forest is not None:
            plans[Coding.PARENTS] = _Plan(forest.size, forest.write)
    best = min(plans, key=lambda coding: (plans[coding].size, _PREFERRED.index(coding)))
    return best, plans[best].write()


def _may_differ(packed: int, size: int, span: int, width: int) -> bool:
    """Whether a table for each column may pay."""
    most = packed if span < _FEW_SYMBOLS else packed * _SMALL_PART
    return 1 < width < size and span < _MOST_COLUMN_TABLE and width * (span + 1) < most


def _fastest(offsets: Array, span: int) -> tuple[Coding, bytes]:
    bits = bits_for(span)
    size = pack_size(offsets.size, bits)
    if size < 64:
        return Coding.PACKED, pack(offsets, bits)
    sample = np.bincount(offsets[:: max(1, offsets.size // 4096) | 1].astype(np.intp)) if span < 1 << 16 else None
    if sample is not None and sample.max() > _MOSTLY_ONE * sample.sum():
        return Coding.SPARSE, _sparse(offsets, int(sample.argmax()))
    zstd = _zstd(offsets, span, _ZSTD.fast)
    if len(zstd) < _WORTH_ZSTD * size:
        return Coding.ZSTD, zstd
    return Coding.PACKED, pack(offsets, bits)


# Packed -----------------------------------------------------------------------------------------------


def _read_packed(reader: BodyReader, count: int, span: int) -> Array:
    bits = bits_for(span)
    return unpack(reader.raw(pack_size(count, bits)), count, bits)


# Zstd -------------------------------------------------------------------------------------------------


class _Zstd(threading.local):
    """Contexts are costly to make and not to be shared between threads."""

    def __init__(self) -> None:
        # Few matches, all the rest Huffman-coded: packed levels have no repeats worth a reference. This
        # is 2 to 5 % over the entropy where plain level 1 is up to 24 % over, and faster.
        mostly_huffman = zstandard.ZstdCompressionParameters.from_level(
            1, strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6
        )
        self.fast = zstandard.ZstdCompressor(compression_params=mostly_huffman)
        self.small = zstandard.ZstdCompressor(level=3)  # finds what repeats; RANGE does the rest
        self.decompressor = zstandard.ZstdDecompressor()


_ZSTD = _Zstd()


def _aligned(span: int) -> int:
    """Zstd sees whole bytes: symbols must not straddle them."""
    bits = bits_for(span)
    return 1 << (bits - 1).bit_length() if bits <= 8 else (bits + 7) // 8 * 8


def _zstd(offsets: Array, span: int, compressor: zstandard.ZstdCompressor) -> bytes:
    out = BodyWriter()
    out.blob(compressor.compress(pack(offsets, _aligned(span))))
    return out.body()


def _read_zstd(reader: BodyReader, count: int, span: int) -> Array:
    bits = _aligned(span)
    size = pack_size(count, bits)
    data = reader.blob()
    try:
        if zstandard.frame_content_size(data) != size:
            raise Malformed(f"a zstd frame does not hold the {size} bytes announced")
        unpacked = _ZSTD.decompressor.decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Malformed(f"zstd: {error}") from error
    if len(unpacked) != size:
        raise Malformed(f"a zstd frame holds {len(unpacked)} bytes, not the {size} announced")
    return unpack(unpacked, count, bits)


# Range coding -----------------------------------------------------------------------------------------


def _range(offsets: Array, span: int) -> _Plan:
    """One table. Large alphabets drop `shift` low bits, which are packed as they are."""
    shift = max(0, bits_for(span) - bits_for(MOST_TABLE - 1))
    high = (offsets >> shift if shift else offsets).astype(np.intp)
    counts = np.bincount(high, minlength=(span >> shift) + 1)
    plan = _plan_tables(lambda out: out.byte(shift), high.reshape(-1, 1), counts.reshape(1, -1))
    if not shift:
        return _Plan(plan.size + 1, plan.write)
    size = plan.size + 1 + pack_size(offsets.size, shift)
    return _Plan(size, lambda: plan.write() + pack(offsets & ((1 << shift) - 1), shift))


def _read_range(reader: BodyReader, count: int, span: int) -> Array:
    shift = reader.byte()
    alphabet = (span >> shift) + 1
    if not 2 <= alphabet <= MOST_TABLE:
        raise Malformed(f"a table of {alphabet} symbols, from 2 to {MOST_TABLE} are allowed")
    weights = np.frombuffer(reader.raw(alphabet), np.uint8)
    if np.count_nonzero(weights) < 2:
        raise Malformed("a table in which fewer than two symbols occur")
    symbols = _read_tables(reader, weights.reshape(1, -1), count)
    offsets = symbols.astype(codes_dtype(0, span), copy=False)
    if shift:
        offsets = (symbols.astype(np.int64) << shift).astype(np.uint32)
        offsets |= unpack(reader.raw(pack_size(count, shift)), count, shift)
        offsets = offsets.astype(codes_dtype(0, span))
    return offsets


def _plan_tables(head: Callable[[BodyWriter], None], symbols: Array, counts: Array) -> _Plan:
    """Each column of symbols by its own table, of how often it holds each; the size is without the head's."""
    weights = weight_bytes(counts)

    def write() -> bytes:
        out = BodyWriter()
        head(out)
        out.raw(weights.tobytes())
        encode_runs(out, list(zip(symbols.T, weights, strict=True)))
        return out.body()

    return _Plan(int(count_bits(counts, weights) / 32 + 1) * 4 + 3 + weights.size, write)


def _read_tables(reader: BodyReader, weights: Array, rows: int) -> Array:
    """`rows` symbols of each table, table after table."""
    coded = RunReader(reader)
    symbols = np.empty((rows, len(weights)), dtype=codes_dtype(0, weights.shape[1] - 1))
    for column, table in enumerate(weights):
        symbols[:, column] = coded.run(table, rows)
    coded.finish()
    return symbols.reshape(-1)


def _columns(offsets: Array, span: int, width: int) -> _Plan:
    """Columns of an embedding differ: some move, some rest. Column by column, each with its own table."""
    table = offsets.reshape(-1, width)
    places = table.astype(np.intp) + np.arange(width) * (span + 1)
    counts = np.bincount(places.ravel(), minlength=width * (span + 1)).reshape(width, span + 1)
    plan = _plan_tables(lambda out: out.whole(width), table, counts)
    return _Plan(plan.size + 2, plan.write)


def _read_columns(reader: BodyReader, count: int, span: int) -> Array:
    width = reader.count(count, "the number of columns")
    if width < 2 or count % width or span >= _MOST_COLUMN_TABLE:
        raise Malformed(f"{count} integers up to {span} in {width} columns")
    weights = np.frombuffer(reader.raw(width * (span + 1)), np.uint8).reshape(width, span + 1)
    if not weights.any(axis=1).all():
        raise Malformed("a column's table in which no symbol occurs")
    return _read_tables(reader, weights, count // width)


# Unary ------------------------------------------------------------------------------------------------


def _unary_size(offsets: Array) -> int:
    return (int(np.sum(offsets, dtype=np.int64)) + offsets.size + 7) // 8


def _read_unary(reader: BodyReader, count: int, span: int) -> Array:
    return decode_unary(reader, count, span).astype(codes_dtype(0, span))


# Sparse -----------------------------------------------------------------------------------------------


def _sparse(offsets: Array, common: int) -> bytes:
    places = np.flatnonzero(offsets != common)
    out = BodyWriter()
    out.whole(common)
    write_indices(out, places, offsets.size)
    write_integers(out, offsets[places], "small")  # few; and never sparse once more
    return out.body()


def _read_sparse(reader: BodyReader, count: int, span: int) -> Array:
    common = reader.whole()
    if common > span:
        raise Malformed(f"the common integer {common} is above the span {span}")
    places = read_indices(reader, count)
    if reader.remaining and reader.look() == Coding.SPARSE:
        raise Malformed("sparse integers inside sparse ones")
    values = read_integers(reader, places.size, 0, span)
    offsets = np.full(count, common, dtype=codes_dtype(0, span))
    offsets[places] = values
    return offsets


_DECODERS: dict[int, Callable[[BodyReader, int, int], Array]] = {
    Coding.PACKED: _read_packed,
    Coding.ZSTD: _read_zstd,
    Coding.RANGE: _read_range,
    Coding.UNARY: _read_unary,
    Coding.SPARSE: _read_sparse,
    Coding.COLUMNS: _read_columns,
    Coding.PARENTS: read_parents,
}
