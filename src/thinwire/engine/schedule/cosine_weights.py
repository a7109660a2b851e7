"""How far a cached row may be trusted: the cosine between what it was and what it is, and counts of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, radians

import torch
from torch import Tensor

from thinwire.base.errors import BadState


def cosine_weights(now: Tensor, cached: Tensor, xi_degrees: float) -> tuple[Tensor, Tensor]:
    """(weights, cosines), one a row; a weight is 0 where the cosine is below cos(xi).

    The cosine with one zero vector is 0, of two 1; never NaN.
    """
    dtype = now.dtype
    now, cached = now.flatten(1).double(), cached.flatten(1).double()  # float32 lengths would underflow
    lengths = now.norm(dim=1) * cached.norm(dim=1)
    cosines = (now * cached).sum(dim=1) / lengths.clamp_min(torch.finfo(now.dtype).tiny)
    both_zero = (now == 0).all(dim=1) & (cached == 0).all(dim=1)
    cosines = torch.where(both_zero, torch.ones_like(cosines), cosines.clamp(-1, 1))
    weights = torch.where(cosines < cos(radians(xi_degrees)), torch.zeros_like(cosines), cosines)
    return weights.to(dtype), cosines.to(dtype)


_BINS = 4000  # over -1 to 1: quantiles are right to 0.0005


class CosineTally:
    """Counts cosines in equal bins; their quantiles follow."""

    def __init__(self) -> None:
        self._counts = torch.zeros(_BINS, dtype=torch.int64)

    def add(self, cosines: Tensor) -> None:
        """Values from -1 to 1."""
        self._counts += torch.histc(cosines.detach().float().cpu(), _BINS, -1, 1).long()

    def __len__(self) -> int:
        return int(self._counts.sum())

    def quantiles(self, parts: Sequence[float]) -> list[float]:
        """The cosine below which each part of the rows lies; the middle of its bin."""
        below = self._counts.cumsum(0).double()
        ranks = torch.tensor(parts, dtype=torch.float64) * (below[-1] - 1)
        bins = torch.searchsorted(below, ranks, right=True)
        return [round(float(place) * 2 / _BINS - 1 + 1 / _BINS, 6) for place in bins]

    def clear(self) -> None:
        self._counts.zero_()

    def state(self) -> Tensor:
        """Not a copy."""
        return self._counts

    def load(self, counts: Tensor) -> None:
        if counts.dtype != torch.int64 or counts.shape != self._counts.shape:
            raise BadState(f"saved cosines are {counts.dtype} {tuple(counts.shape)}, not {_BINS} counts")
        self._counts.copy_(counts)
