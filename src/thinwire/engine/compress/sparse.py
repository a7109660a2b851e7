"""Values as they are: all of them (`Identity`), rounded to a narrower float (`Cast`), the largest and where they are
(`TopK`), or random ones that a seed names (`RandK`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.compress.compressor import Compressor, ErrorBound, Hint, Promise, Remembers
from thinwire.engine.compress.message import Array, MessageValues, message_values, require_message
from thinwire.engine.compress.parameters import (
    Diminishing,
    DiminishingError,
    ErrorRule,
    Schedule,
    at_round,
    check_choice,
    check_number,
    follows_error,
)
from thinwire.engine.compress.randomness import Randomness, draw_seed, sample_indices
from thinwire.engine.compress.symbols import Columns, Dense, Narrow, Sampled, Sparse, Symbols, Zeros


@dataclass(frozen=True, slots=True)
class Identity(Compressor):
    """Every value exactly, in its own dtype.

    The symbols share the tensor's memory: encode them before the tensor changes.

    Examples:
        >>> import torch
        >>> x = torch.rand(2, 3)
        >>> tw.compress.Identity().compress(x, torch.Generator()).to_tensor().equal(x)
        True
    """

    promise = Promise.CONTRACTION

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Dense:
        return dense(require_message(x, finite=True))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        return ErrorBound(0.0, 0.0)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return 1.0


def dense(x: Tensor) -> Dense:
    """The tensor's own bits; shares its memory, so encode it before that changes."""
    bits = x.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else x.numpy()
    values = bits.reshape(-1)
    values.flags.writeable = False  # they are the tensor's
    return Dense(tuple(x.shape), x.dtype, values)


# dtype, half a unit in the last place of a normal number, and of a denormal one
_FORMATS = {"float16": (torch.float16, 2.0**-11, 2.0**-25), "bfloat16": (torch.bfloat16, 2.0**-8, 2.0**-134)}

_FLOAT16_MOST = 65520.0  # from here on, the nearest float16 is infinity


@dataclass(frozen=True, slots=True)
class Cast(Compressor):
    """Each value rounded to `dtype`, "float16" or "bfloat16"; it comes back as float32.

    float16 keeps 11 bits up to 65504 and loses values below 3e-8; bfloat16 keeps 8 bits over the whole
    range of float32. Not a contraction: what is too small for the format is lost.

    Args:
        dtype: "float16" or "bfloat16".

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.Cast().compress(x, rng))) < 4 * x.numel()
        True
    """

    dtype: str = "float16"

    promise = Promise.BOUNDED

    def __post_init__(self) -> None:
        if isinstance(self.dtype, torch.dtype):
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        check_choice(self, "dtype", tuple(_FORMATS))

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Narrow:
        message = message_values(x)
        self._require_range(message)
        target, _, _ = _FORMATS[self.dtype]
        most = torch.finfo(target).max  # rounding up from there would be infinity
        values = torch.from_numpy(message.values).clamp(-most, most).to(target)
        return Narrow(dense(values.reshape(message.shape)))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        self._require_range(message)
        _, relative, absolute = _FORMATS[self.dtype]
        error = np.maximum(np.abs(message.values.astype(np.float64)) * relative, absolute)
        return ErrorBound.of(message, float(np.sum(np.square(error))))

    def _require_range(self, message: MessageValues) -> None:
        if self.dtype == "float16" and message.largest > _FLOAT16_MOST:
            raise BadTensor(
                f"Cast: the value {message.largest:g} does not fit float16; "
                "use Cast('bfloat16'), which has the range of float32, or Identity()"
            )


# Some of the values: the largest and where they are (`TopK`), or random ones that a seed names (`RandK`) ----------


_SAMPLED_FROM = 1 << 14  # below this a full selection is as fast


@dataclass(frozen=True, slots=True)
class TopK(Compressor):
    """The k = max(1, int(fraction * n)) of the message's n values that matter most; the others are 0.

    scope="message" (EF-VFL): n values of the whole message. scope="row" (C-VFL): k of the n values of each
    embedding, so that no row is left out.
    select="magnitude": the largest |x|; contraction k/n. Equal ones: the first.
    select="derivative": the largest |dL/dh| at the row's last visit; by magnitude on a first visit.
    select="columns": whole columns by the mean |dL/dh| of the previous round, one index set a message.
    The last two promise no contraction, so error feedback refuses them.

    Args:
        fraction: of the values that is kept, above 0 and at most 1; or a schedule of it.
        select: "magnitude", "derivative" or "columns".
        scope: "message" or "row".

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.TopK(0.1).compress(x, rng))) < 4 * x.numel()
        True
    """

    fraction: float | Schedule
    select: str = "magnitude"
    scope: str = field(default="message", metadata={"newer": True})

    selects: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self, "fraction", above=0, up_to=1, error_rule=True)
        check_choice(self, "select", ("magnitude", "derivative", "columns"))
        check_choice(self, "scope", ("message", "row"))
        if self.scope == "row" and self.select == "columns":
            raise BadParameter.about(
                "TopK", "scope", "'row' chooses for each row, and select='columns' for all rows alike; leave one out"
            )

    @property
    def promise(self) -> Promise:
        return Promise.CONTRACTION if self.select == "magnitude" else Promise.NONE

    @property
    def remembers(self) -> Remembers:
        return {"derivative": Remembers.ROWS, "columns": Remembers.COLUMNS}.get(self.select, Remembers.NOTHING)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        if message.largest == 0:
            return Zeros(message.shape)
        if self.select == "columns":
            return self._columns(message, hint)
        weights = message.values
        if self.select == "derivative" and hint.derivative is not None:
            weights = _same_shape(hint.derivative, message)
        count = self._count(message, self._size(message.shape), hint.round)
        if self.scope == "row":
            indices = _largest_of_rows(np.abs(weights).reshape(-1, _row_width(message.shape)), count)
        else:
            indices = largest_indices(np.abs(weights), count)
        return Sparse(message.shape, indices, dense(torch.from_numpy(message.values[indices])))

    def _columns(self, message: MessageValues, hint: Hint) -> Columns:
        width = _row_width(message.shape)
        table = message.values.reshape(-1, width)
        weights = table
        if hint.derivative is not None:
            derivative = require_message(hint.derivative)
            if derivative.dim() == 0 or derivative.shape[-1] != width:
                raise BadTensor(
                    f"TopK: the hint's derivative has shape {tuple(derivative.shape)}, not {width} columns"
                )
            weights = message_values(derivative).values.reshape(-1, width)
        columns = largest_indices(
            np.abs(weights).mean(axis=0, dtype=np.float64), self._count(message, width, hint.round)
        )
        kept = np.ascontiguousarray(table[:, columns])
        return Columns(message.shape, columns, dense(torch.from_numpy(kept)))

    def _size(self, shape: tuple[int, ...]) -> int:
        """Of what the k largest are chosen from: the message, or a row of it."""
        return prod(shape) if self.scope == "message" else _row_width(shape)

    def _count(self, message: MessageValues, size: int, round: int) -> int:
        """How many of `size` values or columns this message keeps."""

        def rule() -> ErrorRule:
            # k_t = ceil(P (1 - E_t / (B |h|^2_max))) per row of width P
            rows, width = message.rows, message.size // message.rows
            squares = np.square(message.working(precise=True)).reshape(rows, width).sum(axis=1)
            most = rows * float(squares.max())
            return ErrorRule(lambda f: most * (1 - f), lambda error: ceil(width * (1 - error / most)) / width)

        fraction = at_round(self.fraction, round, rule)
        if follows_error(self.fraction):
            fraction = (fraction * size + 0.5) / size  # a whole number of columns: not to be cut to one less
        return min(size, _count(fraction, size))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        if message.largest == 0:
            return ErrorBound(0.0, 0.0)
        kept = 0.0
        if self.select == "magnitude":
            size = self._size(message.shape)
            kept = self._count(message, size, hint.round) / size
        return ErrorBound.of(message, (1 - kept) * message.squared_norm())

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        if self.select != "magnitude":
            return 0.0
        size = self._size(shape)
        match self.fraction:
            case Diminishing(start):
                fraction = start  # it only grows from there
            case DiminishingError():
                fraction = 0.0  # depends on the message; one value is kept at least
            case _:
                fraction = at_round(self.fraction, round)
        return _count(fraction, size) / size


def _count(fraction: float, size: int) -> int:
    return max(1, int(fraction * size))


def _same_shape(derivative: Tensor, message: MessageValues) -> Array:
    derivative = require_message(derivative)
    if tuple(derivative.shape) != message.shape:
        raise BadTensor(
            f"TopK: the hint's derivative has shape {tuple(derivative.shape)}, the message {message.shape}"
        )
    return message_values(derivative).values


def _row_width(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 1


def _largest_of_rows(weights: Array, count: int) -> Array:
    """The flat places of each row's `count` largest weights, in rising order; among equals the first ones."""
    columns = np.sort(np.argsort(-weights, axis=1, kind="stable")[:, :count], axis=1)
    places: Array = columns + weights.shape[1] * np.arange(len(weights))[:, None]
    return places.reshape(-1)


def largest_indices(weights: Array, count: int) -> Array:
    """The places of the `count` largest weights in rising order; among equals the first ones."""
    candidates = _candidates(weights, count)
    here = weights if candidates is None else weights[candidates]
    least = np.partition(here, here.size - count)[here.size - count]
    kept = here > least
    equal = np.flatnonzero(here == least)
    kept[equal[: count - int(np.count_nonzero(kept))]] = True
    return np.flatnonzero(kept) if candidates is None else candidates[kept]


def _candidates(weights: Array, count: int) -> Array | None:
    """A superset of the answer, from a threshold that a sample suggests; None where all must be looked at."""
    size = weights.size
    if size < _SAMPLED_FROM or count > size // 8:
        return None
    stride = max(1, size // (1 << 14)) | 1  # odd: even widths would be sampled in one column only
    sample = weights[::stride]
    wanted = count * sample.size / size
    rank = int(wanted + 4 * wanted**0.5 + 4)
    if rank >= sample.size:
        return None
    threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
    candidates = np.flatnonzero(weights >= threshold)
    return candidates if candidates.size >= count else None


# Random values; a seed says which ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RandK(Compressor):
    """k = max(1, int(fraction * n)) of the message's n values, drawn at random; the others are 0.

    Their places cost 8 bytes in all: the seed travels, not the indices. The values are not scaled up,
    so this is a contraction (k/n on average) and not unbiased.

    Args:
        fraction: of the values that is kept; or a schedule of it.

    Raises:
        BadParameter: a setting is out of its range; the message names it and the range.

    Examples:
        >>> import torch
        >>> x, rng = torch.linspace(-1, 1, 64).reshape(8, 8), torch.Generator().manual_seed(0)
        >>> len(tw.wire.encode(tw.compress.RandK(0.1).compress(x, rng))) < 4 * x.numel()
        True
    """

    fraction: float | Schedule

    selects: ClassVar[bool] = True

    promise = Promise.CONTRACTION

    def __post_init__(self) -> None:
        check_number(self, "fraction", above=0, up_to=1)

    def compress(self, x: Tensor, rng: Randomness, hint: Hint = Hint()) -> Symbols:
        message = message_values(x)
        seed = draw_seed(rng)
        if message.largest == 0:
            return Zeros(message.shape)
        indices = sample_indices(seed, message.size, self._count(message.size, hint.round))
        return Sampled(message.shape, seed, dense(torch.from_numpy(message.values[indices])))

    def _count(self, size: int, round: int) -> int:
        return max(1, int(at_round(self.fraction, round) * size))

    def error_bound(self, x: Tensor, hint: Hint = Hint()) -> ErrorBound:
        message = message_values(x)
        squared_norm = message.squared_norm()
        kept = self._count(message.size, hint.round) / message.size
        return ErrorBound.of(message, (1 - kept) * squared_norm, squared_norm)

    def contraction(self, shape: tuple[int, ...], round: int = 0) -> float:
        return self._count(prod(shape), round) / prod(shape)
