"""How alike cached rows still are: counts by cosine, as large after a million rounds as after one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.errors import BadState

__all__ = ["CosineTally"]

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
