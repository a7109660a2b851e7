"""Integers along the few directions that a message's rows vary in: wide embeddings have far fewer than columns.

    x  ~  step * levels [rows, r] * basis [r, columns]

The basis travels with every message, as integers too: nothing has to be remembered, and both ends compute
the product exactly. Directions in which rows hardly differ are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
from torch import Tensor

from thinwire.engine.compress.compressor import (
    Compressor,
    ErrorBound,
    Hint,
    Promise,
    check_flag,
    check_number,
    check_whole,
)
from thinwire.engine.compress.grids import deviation
from thinwire.engine.compress.message import Array, MessageValues, message_values
from thinwire.engine.compress.randomness import Keystream, Randomness, keystream
from thinwire.engine.compress.schedules import Schedule, at_round, reaches
from thinwire.engine.compress.symbols import MOST_LEVEL, MOST_SHIFT, Product, Symbols, Zeros, codes_dtype

_KEEP = 0.25  # steps that rows must vary by along a direction; with less, nearly all levels are 0
_FINE = 0.5  # the basis adds a quarter of this, squared, to the levels' own error
_SAMPLE = 1024  # rows to find directions from
_SPARE = 8  # directions more than asked for make the last ones right
_PASSES = 3


@dataclass(frozen=True, slots=True)
class Directions(Compressor):
    """The integers next to (x along each direction) / (step * standard deviation), for `most` directions at most.

    Nearest, or stochastic: up or down at random, so that the mean is right along the directions that are sent.
    Under error feedback take a step below 2, as for StdGrid.
    """

    step: float | Schedule
    stochastic: bool = False
    most: int = 64

    def __post_init__(self) -> None:
        check_number(self, "step", above=0, up_to=1e30)
        check_flag(self, "stochastic")
        check_whole(self, "most", 1, 256)

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED

    @property
    def suits_error_feedback(self) -> bool:
        return not self.stochastic or reaches(self.step)[1] <= 2

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        bits = keystream(rng) if self.stochastic else None
        if message.largest == 0:
            return Zeros(message.shape)
        found = self._along(message, hint)
        levels = _levels(found.places / found.step, bits)
        used = levels.any(axis=0)
        if not used.any():
            return Zeros(message.shape)
        step = found.step * message.largest
        levels, basis = levels[:, used], found.basis[:, used]
        return Product(message.shape, _narrow(levels), _narrow(basis), found.shifts[used], step)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        if message.largest == 0:
            return ErrorBound(0.0, 0.0)
        found = self._along(message, hint)
        scaled = found.basis * np.exp2(-found.shifts.astype(np.float64))
        left = _table(message).astype(np.float64) - found.places @ scaled.T
        outside = float(np.sum(np.square(left)))
        stretch = float(np.linalg.norm(scaled, 2)) if scaled.size else 0.0
        half = found.places.size * (stretch * found.step / 2) ** 2
        unit = message.largest**2
        if self.stochastic:
            return ErrorBound.of(message, unit * (outside + half), unit * (sqrt(outside) + 2 * sqrt(half)) ** 2)
        return ErrorBound.of(message, unit * (sqrt(outside) + sqrt(half)) ** 2)

    def _along(self, message: MessageValues, hint: Hint) -> _Along:
        """Everything in units of the largest value: then squares neither over- nor underflow."""
        table = _table(message)
        step = at_round(self.step, hint.round) * deviation(message) / message.largest
        vectors, spread = _directions(torch.from_numpy(table), self.most)
        kept = spread > _KEEP * step
        vectors, spread = vectors[:, kept], spread[kept]
        shifts = _shifts(vectors, spread, step)
        basis = np.rint(vectors * np.exp2(shifts))
        scaled = basis * np.exp2(-shifts)
        # The nearest point of the span of the rounded directions, which are no longer quite at right angles.
        places = (table @ scaled.astype(np.float32)).astype(np.float64) @ np.linalg.pinv(scaled.T @ scaled)
        highest = float(np.abs(places).max(initial=0.0))
        return _Along(places, basis.astype(np.int32), shifts.astype(np.uint8), max(step, highest / (MOST_LEVEL - 1)))


@dataclass(frozen=True, slots=True)
class _Along:
    """A message along its directions."""

    places: Array  # [rows, r]
    basis: Array  # [columns, r], integers
    shifts: Array  # [r]; a direction is its integers times 2^-shift
    step: float


def _table(message: MessageValues) -> Array:
    """[rows, columns] between -1 and 1; a vector or scalar is one row."""
    width = message.shape[-1] if message.shape else 1
    scaled = message.values / np.float64(message.largest)
    return scaled.astype(np.float32).reshape(-1, width)


def _directions(table: Tensor, most: int) -> tuple[Array, Array]:
    """Orthonormal columns, the strongest first, and how far rows reach along each, as a root mean square."""
    rows, width = table.shape
    sample = table[:: -(-rows // _SAMPLE)]
    count = min(most, rows) + _SPARE
    if width <= 2 * count:
        start = torch.eye(width)
    else:
        # Powers of the table turn random directions towards the strongest.
        start = torch.randn(width, count, generator=torch.Generator().manual_seed(0))
        squared = sample.T @ sample
        for _ in range(_PASSES):
            start = torch.linalg.qr(squared @ start).Q
    along = (sample @ start).double()
    strengths, turned = torch.linalg.eigh(along.T @ along / len(sample))
    order = torch.argsort(strengths, descending=True)[: min(most, rows)]
    vectors = start.double() @ turned[:, order]
    return vectors.numpy(), strengths[order].clamp(min=0).sqrt().numpy()


def _shifts(vectors: Array, spread: Array, step: float) -> Array:
    """How fine each direction must be: what its rounding adds is small beside what the levels' adds."""
    if not vectors.size:
        return np.zeros(0)
    fine = spread * sqrt(len(vectors)) / (_FINE * step)
    least = 4 / np.abs(vectors).max(axis=0)
    shifts: Array = np.clip(np.ceil(np.log2(np.maximum(fine, least))), 0, MOST_SHIFT)
    return shifts


def _levels(places: Array, bits: Keystream | None) -> Array:
    drawn = 0.5 if bits is None else bits.uniform(places.size).reshape(places.shape)
    levels: Array = np.floor(places + drawn)
    return levels


def _narrow(integers: Array) -> Array:
    low, high = int(integers.min()), int(integers.max())
    return np.ascontiguousarray(integers.astype(codes_dtype(min(low, -1), high)))
