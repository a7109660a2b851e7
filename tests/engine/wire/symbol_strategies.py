"""Every kind of symbols, drawn directly rather than through a compressor."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from thinwire.engine.compress.message import Array
from thinwire.engine.compress.symbols import (
    Columns,
    Counts,
    Dense,
    Dithered,
    Entries,
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
    count_columns,
    order_floats,
)

shapes = st.lists(st.integers(1, 12), max_size=3).map(tuple)
seeds = st.integers(0, 2**64 - 1)
float32s = st.floats(width=32, allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-300, max_value=1e249)

LAYOUTS = {torch.float32: np.float32, torch.float64: np.float64, torch.float16: np.float16, torch.bfloat16: np.uint16}

TWO_BYTES = [torch.float16, torch.bfloat16]


@st.composite
def integers(draw: st.DrawFn, count: int, low: int, high: int) -> Array:
    """Arrays that suit each of the codings: anything, a few values, mostly one value, a constant."""
    style = draw(st.sampled_from(["any", "few", "mostly one", "constant", "small"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if style == "constant":
        return np.full(count, draw(st.integers(low, high)))
    if style == "few":
        return rng.choice(rng.integers(low, high, 3, endpoint=True), count)
    if style == "mostly one":
        values = np.full(count, draw(st.integers(low, high)))
        places = rng.random(count) < 0.05
        values[places] = rng.integers(low, high, int(places.sum()), endpoint=True)
        return values
    if style == "small":
        return np.clip(low + rng.geometric(0.4, count) - 1, low, high)
    return rng.integers(low, high, count, endpoint=True)


@st.composite
def dense(draw: st.DrawFn, shape: tuple[int, ...] | None = None, dtypes: list[torch.dtype] | None = None) -> Dense:
    shape = draw(shapes) if shape is None else shape
    dtype = draw(st.sampled_from(dtypes or list(LAYOUTS)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    values = rng.standard_normal(prod(shape))
    if dtype == torch.bfloat16:
        bits = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
        return Dense(shape, dtype, bits.reshape(-1))
    return Dense(shape, dtype, values.astype(LAYOUTS[dtype]).reshape(-1))


@st.composite
def levels(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> Levels | Dithered:
    shape = draw(shapes) if shape is None else shape
    bits = draw(st.integers(1, 16))
    codes = draw(integers(prod(shape), 0, 2**bits - 1))
    low, high = sorted([draw(float32s), draw(float32s)])
    if draw(st.booleans()):
        return Levels(shape, codes, low, high, bits)
    return Dithered(shape, codes, low, high, bits, draw(seeds))


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> UniformGrid:
    shape = draw(shapes) if shape is None else shape
    most = draw(st.sampled_from([1, 7, 100, 40_000, 2**31 - 1]))
    return UniformGrid(shape, draw(integers(prod(shape), -most, most)), draw(positive))


@st.composite
def row_grids(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> RowGrid:
    shape = draw(shapes) if shape is None else shape
    top = draw(st.sampled_from([1, 7, 32767]))
    rows = shape[0] if len(shape) > 1 else 1
    scales = np.abs(np.random.default_rng(draw(st.integers(0, 99))).standard_normal(rows)).astype(np.float32)
    return RowGrid(shape, draw(integers(prod(shape), -top, top)), scales, top)


@st.composite
def signs(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> Signs:
    shape = draw(shapes) if shape is None else shape
    return Signs(shape, draw(integers(prod(shape), 0, 1)).astype(np.uint8), draw(st.floats(1e-40, 1e38)))


@st.composite
def lattices(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> Lattice:
    shape = draw(shapes) if shape is None else shape
    pairs = (prod(shape) + 1) // 2
    far = draw(st.sampled_from([1, 5, 40, 8000]))
    low, high = sorted([draw(float32s), draw(float32s)])
    rows, columns = draw(integers(pairs, -far, far)), draw(integers(pairs, -far, far))
    seed = draw(st.none() | seeds)
    return Lattice(shape, rows.astype(np.int16), columns.astype(np.int16), low, high, draw(st.floats(0, 12)), seed)


@st.composite
def counts(draw: st.DrawFn) -> Counts:
    shape = draw(shapes)
    trials, parties = draw(st.integers(1, 65535)), draw(st.integers(1, 200))
    modulus = draw(st.integers(trials * parties + 1, 2**32))
    values = draw(integers(prod(shape), 0, modulus - 1))
    beta = draw(st.floats(1e-6, 0.25))
    return Counts(shape, values, modulus, trials, beta, draw(st.floats(1e-6, 1e6)), parties)


@st.composite
def level_sums(draw: st.DrawFn) -> LevelSum:
    shape = draw(shapes)
    bits, parties = draw(st.integers(1, 16)), draw(st.integers(1, 60))
    low, high = sorted([draw(float32s), draw(float32s)])
    codes = draw(integers(prod(shape), 0, parties * (2**bits - 1)))
    chosen = tuple(draw(st.lists(seeds, min_size=parties, max_size=parties))) if draw(st.booleans()) else ()
    return LevelSum(shape, codes, low, high, bits, parties, chosen)


@st.composite
def masked(draw: st.DrawFn) -> Masked:
    shape = draw(shapes)
    modulus = 2 ** draw(st.integers(1, 32))
    return Masked(shape, draw(integers(prod(shape), 0, modulus - 1)), modulus, draw(st.none() | seeds))


@st.composite
def entries(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> Entries:
    shape = draw(shapes) if shape is None else shape
    columns = count_columns(shape)
    most = min(256, prod(shape) // columns)
    sizes = draw(integers(columns, 1, most))
    largest = int(np.float32(np.finfo(np.float32).max).view(np.int32))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Integers in the order of floats: -1 is -0.0.
    books = [np.unique(np.append(rng.integers(-largest, largest, size), [-1, 0]))[:size] for size in sizes]
    values = order_floats(np.concatenate(books).astype(np.int32)).view(np.float32)
    codes = draw(integers(prod(shape), 0, most - 1)).reshape(-1, columns) % sizes
    return Entries(shape, sizes, values, codes.reshape(-1))


def values(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Kept values: any kind that keeps them all."""
    return st.one_of(
        dense(shape, [torch.float32]),
        dense(shape, TWO_BYTES).map(Narrow),
        st.just(Zeros(shape)),
        levels(shape),
        grids(shape),
        row_grids(shape),
        signs(shape),
        lattices(shape),
        entries(shape),
    )


@st.composite
def products(draw: st.DrawFn) -> Product:
    shape = draw(shapes)
    width = shape[-1] if shape else 1
    rows = prod(shape) // width
    count = draw(st.integers(1, min(rows, width)))
    levels = draw(integers(rows * count, -(2**15), 2**15)).reshape(rows, count)
    basis = draw(integers(width * count, -(2**14), 2**14)).reshape(width, count)
    shifts = np.array(draw(st.lists(st.integers(0, 14), min_size=count, max_size=count)), np.uint8)
    return Product(shape, levels, basis, shifts, draw(positive))


@st.composite
def sparse(draw: st.DrawFn) -> Sparse:
    shape = draw(st.lists(st.integers(1, 40), max_size=3).map(tuple))
    size = prod(shape)
    count = draw(st.integers(1, size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    indices = np.sort(rng.choice(size, count, replace=False))
    return Sparse(shape, indices, draw(values((count,))))


@st.composite
def sampled(draw: st.DrawFn) -> Sampled:
    shape = draw(shapes)
    return Sampled(shape, draw(seeds), draw(values((draw(st.integers(1, prod(shape))),))))


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    shape = draw(shapes)
    width = shape[-1] if shape else 1
    kept = sorted(draw(st.sets(st.integers(0, width - 1), min_size=1)))
    return Columns(shape, np.array(kept), draw(values((prod(shape) // width, len(kept)))))


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "Dense": dense(),
    "Narrow": dense(dtypes=TWO_BYTES).map(Narrow),
    "Zeros": shapes.map(Zeros),
    "Sparse": sparse(),
    "Sampled": sampled(),
    "Columns": columns(),
    "Levels": levels(),
    "UniformGrid": grids(),
    "RowGrid": row_grids(),
    "Product": products(),
    "Entries": entries(),
    "Signs": signs(),
    "Lattice": lattices(),
    "Counts": counts(),
    "LevelSum": level_sums(),
    "Masked": masked(),
}


def every_kind_of_symbols() -> st.SearchStrategy[Symbols]:
    return st.one_of(*KINDS.values())
