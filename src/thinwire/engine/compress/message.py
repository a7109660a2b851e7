"""A tensor, checked and laid out for the kernels: one flat run of finite float32 values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.base.errors import BadTensor, NotFinite

Array = npt.NDArray[Any]

MOST_DIMENSIONS = 8
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Between these, squares, sums of squares and reciprocals stay normal float32 numbers.
_COMFORT_LOW, _COMFORT_HIGH = 1e-14, 1e14


BLOCK = 1 << 16  # values


def blocks(size: int, step: int = BLOCK) -> Iterator[slice]:
    """Slices that cover `size` values. Temporaries then stay in the cache and in the heap: larger ones are
    mapped and unmapped by the allocator every time, which costs more than the arithmetic."""
    return (slice(start, min(start + step, size)) for start in range(0, size, step))


@dataclass(frozen=True, slots=True)
class MessageValues:
    """One message as the kernels want it."""

    values: Array  # float32, one dimension, contiguous; shares memory with the tensor where it can
    shape: tuple[int, ...]
    lowest: float
    highest: float

    @property
    def size(self) -> int:
        return int(self.values.size)

    @property
    def rows(self) -> int:
        """The length of the first dimension; a vector or scalar is one row."""
        return self.shape[0] if len(self.shape) > 1 else 1

    @property
    def largest(self) -> float:
        return max(-self.lowest, self.highest)

    @property
    def width(self) -> float:
        """highest - lowest, exact enough for any two floats."""
        return self.highest - self.lowest

    def working(self, precise: bool = False) -> Array:
        """The values to compute with: float32, or float64 where float32 would over- or underflow."""
        comfortable = _COMFORT_LOW < self.largest < _COMFORT_HIGH
        return self.values if comfortable and not precise else self.values.astype(np.float64)

    def squared_distance(self, centre: float) -> float:
        """The sum of (value - centre)^2."""
        values = self.working()
        total = 0.0
        for block in blocks(self.size):
            away = values[block] - centre
            np.square(away, out=away)
            total += float(np.sum(away))
        return total

    def squared_norm(self) -> float:
        return self.squared_distance(0.0)

    def norm(self) -> float:
        return sqrt(self.squared_norm())


def require_message(x: Tensor, finite: bool = False) -> Tensor:
    """`x` on the CPU without its graph, or BadTensor where it cannot be a message; `finite`: by its values too."""
    if not isinstance(x, Tensor):
        raise BadTensor(f"a message is a torch tensor, not {type(x).__name__}")
    if x.dtype not in FLOATS:
        raise BadTensor(f"a message holds floats, not {x.dtype}; convert it with .float()")
    if x.layout != torch.strided:
        raise BadTensor(f"a message is a dense tensor, not {x.layout}; convert it with .to_dense()")
    if x.dim() > MOST_DIMENSIONS:
        raise BadTensor(f"a message has {MOST_DIMENSIONS} dimensions at most, not {x.dim()}")
    if x.numel() == 0:
        raise BadTensor(f"a message of shape {tuple(x.shape)} has no values; a batch needs at least one row")
    x = x.detach().cpu().contiguous()
    if finite:
        require_finite(x)
    return x


def message_values(x: Tensor) -> MessageValues:
    """Checks `x` and lays it out; refuses NaN and infinity by name and place."""
    x = require_message(x)
    values = x.to(torch.float32).reshape(-1).numpy()
    # The extremes carry any NaN or infinity, so this check costs no pass of its own.
    lowest, highest = float(values.min()), float(values.max())
    if not (isfinite(lowest) and isfinite(highest)):
        require_finite(x)
        worst = max(x.reshape(-1).tolist(), key=abs)
        raise BadTensor(f"the value {worst:g} does not fit float32; scale the features down, or use Identity()")
    return MessageValues(values, tuple(x.shape), lowest, highest)


def require_finite(x: Tensor) -> None:
    """Refuses NaN and infinity by name and place."""
    lowest, highest = torch.aminmax(x)  # they carry any NaN or infinity
    if not (isfinite(lowest.item()) and isfinite(highest.item())):
        index = torch.nonzero(~torch.isfinite(x))[0].tolist()
        raise NotFinite(float(x[tuple(index)]), index)
