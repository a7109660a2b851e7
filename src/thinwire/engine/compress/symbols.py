"""What a compressor kept of a tensor, before it becomes bytes.

Symbols are self-describing: `to_tensor()` needs nothing else, and gives the same floats at both ends.
Each kind here has one encoder and one decoder in `engine/wire/codec.py`.

| kind       | a value is                                  | made by                        |
|------------|---------------------------------------------|--------------------------------|
| Dense      | itself                                      | Identity                       |
| Narrow     | itself in 16 bits                           | Cast                           |
| Zeros      | 0                                           | an all-zero message            |
| Sparse     | one of the kept values, or 0                | TopK                           |
| Sampled    | the same; the places follow from a seed     | RandK                          |
| Columns    | the same; whole columns                     | TopK(select="columns")         |
| Levels     | the middle of one of 2^bits bins            | Uniform(dither=False)          |
| Dithered   | a level less a dither both ends know        | Uniform                        |
| Grid       | an integer times one step                   | QSGD, StdGrid                  |
| RowGrid    | an integer times its row's step             | RowScale                       |
| Product    | integers times integers, added up           | Directions                     |
| Entries    | an entry of its column's codebook           | Codebook                       |
| Signs      | + or - one scale                            | Sign                           |
| Lattice    | half of a point of the hexagonal lattice    | HexLattice                     |
| Counts     | a count of successes, centred               | PoissonBinomial                |
| LevelSum   | several parties' levels, added up           | a secure sum of Uniform        |
| Masked     | nothing without the other parties' masks    | a secure sum                   |
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod, sqrt
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import Malformed
from thinwire.engine.compress.message import Array, blocks
from thinwire.engine.compress.randomness import Keystream, sample_indices

_LARGEST = float(np.finfo(np.float32).max)

# Of a Product: 2^15 levels, a basis of 2^14, shifts that differ by 14, 256 directions: sums stay below 2^52, and
# float64 adds them exactly, in any order.
MOST_LEVEL = 1 << 15
MOST_SHIFT = 14
MOST_DIRECTIONS = 256

MOST_ENTRIES = 256  # of a column's codebook: a number is a byte


@runtime_checkable
class Symbols(Protocol):
    """What a compressor kept: `shape`, and `to_tensor()` to decode it.

    Examples:
        >>> import torch
        >>> tw.compress.Sign().compress(torch.ones(2, 3), torch.Generator()).shape
        (2, 3)
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def to_tensor(self) -> Tensor:
        """The floats this stands for, bit for bit the same wherever it is called."""
        ...


class _ByContent:
    """Equality by content: arrays of integers by value, arrays of floats by their bits."""

    __slots__ = ()
    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self)]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    if a.dtype.kind in "iu":
        return np.array_equal(a, b)
    return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def codes_dtype(low: int, high: int) -> np.dtype[Any]:
    """The narrowest integer dtype that holds low to high."""
    for dtype, least, most in _UNSIGNED if low >= 0 else _SIGNED:
        if low >= least and high <= most:
            return dtype
    return np.dtype(np.int64)


def _list_ranges(*kinds: str) -> list[tuple[np.dtype[Any], int, int]]:
    dtypes = [np.dtype(kind) for kind in kinds]
    return [(dtype, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in dtypes]


_UNSIGNED, _SIGNED = _list_ranges("uint8", "uint16", "uint32"), _list_ranges("int8", "int16", "int32")


def _tensor(values: Array, shape: tuple[int, ...]) -> Tensor:
    """float32, held inside its range: a level may lie half a step beyond the largest float."""
    if values.dtype != np.float32:
        values = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
    return torch.from_numpy(values.reshape(shape))


def _working(scale: float, fine: bool) -> type[np.floating[Any]]:
    """The dtype to compute in. It depends on the content alone, never on how the codes are stored:
    both ends must round alike."""
    return np.float64 if fine or not 1e-25 < scale < 1e25 else np.float32


def _reach(codes: Array) -> int:
    """The largest magnitude; bytes need no look, they are small."""
    return 255 if codes.dtype.itemsize == 1 else max(-int(codes.min()), int(codes.max()))


@dataclass(frozen=True, eq=False, slots=True)
class Dense(_ByContent):
    """Every value, exactly. `values` is little-endian float32, float64 or float16, or uint16 for bfloat16.

    Where they may be written to they belong to these symbols, and their tensor shares them: take it once. Else it
    is a copy.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    values: Array

    def to_tensor(self) -> Tensor:
        values = (self.values if self.values.flags.writeable else self.values.copy()).reshape(self.shape)
        if self.dtype == torch.bfloat16:
            return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(values)


@dataclass(frozen=True, eq=False, slots=True)
class Narrow(_ByContent):
    """Every value in 16 bits, given back as float32."""

    dense: Dense

    @property
    def shape(self) -> tuple[int, ...]:
        return self.dense.shape

    def to_tensor(self) -> Tensor:
        return self.dense.to_tensor().float()


@dataclass(frozen=True, eq=False, slots=True)
class Zeros(_ByContent):
    """All zeros."""

    shape: tuple[int, ...]

    def to_tensor(self) -> Tensor:
        return torch.zeros(self.shape, dtype=torch.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Sparse(_ByContent):
    """The kept values at rising flat `indices`; zero elsewhere."""

    shape: tuple[int, ...]
    indices: Array
    values: Symbols

    def to_tensor(self) -> Tensor:
        return _scattered(self.shape, self.indices, self.values)


@dataclass(frozen=True, eq=False, slots=True)
class Sampled(_ByContent):
    """The kept values at the places that `seed` stands for; zero elsewhere."""

    shape: tuple[int, ...]
    seed: int
    values: Symbols

    def to_tensor(self) -> Tensor:
        count = prod(self.values.shape)
        return _scattered(self.shape, sample_indices(self.seed, prod(self.shape), count), self.values)


@dataclass(frozen=True, eq=False, slots=True)
class Columns(_ByContent):
    """Whole columns (positions in the last dimension), in rising order; zero elsewhere."""

    shape: tuple[int, ...]
    columns: Array
    values: Symbols  # [rows, kept columns]

    def to_tensor(self) -> Tensor:
        width = self.shape[-1] if self.shape else 1
        full = np.zeros((prod(self.shape) // width, width), dtype=np.float32)
        full[:, self.columns] = self.values.to_tensor().numpy().reshape(full.shape[0], -1)
        return _tensor(full, self.shape)


def _scattered(shape: tuple[int, ...], indices: Array, values: Symbols) -> Tensor:
    full = np.zeros(prod(shape), dtype=np.float32)
    full[indices] = values.to_tensor().numpy().reshape(-1)
    return torch.from_numpy(full.reshape(shape))


@dataclass(frozen=True, eq=False, slots=True)
class Levels(_ByContent):
    """2^bits bins of equal width between `low` and `high`; a value is the middle of its bin."""

    shape: tuple[int, ...]
    codes: Array  # 0 .. 2^bits - 1
    low: float
    high: float
    bits: int

    def to_tensor(self) -> Tensor:
        step = (self.high - self.low) / 2**self.bits
        values = self.codes.astype(_working(max(abs(self.low), abs(self.high)), self.bits > 8))
        values *= step
        values += self.low + step / 2
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Dithered(Levels):
    """2^bits levels from `low` to `high`, each value shifted by a dither that `seed` stands for."""

    seed: int

    def to_tensor(self) -> Tensor:
        step = (self.high - self.low) / (2**self.bits - 1)
        middle = self.low + step / 2
        values = np.empty(self.codes.size, _working(max(abs(self.low), abs(self.high)), self.bits > 8))
        dither = Keystream.from_seed(self.seed)
        for block in blocks(values.size):
            place = np.subtract(self.codes[block], dither.uniform(self.codes[block].size), dtype=values.dtype)
            place *= step
            np.add(place, middle, out=values[block])
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class UniformGrid(_ByContent):
    """Integers times one step."""

    shape: tuple[int, ...]
    codes: Array
    step: float

    def to_tensor(self) -> Tensor:
        values = self.codes.astype(_working(self.step, _reach(self.codes) > 1 << 15))
        values *= self.step
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class RowGrid(_ByContent):
    """Integers from -top to top; a row's `top` stands for its scale."""

    shape: tuple[int, ...]
    codes: Array
    scales: Array  # float32, one a row
    top: int

    def to_tensor(self) -> Tensor:
        values = self.codes.reshape(self.scales.size, -1).astype(np.float32)
        values /= self.top
        values *= self.scales[:, None]
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Product(_ByContent):
    """Levels along a few directions; a direction is its column of the basis times 2^-shift."""

    shape: tuple[int, ...]
    levels: Array  # [rows, directions], below MOST_LEVEL
    basis: Array  # [columns, directions], up to 2^MOST_SHIFT
    shifts: Array  # uint8, one a direction, up to MOST_SHIFT
    step: float

    def to_tensor(self) -> Tensor:
        finest = int(self.shifts.max())
        basis = self.basis.astype(np.float64) * np.exp2(finest - self.shifts.astype(np.float64))
        values = self.levels.astype(np.float64) @ basis.T  # whole numbers: exact
        values *= self.step * 2.0**-finest
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Entries(_ByContent):
    """A value is an entry of its column's book; a tensor of fewer than two dimensions is one column."""

    shape: tuple[int, ...]
    sizes: Array  # entries of each book, up to MOST_ENTRIES
    values: Array  # float32, book after book; each rises, -0.0 below 0.0
    codes: Array  # below the size of their column's book

    def to_tensor(self) -> Tensor:
        if self.sizes.size == 1:
            return _tensor(self.values.take(self.codes), self.shape)
        starts = np.cumsum(self.sizes, dtype=np.int64) - self.sizes
        return _tensor(self.values.take(self.codes.reshape(-1, self.sizes.size) + starts), self.shape)


def count_columns(shape: tuple[int, ...]) -> int:
    """Of a tensor whose columns have books of their own."""
    return shape[-1] if len(shape) > 1 else 1


def order_floats(bits: Array) -> Array:
    """float32s as int32 <-> integers in the order of the floats, -0.0 below 0.0."""
    ordered: Array = bits >> 31
    ordered &= 0x7FFFFFFF
    ordered ^= bits
    return ordered


@dataclass(frozen=True, eq=False, slots=True)
class Signs(_ByContent):
    """+scale where the bit is 1, -scale where it is 0."""

    shape: tuple[int, ...]
    bits: Array  # uint8, 0 or 1
    scale: float

    def to_tensor(self) -> Tensor:
        # Arithmetic rather than a choice: as exact, and without mispredicted branches.
        values = self.bits.astype(np.float32)
        values += values
        values -= np.float32(1)
        values *= np.float32(self.scale)
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Lattice(_ByContent):
    """Points of the hexagonal lattice, a pair of values each.

    In units of the lattice's minimal distance, the point of (row, column) lies at
    (column + 1/2 if the row is odd, row * sqrt(3)/2). Its cell has the area 4^-bits in a square whose
    side is high - low, and (0, 0) is the middle of that square. An odd last value has no partner.
    """

    shape: tuple[int, ...]
    rows: Array
    columns: Array
    low: float
    high: float
    bits: float
    seed: int | None

    def to_tensor(self) -> Tensor:
        distance, height = lattice_spacing(self.low, self.high, self.bits)
        values = np.empty((self.rows.size, 2), _working(max(abs(self.low), abs(self.high)), self.bits > 8))
        dither = Keystream.from_seed(self.seed or 0)
        for pairs in blocks(self.rows.size):
            across = (self.rows[pairs] & 1).astype(values.dtype)
            across *= 0.5
            across += self.columns[pairs]
            up = self.rows[pairs].astype(values.dtype)
            if self.seed is not None:
                shift_across, shift_up = lattice_dither(dither, up.size)
                across -= shift_across
                up -= shift_up
            across *= distance
            up *= height
            values[pairs, 0] = across
            values[pairs, 1] = up
            values[pairs] += self.low + (self.high - self.low) / 2
        return _tensor(values.reshape(-1)[: prod(self.shape)], self.shape)


def lattice_spacing(low: float, high: float, bits: float) -> tuple[float, float]:
    """The distance of neighbours in a row, and of rows, for a cell of 4^-bits of the square's area."""
    distance = (high - low) * sqrt(2.0 / sqrt(3.0)) * 2.0**-bits
    return distance, distance * sqrt(3.0) / 2.0


def lattice_dither(stream: Keystream, pairs: int) -> tuple[Array, Array]:
    """A shift uniform over a cell for each pair: (across in neighbour distances, up in row distances)."""
    uniform = stream.uniform(2 * pairs)
    up = uniform[1::2].copy()
    across = 0.5 * up
    across += uniform[0::2]
    return across, up


@dataclass(frozen=True, eq=False, slots=True)
class Counts(_ByContent):
    """Successes in `trials` throws of each of `parties`, added up; masked counts live below `modulus`."""

    shape: tuple[int, ...]
    counts: Array  # 0 .. modulus - 1
    modulus: int
    trials: int
    beta: float
    bound: float
    parties: int = 1

    def to_tensor(self) -> Tensor:
        scale = self.bound / (self.beta * self.trials)
        values = self.counts.astype(_working(scale, self.modulus > 1 << 16))
        values -= self.trials * self.parties / 2
        values *= scale
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class LevelSum(_ByContent):
    """The levels of `parties`, added up; each value less the dithers that `seeds` stand for, where there are any."""

    shape: tuple[int, ...]
    codes: Array  # 0 .. parties (2^bits - 1)
    low: float
    high: float
    bits: int
    parties: int
    seeds: tuple[int, ...]  # one a party, or none

    def to_tensor(self) -> Tensor:
        step = (self.high - self.low) / (2**self.bits - (1 if self.seeds else 0))
        values = self.codes.astype(np.float64)
        for seed in self.seeds:
            dither = Keystream.from_seed(seed)
            for block in blocks(values.size):
                values[block] -= dither.uniform(values[block].size)
        values *= step
        values += self.parties * (self.low + step / 2)
        return _tensor(values, self.shape)


@dataclass(frozen=True, eq=False, slots=True)
class Masked(_ByContent):
    """One party's integers under masks, uniform below `modulus`, a power of two; `seed` is its dither's."""

    shape: tuple[int, ...]
    values: Array
    modulus: int
    seed: int | None = None

    def to_tensor(self) -> Tensor:
        raise Malformed("masked values mean nothing on their own; only the sum over all parties can be decoded")
