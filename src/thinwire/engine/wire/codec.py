"""Symbols to bytes and back, exactly: decode(encode(s)) == s.

One pair of functions a kind of symbols, in one table that is checked at import. The receiver chooses by
the tag on the wire; it knows nothing of compressors. `FORMAT.md` has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
import torch

from thinwire.base.errors import BadInput, Malformed, Truncated, UnknownTag
from thinwire.engine.compress import symbols as kinds
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import (
    MOST_DIRECTIONS,
    MOST_LEVEL,
    MOST_SHIFT,
    Columns,
    Counts,
    Dense,
    Dithered,
    Lattice,
    Levels,
    LevelSum,
    Masked,
    Narrow,
    Product,
    RowGrid,
    Sampled,
    Signs,
    Sparse,
    Symbols,
    UniformGrid,
    Zeros,
    codes_dtype,
)
from thinwire.engine.wire.bits import pack, pack_size, read_indices, unpack, write_indices
from thinwire.engine.wire.buffers import BodyReader, BodyWriter
from thinwire.engine.wire.entropy import Effort, check_effort, read_integers, write_integers

MAX_VALUES = 1 << 28  # values in one message: 1 GiB of float32
_MOST_STEP = 1e250  # times any code it is still a float64

_DTYPES = {
    0: (torch.float32, "<f4"),
    1: (torch.float64, "<f8"),
    2: (torch.float16, "<f2"),
    3: (torch.bfloat16, "<u2"),
}
_DTYPE_TAGS = {dtype: tag for tag, (dtype, _) in _DTYPES.items()}


def encode(symbols: Symbols, effort: Effort = "small") -> bytes:
    """The body of a message. "small" searches the fewest bytes; "fast" nearly as few in far less time."""
    check_effort(effort)
    out = BodyWriter()
    _write(out, symbols, effort)
    return out.body()


def decode(body: bytes | bytearray | memoryview, max_values: int = MAX_VALUES) -> Symbols:
    """The symbols of a body, which must end where they end. Raises WireError on anything else."""
    # Symbols stay what they are when a buffer is used again: only what nobody can change is not copied.
    if not (isinstance(body, memoryview) and isinstance(body.obj, bytes) and body.contiguous):
        body = bytes(body)
    reader = BodyReader(body, max_values)
    symbols = _read(reader)
    reader.finish()
    return symbols


def _write(out: BodyWriter, symbols: Any, effort: Effort) -> None:
    codec = _BY_KIND.get(type(symbols))
    if codec is None:
        raise BadInput(f"{type(symbols).__name__} is not a kind of symbols; compress the tensor first")
    out.byte(codec.tag)
    codec.write(out, symbols, effort)


def _read(reader: BodyReader) -> Symbols:
    if not reader.remaining:
        raise Truncated("the body is empty")
    tag = reader.byte()
    codec = _BY_TAG.get(tag)
    if codec is None:
        raise UnknownTag(f"symbols of kind {tag} are unknown; the sender runs a newer version, or is no thinwire")
    return codec.read(reader)


# Every value ------------------------------------------------------------------------------------------


def _write_dense(out: BodyWriter, s: Dense, effort: Effort) -> None:
    out.byte(_DTYPE_TAGS[s.dtype])
    out.shape(s.shape)
    out.raw(np.ascontiguousarray(s.values).view(np.uint8).data)


def _read_dense(reader: BodyReader) -> Dense:
    tag = reader.byte()
    if tag not in _DTYPES:
        raise UnknownTag(f"float format {tag} is unknown")
    dtype, layout = _DTYPES[tag]
    shape = reader.shape()
    values = reader.array(layout, prod(shape)).copy()  # in its own place a message may lie anywhere
    if not _all_finite(values, dtype):
        raise Malformed("the values hold NaN or infinity")
    return Dense(shape, dtype, values)


def _all_finite(values: Array, dtype: torch.dtype) -> bool:
    if dtype.itemsize == 2:
        # By the exponent's bits: numpy compares float16 one by one.
        exponent = 0x7F80 if dtype == torch.bfloat16 else 0x7C00
        return int((values.view("<u2") & exponent).max()) < exponent
    return all(isfinite(extreme.item()) for extreme in torch.aminmax(torch.from_numpy(values)))


def _read_narrow(reader: BodyReader) -> Narrow:
    dense = _read_dense(reader)
    if dense.dtype.itemsize != 2:
        raise Malformed(f"narrow values of {dense.dtype.itemsize} bytes")
    return Narrow(dense)


# Some values ------------------------------------------------------------------------------------------


def _write_sparse(out: BodyWriter, s: Sparse, effort: Effort) -> None:
    out.shape(s.shape)
    write_indices(out, s.indices, prod(s.shape))
    _write(out, s.values, effort)


def _read_sparse(reader: BodyReader) -> Sparse:
    shape = reader.shape()
    indices = read_indices(reader, prod(shape))
    return Sparse(shape, indices, _read_values(reader, (indices.size,)))


def _write_sampled(out: BodyWriter, s: Sampled, effort: Effort) -> None:
    out.shape(s.shape)
    out.seed(s.seed)
    out.whole(prod(s.values.shape))
    _write(out, s.values, effort)


def _read_sampled(reader: BodyReader) -> Sampled:
    shape = reader.shape()
    seed = reader.seed()
    count = reader.count(prod(shape), "the number of sampled values")
    return Sampled(shape, seed, _read_values(reader, (count,)))


def _write_columns(out: BodyWriter, s: Columns, effort: Effort) -> None:
    out.shape(s.shape)
    write_indices(out, s.columns, s.shape[-1] if s.shape else 1)
    _write(out, s.values, effort)


def _read_columns(reader: BodyReader) -> Columns:
    shape = reader.shape()
    width = shape[-1] if shape else 1
    columns = read_indices(reader, width)
    return Columns(shape, columns, _read_values(reader, (prod(shape) // width, columns.size)))


def _read_values(reader: BodyReader, shape: tuple[int, ...]) -> Symbols:
    """The kept values: symbols of their own, but not chosen among once more."""
    if reader.remaining and _BY_TAG.get(reader.look()) in _SELECTIONS:
        raise Malformed("chosen values are chosen among once more")
    values = _read(reader)
    if values.shape != shape:
        raise Malformed(f"values of shape {values.shape} for places of shape {shape}")
    if isinstance(values, Dense) and values.dtype != torch.float32:
        raise Malformed(f"chosen values of {values.dtype}, not torch.float32")
    return values


# Levels -----------------------------------------------------------------------------------------------


def _write_levels(out: BodyWriter, s: Levels | Dithered, effort: Effort) -> None:
    out.shape(s.shape)
    out.byte(s.bits)
    out.float32(s.low)
    out.float32(s.high)
    _write_codes(out, s, effort)


def _read_levels(reader: BodyReader) -> Levels:
    shape = reader.shape()
    bits = reader.byte()
    low, high = _read_range(reader)
    if not 1 <= bits <= 16:
        raise Malformed(f"levels of {bits} bits")
    return Levels(shape, _read_codes(reader, shape, 0, 2**bits - 1), low, high, bits)


def _write_dithered(out: BodyWriter, s: Dithered, effort: Effort) -> None:
    out.seed(s.seed)
    _write_levels(out, s, effort)


def _read_dithered(reader: BodyReader) -> Dithered:
    seed = reader.seed()
    plain = _read_levels(reader)
    return Dithered(plain.shape, plain.codes, plain.low, plain.high, plain.bits, seed)


def _write_grid(out: BodyWriter, s: UniformGrid, effort: Effort) -> None:
    out.shape(s.shape)
    out.float64(s.step)
    _write_codes(out, s, effort)


def _read_grid(reader: BodyReader) -> UniformGrid:
    shape = reader.shape()
    step = reader.float64()
    if not 0 < step < _MOST_STEP:
        raise Malformed(f"a step of {step}")
    return UniformGrid(shape, _read_codes(reader, shape, -(2**31), 2**31 - 1), step)


def _write_row_grid(out: BodyWriter, s: RowGrid, effort: Effort) -> None:
    out.shape(s.shape)
    out.whole(s.top)
    out.raw(s.scales.astype("<f4").tobytes())
    _write_codes(out, s, effort)


def _read_row_grid(reader: BodyReader) -> RowGrid:
    shape = reader.shape()
    top = reader.count(2**15 - 1, "the outermost level")
    scales = reader.array("<f4", shape[0] if len(shape) > 1 else 1)
    if not (np.isfinite(scales.max()) and scales.min() >= 0):
        raise Malformed("a row's scale is negative, NaN or infinite")
    return RowGrid(shape, _read_codes(reader, shape, -top, top), scales, top)


def _write_product(out: BodyWriter, s: Product, effort: Effort) -> None:
    out.shape(s.shape)
    out.float64(s.step)
    out.whole(s.shifts.size)
    out.raw(s.shifts.tobytes())
    for side in (s.levels, s.basis):
        for direction in side.T:
            write_integers(out, np.ascontiguousarray(direction), effort)


def _read_product(reader: BodyReader) -> Product:
    shape = reader.shape()
    step = reader.float64()
    if not 0 < step < _MOST_STEP:
        raise Malformed(f"a step of {step}")
    columns = shape[-1] if shape else 1
    rows = prod(shape) // columns
    count = reader.count(min(rows, columns, MOST_DIRECTIONS), "the number of directions")
    shifts = reader.array("<u1", count)
    if shifts.max() > MOST_SHIFT:
        raise Malformed(f"a direction's shift is {shifts.max()}, over {MOST_SHIFT}")
    levels = _read_directions(reader, rows, count, MOST_LEVEL)
    return Product(shape, levels, _read_directions(reader, columns, count, 2**MOST_SHIFT), shifts, step)


def _read_directions(reader: BodyReader, size: int, count: int, most: int) -> Array:
    return np.stack([read_integers(reader, size, -most, most) for _ in range(count)], axis=1)


def _write_signs(out: BodyWriter, s: Signs, effort: Effort) -> None:
    out.shape(s.shape)
    out.float64(s.scale)
    write_integers(out, s.bits, effort)


def _read_signs(reader: BodyReader) -> Signs:
    shape = reader.shape()
    scale = reader.float64()
    if not 0 < scale <= float(np.finfo(np.float32).max):
        raise Malformed(f"a scale of {scale}")
    return Signs(shape, _read_codes(reader, shape, 0, 1), scale)


# Lattice ----------------------------------------------------------------------------------------------


def _write_lattice(out: BodyWriter, s: Lattice, effort: Effort) -> None:
    out.shape(s.shape)
    out.float64(s.bits)
    out.float32(s.low)
    out.float32(s.high)
    out.byte(0 if s.seed is None else 1)
    if s.seed is not None:
        out.seed(s.seed)
    joint = _joint(s, effort)
    apart = b"" if joint and effort == "fast" else _apart(s, effort)
    out.raw(min(filter(None, (joint, apart)), key=len))


def _joint(s: Lattice, effort: Effort) -> bytes:
    """Row and column as one integer: small while there are few points; nothing where there are many."""
    first, width = int(s.columns.min()), int(np.ptp(s.columns.astype(np.int32))) + 1
    height = int(np.ptp(s.rows.astype(np.int32))) + 1
    if height * width > (256 if effort == "fast" else 1024):
        return b""
    out = BodyWriter()
    out.whole(width)
    out.zigzag(first)
    points = s.rows.astype(np.int32)
    points *= width
    points += s.columns
    points -= first
    write_integers(out, points, effort)
    return out.body()


def _apart(s: Lattice, effort: Effort) -> bytes:
    out = BodyWriter()
    out.whole(0)
    write_integers(out, s.rows, effort)
    write_integers(out, s.columns, effort)
    return out.body()


def _read_lattice(reader: BodyReader) -> Lattice:
    shape = reader.shape()
    bits = reader.float64()
    if not 0 <= bits <= 12:
        raise Malformed(f"a lattice of {bits} bits")
    low, high = _read_range(reader)
    dithered = reader.byte()
    if dithered > 1:
        raise Malformed(f"the dither's flag is {dithered}")
    seed = reader.seed() if dithered else None
    pairs = ((prod(shape) + 1) // 2,)
    width = reader.whole()
    if width > 1024:
        raise Malformed(f"a lattice of {width} columns in one integer")
    if width == 0:
        rows, columns = _read_codes(reader, pairs, -_FAR, _FAR), _read_codes(reader, pairs, -_FAR, _FAR)
    else:
        first = reader.zigzag()
        points = _read_codes(reader, pairs, -_FAR * 1024, _FAR * 1024).astype(np.int32)
        if abs(first) > _FAR:
            raise Malformed(f"a lattice column of {first}")
        rows = points // width
        columns = points - rows * width + first
        if max(-int(rows.min()), int(rows.max())) > _FAR:
            raise Malformed("a lattice point lies too far out")
    return Lattice(shape, rows, columns, low, high, bits, seed)


_FAR = 1 << 14  # twice what 12 bits can reach


# Counts -----------------------------------------------------------------------------------------------


def _write_counts(out: BodyWriter, s: Counts, effort: Effort) -> None:
    out.shape(s.shape)
    out.whole(s.modulus)
    out.whole(s.trials)
    out.whole(s.parties)
    out.float64(s.beta)
    out.float64(s.bound)
    write_integers(out, s.counts, effort)


def _read_counts(reader: BodyReader) -> Counts:
    shape = reader.shape()
    modulus = reader.count(2**32, "the modulus")
    trials = reader.count(2**16 - 1, "the number of trials")
    parties = reader.count(2**16 - 1, "the number of parties")
    beta, bound = reader.float64(), reader.float64()
    if not (1e-6 <= beta <= 0.25 and 1e-31 < bound < 1e31):
        raise Malformed(f"counts with beta {beta} and bound {bound}")
    if modulus <= trials * parties:
        raise Malformed(f"a modulus of {modulus} for sums up to {trials * parties}")
    return Counts(shape, _read_codes(reader, shape, 0, modulus - 1), modulus, trials, beta, bound, parties)


# Sums -------------------------------------------------------------------------------------------------


def _write_level_sum(out: BodyWriter, s: LevelSum, effort: Effort) -> None:
    out.shape(s.shape)
    out.byte(s.bits)
    out.float32(s.low)
    out.float32(s.high)
    out.whole(s.parties)
    out.byte(1 if s.seeds else 0)
    for seed in s.seeds:
        out.seed(seed)
    write_integers(out, s.codes, effort)


def _read_level_sum(reader: BodyReader) -> LevelSum:
    shape = reader.shape()
    bits = reader.byte()
    low, high = _read_range(reader)
    parties = reader.count(2**16 - 1, "the number of parties")
    dithered = reader.byte()
    if not 1 <= bits <= 16 or dithered > 1:
        raise Malformed(f"a sum of levels of {bits} bits, the dither's flag is {dithered}")
    seeds = tuple(reader.seed() for _ in range(parties if dithered else 0))
    return LevelSum(shape, _read_codes(reader, shape, 0, parties * (2**bits - 1)), low, high, bits, parties, seeds)


def _write_masked(out: BodyWriter, s: Masked, effort: Effort) -> None:
    out.shape(s.shape)
    bits = s.modulus.bit_length() - 1
    out.byte(bits)
    out.byte(0 if s.seed is None else 1)
    if s.seed is not None:
        out.seed(s.seed)
    # Uniform values cannot be coded shorter, and the size must not follow from them.
    out.raw(pack(s.values.astype(codes_dtype(0, s.modulus - 1), copy=False), bits))


def _read_masked(reader: BodyReader) -> Masked:
    shape = reader.shape()
    bits, dithered = reader.byte(), reader.byte()
    if not 1 <= bits <= 32 or dithered > 1:
        raise Malformed(f"masked values of {bits} bits, the dither's flag is {dithered}")
    seed = reader.seed() if dithered else None
    count = prod(shape)
    return Masked(shape, unpack(reader.raw(pack_size(count, bits)), count, bits), 2**bits, seed)


# Shared -----------------------------------------------------------------------------------------------


def _read_range(reader: BodyReader) -> tuple[float, float]:
    low, high = reader.float32(), reader.float32()
    if low > high:
        raise Malformed(f"a range from {low} to {high}")
    return low, high


def _write_codes(out: BodyWriter, s: Levels | Dithered | UniformGrid | RowGrid, effort: Effort) -> None:
    write_integers(out, s.codes, effort, s.shape[-1] if len(s.shape) > 1 else 1)


def _read_codes(reader: BodyReader, shape: tuple[int, ...], low: int, high: int) -> Array:
    return read_integers(reader, prod(shape), low, high)


@dataclass(frozen=True, slots=True)
class _Codec:
    tag: int
    kind: type[Any]
    write: Callable[[BodyWriter, Any, Effort], None]
    read: Callable[[BodyReader], Symbols]


# The tags are on the wire: add, never change.
_CODECS = (
    _Codec(1, Dense, _write_dense, _read_dense),
    _Codec(2, Narrow, lambda out, s, effort: _write_dense(out, s.dense, effort), _read_narrow),
    _Codec(3, Zeros, lambda out, s, _: out.shape(s.shape), lambda reader: Zeros(reader.shape())),
    _Codec(4, Sparse, _write_sparse, _read_sparse),
    _Codec(5, Sampled, _write_sampled, _read_sampled),
    _Codec(6, Columns, _write_columns, _read_columns),
    _Codec(7, Levels, _write_levels, _read_levels),
    _Codec(8, Dithered, _write_dithered, _read_dithered),
    _Codec(9, UniformGrid, _write_grid, _read_grid),
    _Codec(10, RowGrid, _write_row_grid, _read_row_grid),
    _Codec(11, Signs, _write_signs, _read_signs),
    _Codec(12, Lattice, _write_lattice, _read_lattice),
    _Codec(13, Counts, _write_counts, _read_counts),
    _Codec(14, LevelSum, _write_level_sum, _read_level_sum),
    _Codec(15, Masked, _write_masked, _read_masked),
    _Codec(16, Product, _write_product, _read_product),
)
_BY_TAG = {codec.tag: codec for codec in _CODECS}
_BY_KIND = {codec.kind: codec for codec in _CODECS}
_SELECTIONS = tuple(_BY_KIND[kind] for kind in (Sparse, Sampled, Columns))


def _check_table() -> None:
    """Every kind of symbols has one tag, and every tag one kind."""
    known = {getattr(kinds, name) for name in kinds.__all__ if isinstance(getattr(kinds, name), type)} - {Symbols}
    if len(_BY_TAG) != len(_CODECS) or set(_BY_KIND) != known:
        raise TypeError(f"the codec's table and the kinds of symbols differ: {known ^ set(_BY_KIND)}")


_check_table()
