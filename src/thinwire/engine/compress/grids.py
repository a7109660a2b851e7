"""Integers in units of the message's standard deviation, value by value (`StdGrid`) or along the few directions that
its rows vary in (`Directions`); or of each row's largest value (`RowScale`)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from math import prod, sqrt

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.adding import AddingGrids
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise
from thinwire.engine.compress.message import Array, MessageValues, blocks, message_values
from thinwire.engine.compress.parameters import Schedule, at_round, check_flag, check_number, check_whole, reaches
from thinwire.engine.compress.randomness import Keystream, Randomness, keystream
from thinwire.engine.compress.symbols import (
    MOST_LEVEL,
    MOST_SHIFT,
    Product,
    RowGrid,
    Symbols,
    UniformGrid,
    Zeros,
    codes_dtype,
)

_MOST_CODE = 2**31 - 4
_MOST_LIMIT = 32767
_LARGEST = "largest"


@dataclass(frozen=True, slots=True)
class _Stepped(Compressor):
    """Steps of a number of deviations; nearest, or stochastic. A message of zeros is left as it is."""

    step: float | Schedule
    stochastic: bool = False

    promise = Promise.BOUNDED

    @property
    def suits_error_feedback(self) -> bool:
        return not self.stochastic or reaches(self.step)[1] <= self._most_stochastic

    @property
    def _most_stochastic(self) -> float:
        # E|error|^2 = sum |x| (step - |x|) over small values, more than |x|^2 for large steps.
        return 2.0

    def __post_init__(self) -> None:
        check_number(self, "step", above=0, up_to=1e30)
        check_flag(self, "stochastic")

    def _check_least_rows(self) -> None:
        check_whole(self, "least_rows", 1, 2**31, optional=True)
        if getattr(self, "least_rows", None) is not None and not self.stochastic:
            raise BadParameter.about(self, "least_rows", "applies to stochastic rounding; also set stochastic=True")

    def _steps(self, hint: Hint) -> tuple[float, float]:
        """The step at this round and level, and the finest one there is."""
        return at_round(self.step, hint.round, level=hint.level), reaches(self.step)[0]

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        bits = keystream(rng) if self.stochastic else None
        return self._compress(message, bits, hint) if message.largest else Zeros(message.shape)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        return self._error_bound(message, hint) if message.largest else ErrorBound(0.0, 0.0)

    @abstractmethod
    def _compress(self, message: MessageValues, bits: Keystream | None, hint: Hint) -> Symbols: ...

    @abstractmethod
    def _error_bound(self, message: MessageValues, hint: Hint) -> ErrorBound: ...


@dataclass(frozen=True, slots=True)
class StdGrid(_Stepped):
    """The integers next to x / (step * scale), as many as there are.

    `scale` is the message's standard deviation unless given (its root mean square where the deviation
    is below a thousandth of that: a constant message). Nearest, or stochastic: up or down at random
    so that the mean is right. The error is at most half a step (a whole one if stochastic) a value; it
    is not a contraction. Under error feedback take a step below 2: from there on nearest may stall (values
    that all round to 0 stay there) and stochastic makes the error grow, so that it is refused above 2.
    With a `limit` integers go from -limit to limit, and what lies beyond is truncated: with a fixed scale a
    secure sum can then add them. scale="largest" is the message's largest |x|: a step of 1 / k has levels at 0, at
    both ends and k - 1 between, so StdGrid(1 / 3, stochastic=True, scale="largest") is an unbiased 3-bit quantiser.

    Random rounding is noise on top of a mini-batch's own, as if the batch had fewer rows. With `least_rows` the step
    is halved, down to the finest of `Refining`, until the message is worth as many rows as that.

    Args:
        step: in units of `scale`; or a schedule of it, such as `tw.compress.Refining`.
        stochastic: round up or down at random, so that the mean is right.
        scale: the message's standard deviation unless given; a number, or "largest".
        limit: largest integer; values beyond are cut off.
        least_rows: rows that a batch must be worth after random rounding.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.StdGrid(1.0).compress(x, rng))) < 4 * x.numel()
        True
    """

    scale: float | str | None = None
    limit: int | None = None
    least_rows: int | None = field(default=None, metadata={"newer": True})

    def __post_init__(self) -> None:
        _Stepped.__post_init__(self)
        self._check_least_rows()
        if not isinstance(self.scale, str):
            check_number(self, "scale", above=0, up_to=1e30, optional=True)
        elif self.scale != _LARGEST:
            raise BadParameter.about(self, "scale", f"must be a positive number or {_LARGEST!r}, got {self.scale!r}")
        check_whole(self, "limit", 1, _MOST_LIMIT, optional=True)

    @property
    def _most_stochastic(self) -> float:
        # What is left of any value is then at most half of the largest.
        return 0.5 if self.scale == _LARGEST else 2.0

    @property
    def is_fixed(self) -> bool:
        """Does a value's integer depend on the value alone?"""
        return isinstance(self.step, float | int) and isinstance(self.scale, float | int) and not self.stochastic

    def at_once(self) -> StdGrid:
        return self if self.limit is None else replace(self, limit=_MOST_LIMIT)

    def adding(self, round: int = 0) -> AddingGrids | None:
        if self.scale is None or isinstance(self.scale, str) or self.limit is None:
            return None
        return AddingGrids(at_round(self.step, round) * self.scale, self.limit)

    def _compress(self, message: MessageValues, bits: Keystream | None, hint: Hint) -> Symbols:
        step = self._step(message, hint)
        if self.limit is None and message.largest >= step * _MOST_CODE:
            raise BadTensor(
                f"StdGrid: the value {message.largest:g} is over 2^31 steps of {step:g}; use a larger step or scale"
            )
        values = message.working(precise=message.largest > step * 2**16)
        most = _MOST_CODE if self.limit is None else self.limit
        # And a unit of rounding.
        low, high = max(-most, int(message.lowest / step) - 2), min(most, int(message.highest / step) + 2)
        codes = np.empty(message.size, codes_dtype(min(low, -1), high))
        for block in blocks(message.size):
            place = values[block] * (1 / step)
            if bits is None:
                np.rint(place, out=place)
            else:
                place += bits.uniform(place.size)
                np.floor(place, out=place)
            if self.limit is not None:
                np.clip(place, -self.limit, self.limit, out=place)
            codes[block] = place
        return UniformGrid(message.shape, codes, step)

    def _step(self, message: MessageValues, hint: Hint) -> float:
        step, finest = self._steps(hint)
        if isinstance(self.scale, str):
            unit = message.largest
        else:
            unit = self.scale if self.scale is not None else deviation(message)
        if self.least_rows is None:
            return step * unit
        values = message.working()
        return unit * _refine(values / unit, step, finest, message.rows / self.least_rows)

    def _error_bound(self, message: MessageValues, hint: Hint) -> ErrorBound:
        step = self._step(message, hint)
        half = message.size * step**2 / 4
        if self.limit is not None:
            beyond = np.maximum(np.abs(message.working(precise=True)) - self.limit * step, 0.0)
            half += float(np.sum(beyond * (beyond + 2 * step)))
        # Stochastic: f (1 - f) of a squared step on average for the fraction f, at most a quarter.
        return ErrorBound.of(message, half, 4 * half if self.stochastic else half)


def _refine(values: Array, step: float, finest: float, rows_to_spare: float) -> float:
    """The coarsest step at which random rounding leaves a batch's worth: its noise is as that of fewer rows."""
    energy = float(np.mean(np.square(values, dtype=np.float64)))
    while step > finest:
        part = values / step
        part -= np.floor(part)
        noise = step**2 * float(np.mean(part * (1 - part), dtype=np.float64))
        if noise <= (rows_to_spare - 1) * energy:
            break
        step = max(step / 2, finest)
    return step


def deviation(message: MessageValues) -> float:
    """The standard deviation; the root mean square of a message that is nearly constant."""
    mean = float(np.sum(message.working())) / message.size  # numpy adds in pairs: float32 is exact enough
    deviation = sqrt(message.squared_distance(mean) / message.size)
    rms = sqrt(mean**2 + deviation**2)
    return rms if deviation < rms / 1000 else deviation


# Each row in units of its own largest value -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowScale(Compressor):
    """Integers from -(2^(bits-1) - 1) to 2^(bits-1) - 1, the outermost standing for the row's largest |x|.

    Four bytes per row for the scale. Nearest: the error is at most half a step per value, and since 0 is a
    level and the largest value is exact, a contraction of 1/width. Stochastic: unbiased, no contraction.

    Args:
        bits: of each value, from 2 to 16; or a schedule of them.
        stochastic: round up or down at random, so that the mean is right.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.RowScale(4).compress(x, rng))) < 4 * x.numel()
        True
    """

    bits: int | Schedule
    stochastic: bool = False

    def __post_init__(self) -> None:
        check_whole(self, "bits", 2, 16)  # one bit has no level for 0: that is Sign
        check_flag(self, "stochastic")

    @property
    def promise(self) -> Promise:
        return Promise.BOUNDED if self.stochastic else Promise.CONTRACTION

    @property
    def suits_error_feedback(self) -> bool:
        # Stochastic with the levels -1, 0 and 1 alone adds more than a wide row holds.
        return not self.stochastic or reaches(self.bits)[0] >= 3

    @property
    def is_fixed(self) -> bool:
        """Do a row's symbols depend on the row alone?"""
        return isinstance(self.bits, int) and not self.stochastic

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> RowGrid:
        message = message_values(x)
        top = self._top(hint.round)
        table = message.values.reshape(message.rows, -1)
        scales = _scales(message)
        places = table / np.where(scales > 0, scales, np.float32(1))[:, None]
        places *= top
        if self.stochastic:
            places += keystream(rng).uniform(message.size).reshape(places.shape)
            np.floor(places, out=places)
        else:
            np.rint(places, out=places)
        np.clip(places, -top, top, out=places)
        return RowGrid(message.shape, places.astype(codes_dtype(-top, top)).reshape(-1), scales, top)

    def _top(self, round: int) -> int:
        return int(2 ** (int(at_round(self.bits, round)) - 1) - 1)

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        steps = _scales(message).astype(np.float64) / self._top(hint.round)
        half = message.size / message.rows * float(np.sum(np.square(steps))) / 4
        if self.stochastic:
            return ErrorBound.of(message, half, 4 * half)
        contracted = (1 - self.contraction(message.shape)) * message.squared_norm()
        return ErrorBound.of(message, min(half, contracted))

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        if self.stochastic:
            return 0.0
        return (shape[0] if len(shape) > 1 else 1) / prod(shape)


def _scales(message: MessageValues) -> Array:
    scales: Array = np.abs(message.values).reshape(message.rows, -1).max(axis=1)
    return scales


# Integers along the few directions that a message's rows vary in: wide embeddings have far fewer than columns -----


_KEEP = 0.25  # steps that rows must vary by along a direction; with less, nearly all levels are 0
_FINE = 0.5  # the basis adds a quarter of this, squared, to the levels' own error
_SAMPLE = 1024  # rows to find directions from
_SPARE = 8  # directions more than asked for make the last ones right
_PASSES = 3


@dataclass(frozen=True, slots=True)
class Directions(_Stepped):
    """Integers along the directions in which rows vary most, at most `most` of them.

    x ~ step * levels [rows, r] * basis [r, columns], with levels in units of step * standard deviation. The basis
    travels with every message, as integers too, so neither end keeps state and both compute the same product.
    Directions in which rows hardly differ are left out. Under error feedback choose a step below 2, as for StdGrid.

    Args:
        step: grid step in standard deviations; or a schedule of it.
        stochastic: round up or down at random, so that the mean along the sent directions is right.
        most: largest number of directions.
        least_rows: rows that a batch must be worth after random rounding, as for StdGrid.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> import torch
        >>> x = torch.outer(torch.linspace(-1, 1, 64), torch.ones(8))  # rows differ in one direction
        >>> decoded = tw.compress.Directions(0.1).compress(x, torch.Generator()).to_tensor()
        >>> bool((decoded - x).abs().max() < 0.1)
        True
    """

    most: int = 64
    least_rows: int | None = field(default=None, metadata={"newer": True})

    def __post_init__(self) -> None:
        _Stepped.__post_init__(self)
        check_whole(self, "most", 1, 256)
        self._check_least_rows()

    def _compress(self, message: MessageValues, bits: Keystream | None, hint: Hint) -> Symbols:
        found = self._along(message, hint)
        levels = _levels(found.places / found.step, bits)
        used = levels.any(axis=0)
        if not used.any():
            return Zeros(message.shape)
        step = found.step * message.largest
        levels, basis = levels[:, used], found.basis[:, used]
        return Product(message.shape, _narrow(levels), _narrow(basis), found.shifts[used], step)

    def _error_bound(self, message: MessageValues, hint: Hint) -> ErrorBound:
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
        step, finest = (part * deviation(message) / message.largest for part in self._steps(hint))
        vectors, spread = _directions(torch.from_numpy(table), self.most)
        if self.least_rows is not None:
            along = table @ vectors.astype(np.float32)
            step = _refine(along, step, finest, message.rows / self.least_rows)
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
