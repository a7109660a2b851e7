"""Symbols to bytes and back, exactly: decode(encode(s)) == s.

One row of fields for each kind of symbols, in one table that is checked at import. The receiver chooses by
the tag on the wire; it knows nothing of compressors. `FORMAT.md` has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from math import isfinite, prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from thinwire.base.errors import BadInput, Malformed, Truncated, UnknownTag
from thinwire.engine.compress import symbols as kinds
from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import Symbols, codes_dtype, count_columns, order_floats
from thinwire.engine.wire.bits import pack, pack_size, read_indices, unpack, write_indices
from thinwire.engine.wire.buffers import BodyReader, BodyWriter
from thinwire.engine.wire.entropy import Effort, check_effort, read_integers, write_integers

MAX_VALUES = 1 << 28  # values in one message: 1 GiB of float32
_MOST_STEP = 1e250  # times any code it is still a float64

_F4, _F8 = (torch.float32, "<f4"), (torch.float64, "<f8")
_DTYPES = {0: _F4, 1: _F8, 2: (torch.float16, "<f2"), 3: (torch.bfloat16, "<u2")}
_DTYPE_TAGS = {dtype: tag for tag, (dtype, _) in _DTYPES.items()}


def encode(symbols: Symbols, effort: Effort = "small") -> bytes:
    """Encodes symbols as the body of a message.

    Args:
        symbols: what a compressor kept.
        effort: "small" for the fewest bytes, or "fast" for nearly as few in far less time.

    Raises:
        BadParameter: `effort` is neither "small" nor "fast".
        BadInput: not symbols; compress the tensor first.

    Examples:
        >>> len(tw.wire.encode(tw.compress.Sign().compress(torch.ones(8, 8), torch.Generator()))) < 4 * 64
        True
    """
    check_effort(effort)
    out = BodyWriter()
    _write(out, symbols, effort)
    return out.body()


def decode(body: bytes | bytearray | memoryview, max_values: int = MAX_VALUES) -> Symbols:
    """Decodes the body of one message, exactly; any other bytes raise `WireError`.

    Args:
        body: nothing before or after it.
        max_values: largest number of values accepted.

    Raises:
        WireError: the body is cut off, of an unknown kind, too large, or not what `encode` writes.

    Examples:
        >>> tw.wire.decode(tw.wire.encode(tw.compress.Sign().compress(torch.ones(2, 3), torch.Generator()))).shape
        (2, 3)
    """
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
        raise UnknownTag(f"symbols of kind {tag} are unknown; the sender runs a newer version, or is not thinwire")
    return codec.read(reader)


# Fields: attributes of the symbols in the order of their bytes ----------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """How an attribute is written; and read, where `s` has those that stand before it."""

    name: str
    write: Callable[[BodyWriter, Any, Effort], None]
    read: Callable[[BodyReader, Any], Any]


def _piece(name: str, piece: str, fits: Callable[[Any], bool] | None = None, says: str = "") -> _Field:
    """What writer and reader have a method for; `says` refuses a value that does not fit."""

    def read(reader: BodyReader, _: Any) -> Any:
        value = getattr(reader, piece)()
        if fits is not None and not fits(value):
            raise Malformed(says.format(value))
        return value

    return _Field(name, lambda out, s, _: getattr(out, piece)(getattr(s, name)), read)


def _count(name: str, most: int, what: str) -> _Field:
    return _Field(name, lambda out, s, _: out.whole(getattr(s, name)), lambda reader, _: reader.count(most, what))


def _integers(name: str, reach: Callable[[Any], tuple[int, int]], by_column: bool = False) -> _Field:
    """One a value, no further than `reach` allows; `by_column`: the statistics of columns may differ."""

    def write(out: BodyWriter, s: Any, effort: Effort) -> None:
        write_integers(out, getattr(s, name), effort, s.shape[-1] if by_column and len(s.shape) > 1 else 1)

    return _Field(name, write, lambda reader, s: read_integers(reader, prod(s.shape), *reach(s)))


def _read_high(reader: BodyReader, s: Any) -> float:
    high = reader.float32()
    if s.low > high:
        raise Malformed(f"a range from {s.low} to {high}")
    return high


_SHAPE, _SEED = _piece("shape", "shape"), _piece("seed", "seed")
_BITS = _piece("bits", "byte", lambda bits: 1 <= bits <= 16, "levels of {0} bits")
_LOW = _piece("low", "float32")
_HIGH = _Field("high", lambda out, s, _: out.float32(s.high), _read_high)
_STEP = _piece("step", "float64", lambda step: 0 < step < _MOST_STEP, "a step of {0}")
_PARTIES = _count("parties", 2**16 - 1, "the number of parties")


# Every value ------------------------------------------------------------------------------------------


def _read_dtype(reader: BodyReader, s: Any) -> torch.dtype:
    tag = reader.byte()
    if tag not in _DTYPES:
        raise UnknownTag(f"float format {tag} is unknown")
    return _DTYPES[tag][0]


def _read_floats(reader: BodyReader, s: Any) -> Array:
    _, layout = _DTYPES[_DTYPE_TAGS[s.dtype]]
    values = reader.array(layout, prod(s.shape)).copy()  # in its own place a message may lie anywhere
    if not _all_finite(values, s.dtype):
        raise Malformed("the values hold NaN or infinity")
    return values


def _all_finite(values: Array, dtype: torch.dtype) -> bool:
    if dtype.itemsize == 2:
        # By the exponent's bits: numpy compares float16 one by one.
        exponent = 0x7F80 if dtype == torch.bfloat16 else 0x7C00
        return int((values.view("<u2") & exponent).max()) < exponent
    return all(isfinite(extreme.item()) for extreme in torch.aminmax(torch.from_numpy(values)))


def _read_narrow(reader: BodyReader, s: Any) -> Any:
    dense: Any = _BY_KIND[kinds.Dense].read(reader)
    if dense.dtype.itemsize != 2:
        raise Malformed(f"narrow values of {dense.dtype.itemsize} bytes")
    return dense


_DTYPE = _Field("dtype", lambda out, s, _: out.byte(_DTYPE_TAGS[s.dtype]), _read_dtype)
_FLOATS = _Field(
    "values", lambda out, s, _: out.raw(np.ascontiguousarray(s.values).view(np.uint8).data), _read_floats
)
_NARROW = _Field("dense", lambda out, s, effort: _BY_KIND[kinds.Dense].write(out, s.dense, effort), _read_narrow)


# Some values ------------------------------------------------------------------------------------------


def _index_set(name: str, size: Callable[[Any], int]) -> _Field:
    return _Field(
        name,
        lambda out, s, _: write_indices(out, getattr(s, name), size(s)),
        lambda reader, s: read_indices(reader, size(s)),
    )


def _write_sampled(out: BodyWriter, s: Any, effort: Effort) -> None:
    out.whole(prod(s.values.shape))
    _write(out, s.values, effort)


def _read_sampled(reader: BodyReader, s: Any) -> Symbols:
    return _read_values(reader, (reader.count(prod(s.shape), "the number of sampled values"),))


def _kept(shape: Callable[[Any], tuple[int, ...]]) -> _Field:
    return _Field(
        "values",
        lambda out, s, effort: _write(out, s.values, effort),
        lambda reader, s: _read_values(reader, shape(s)),
    )


def _read_values(reader: BodyReader, shape: tuple[int, ...]) -> Symbols:
    """The kept values: symbols of their own, but not chosen among once more."""
    if reader.remaining and _BY_TAG.get(reader.look()) in _SELECTIONS:
        raise Malformed("chosen values are chosen among once more")
    values = _read(reader)
    if values.shape != shape:
        raise Malformed(f"values of shape {values.shape} for places of shape {shape}")
    if isinstance(values, kinds.Dense) and values.dtype != torch.float32:
        raise Malformed(f"chosen values of {values.dtype}, not torch.float32")
    return values


def _width(s: Any) -> int:
    """The number of columns: of positions in the last dimension."""
    return int(s.shape[-1]) if s.shape else 1


def _rows(s: Any) -> int:
    return int(prod(s.shape)) // _width(s)


_SPARSE = (_index_set("indices", lambda s: prod(s.shape)), _kept(lambda s: (s.indices.size,)))
_COLUMNS = (_index_set("columns", _width), _kept(lambda s: (_rows(s), s.columns.size)))
_SAMPLED = _Field("values", _write_sampled, _read_sampled)


# Levels -----------------------------------------------------------------------------------------------


def _read_scales(reader: BodyReader, s: Any) -> Array:
    scales = reader.array("<f4", s.shape[0] if len(s.shape) > 1 else 1)
    if not (np.isfinite(scales.max()) and scales.min() >= 0):
        raise Malformed("a row's scale is negative, NaN or infinite")
    return scales


def _write_shifts(out: BodyWriter, s: Any, effort: Effort) -> None:
    out.whole(s.shifts.size)
    out.raw(s.shifts.tobytes())


def _read_shifts(reader: BodyReader, s: Any) -> Array:
    count = reader.count(min(_rows(s), _width(s), kinds.MOST_DIRECTIONS), "the number of directions")
    shifts = reader.array("<u1", count)
    if shifts.max() > kinds.MOST_SHIFT:
        raise Malformed(f"a direction's shift is {shifts.max()}, over {kinds.MOST_SHIFT}")
    return shifts


def _directions(name: str, size: Callable[[Any], int], most: int) -> _Field:
    """A column of integers for each direction."""

    def write(out: BodyWriter, s: Any, effort: Effort) -> None:
        for direction in getattr(s, name).T:
            write_integers(out, np.ascontiguousarray(direction), effort)

    def read(reader: BodyReader, s: Any) -> Array:
        return np.stack([read_integers(reader, size(s), -most, most) for _ in s.shifts], axis=1)

    return _Field(name, write, read)


_LEVELS = (_SHAPE, _BITS, _LOW, _HIGH, _integers("codes", lambda s: (0, 2**s.bits - 1), by_column=True))
_CODES = _integers("codes", lambda _: (-(2**31), 2**31 - 1), by_column=True)
_TOP = _count("top", 2**15 - 1, "the outermost level")
_SCALES = _Field("scales", lambda out, s, _: out.raw(s.scales.astype("<f4").tobytes()), _read_scales)
_ROW_CODES = _integers("codes", lambda s: (-s.top, s.top), by_column=True)
_SCALE = _piece("scale", "float64", lambda scale: 0 < scale <= float(np.finfo(np.float32).max), "a scale of {0}")
_SHIFTS = _Field("shifts", _write_shifts, _read_shifts)
_FACTORS = (_directions("levels", _rows, kinds.MOST_LEVEL), _directions("basis", _width, 2**kinds.MOST_SHIFT))


# Codebooks --------------------------------------------------------------------------------------------


def _read_sizes(reader: BodyReader, s: Any) -> Array:
    columns = count_columns(s.shape)
    if 4 * columns > reader.remaining:
        raise Truncated(f"values of {columns} columns are announced, {reader.remaining} bytes are left")
    return read_integers(reader, columns, 1, min(kinds.MOST_ENTRIES, prod(s.shape) // columns))


def _read_books(reader: BodyReader, s: Any) -> Array:
    ends = np.cumsum(s.sizes, dtype=np.int64)
    values = reader.array("<f4", int(ends[-1]))
    if not np.isfinite(values).all():
        raise Malformed("a column's values hold NaN or infinity")
    keys = order_floats(values.view("<i4"))
    falls = keys[1:] <= keys[:-1]
    falls[ends[:-1] - 1] = False  # from one column to the next
    if falls.any():
        raise Malformed("a column's values do not rise")
    return values


def _read_entries(reader: BodyReader, s: Any) -> Array:
    codes = read_integers(reader, prod(s.shape), 0, int(s.sizes.max()) - 1)
    if s.sizes.size > 1 and (codes.reshape(-1, s.sizes.size).max(axis=0) >= s.sizes).any():
        raise Malformed("a row's number is beyond the values of its column")
    return codes


_SIZES = _Field("sizes", lambda out, s, effort: write_integers(out, s.sizes, effort), _read_sizes)
_BOOKS = _Field("values", lambda out, s, _: out.raw(s.values.astype("<f4").tobytes()), _read_books)
_NUMBERS = _Field("codes", lambda out, s, effort: write_integers(out, s.codes, effort, s.sizes.size), _read_entries)


# Lattice ----------------------------------------------------------------------------------------------


def _write_points(out: BodyWriter, s: Any, effort: Effort) -> None:
    joint = _joint(s, effort)
    apart = b"" if joint and effort == "fast" else _apart(s, effort)
    out.raw(min(filter(None, (joint, apart)), key=len))


def _joint(s: Any, effort: Effort) -> bytes:
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


def _apart(s: Any, effort: Effort) -> bytes:
    out = BodyWriter()
    out.whole(0)
    write_integers(out, s.rows, effort)
    write_integers(out, s.columns, effort)
    return out.body()


def _read_points(reader: BodyReader, s: Any) -> Array:
    """The points' columns; their rows, which are read with them, go to `s` here."""
    pairs = (prod(s.shape) + 1) // 2
    width = reader.whole()
    if width > 1024:
        raise Malformed(f"a lattice of {width} columns in one integer")
    if width == 0:
        s.rows = read_integers(reader, pairs, -_FAR, _FAR)
        return read_integers(reader, pairs, -_FAR, _FAR)
    first = reader.zigzag()
    points = read_integers(reader, pairs, -_FAR * 1024, _FAR * 1024).astype(np.int32)
    if abs(first) > _FAR:
        raise Malformed(f"a lattice column of {first}")
    s.rows = points // width
    if max(-int(s.rows.min()), int(s.rows.max())) > _FAR:
        raise Malformed("a lattice point lies too far out")
    columns: Array = points - s.rows * width + first
    return columns


_FAR = 1 << 14  # twice what 12 bits can reach
_FINENESS = _piece("bits", "float64", lambda bits: 0 <= bits <= 12, "a lattice of {0} bits")
_POINTS = _Field("columns", _write_points, _read_points)


# Counts and sums --------------------------------------------------------------------------------------


def _read_bound(reader: BodyReader, s: Any) -> float:
    bound = reader.float64()
    if not (1e-6 <= s.beta <= 0.25 and 1e-31 < bound < 1e31):
        raise Malformed(f"counts with beta {s.beta} and bound {bound}")
    if s.modulus <= s.trials * s.parties:
        raise Malformed(f"a modulus of {s.modulus} for sums up to {s.trials * s.parties}")
    return bound


def _write_dither(out: BodyWriter, s: Any, effort: Effort) -> None:
    _write_seeds(out, () if s.seed is None else (s.seed,))


def _write_seeds(out: BodyWriter, seeds: tuple[int, ...]) -> None:
    out.byte(1 if seeds else 0)
    for seed in seeds:
        out.seed(seed)


def _read_seeds(reader: BodyReader, count: int) -> tuple[int, ...]:
    """None, or `count`."""
    dithered = reader.byte()
    if dithered > 1:
        raise Malformed(f"the dither's flag is {dithered}")
    return tuple(reader.seed() for _ in range(count if dithered else 0))


def _read_modulus(reader: BodyReader, s: Any) -> int:
    bits = reader.byte()
    if not 1 <= bits <= 32:
        raise Malformed(f"masked values of {bits} bits")
    return int(2**bits)


def _write_masked(out: BodyWriter, s: Any, effort: Effort) -> None:
    # Uniform values cannot be coded shorter, and the size must not follow from them.
    out.raw(pack(s.values.astype(codes_dtype(0, s.modulus - 1), copy=False), s.modulus.bit_length() - 1))


def _read_masked(reader: BodyReader, s: Any) -> Array:
    count, bits = prod(s.shape), s.modulus.bit_length() - 1
    return unpack(reader.raw(pack_size(count, bits)), count, bits)


_MODULUS, _TRIALS = _count("modulus", 2**32, "the modulus"), _count("trials", 2**16 - 1, "the number of trials")
_BETA = _piece("beta", "float64")
_BOUND = _Field("bound", lambda out, s, _: out.float64(s.bound), _read_bound)
_COUNTS = _integers("counts", lambda s: (0, s.modulus - 1))
_SUMS = _integers("codes", lambda s: (0, s.parties * (2**s.bits - 1)))
_DITHER = _Field("seed", _write_dither, lambda reader, _: next(iter(_read_seeds(reader, 1)), None))
_DITHERS = _Field(
    "seeds", lambda out, s, _: _write_seeds(out, s.seeds), lambda reader, s: _read_seeds(reader, s.parties)
)
_POWER = _Field("modulus", lambda out, s, _: out.byte(s.modulus.bit_length() - 1), _read_modulus)
_MASKED = _Field("values", _write_masked, _read_masked)


# The table --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Codec:
    tag: int
    kind: type[Any]
    fields: tuple[_Field, ...]

    def write(self, out: BodyWriter, symbols: Any, effort: Effort) -> None:
        for field in self.fields:
            field.write(out, symbols, effort)

    def read(self, reader: BodyReader) -> Symbols:
        read = SimpleNamespace()
        for field in self.fields:
            setattr(read, field.name, field.read(reader, read))
        symbols: Symbols = self.kind(**vars(read))
        return symbols


# The tags are on the wire: add, never change.
_CODECS = (
    _Codec(1, kinds.Dense, (_DTYPE, _SHAPE, _FLOATS)),
    _Codec(2, kinds.Narrow, (_NARROW,)),
    _Codec(3, kinds.Zeros, (_SHAPE,)),
    _Codec(4, kinds.Sparse, (_SHAPE, *_SPARSE)),
    _Codec(5, kinds.Sampled, (_SHAPE, _SEED, _SAMPLED)),
    _Codec(6, kinds.Columns, (_SHAPE, *_COLUMNS)),
    _Codec(7, kinds.Levels, _LEVELS),
    _Codec(8, kinds.Dithered, (_SEED, *_LEVELS)),
    _Codec(9, kinds.UniformGrid, (_SHAPE, _STEP, _CODES)),
    _Codec(10, kinds.RowGrid, (_SHAPE, _TOP, _SCALES, _ROW_CODES)),
    _Codec(11, kinds.Signs, (_SHAPE, _SCALE, _integers("bits", lambda _: (0, 1)))),
    _Codec(12, kinds.Lattice, (_SHAPE, _FINENESS, _LOW, _HIGH, _DITHER, _POINTS)),
    _Codec(13, kinds.Counts, (_SHAPE, _MODULUS, _TRIALS, _PARTIES, _BETA, _BOUND, _COUNTS)),
    _Codec(14, kinds.LevelSum, (_SHAPE, _BITS, _LOW, _HIGH, _PARTIES, _DITHERS, _SUMS)),
    _Codec(15, kinds.Masked, (_SHAPE, _POWER, _DITHER, _MASKED)),
    _Codec(16, kinds.Product, (_SHAPE, _STEP, _SHIFTS, *_FACTORS)),
    _Codec(17, kinds.Entries, (_SHAPE, _SIZES, _BOOKS, _NUMBERS)),
)
_BY_TAG = {codec.tag: codec for codec in _CODECS}
_BY_KIND: dict[type[Any], _Codec] = {codec.kind: codec for codec in _CODECS}
_SELECTIONS = tuple(_BY_KIND[kind] for kind in (kinds.Sparse, kinds.Sampled, kinds.Columns))


def _check_table() -> None:
    """Every kind of symbols has one tag, and every tag one kind."""
    known = {kind for kind in vars(kinds).values() if is_dataclass(kind)}
    if len(_BY_TAG) != len(_CODECS) or set(_BY_KIND) != known:
        raise TypeError(f"the codec's table and the kinds of symbols differ: {known ^ set(_BY_KIND)}")


_check_table()
