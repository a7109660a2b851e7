"""Models of random jobs. It needs torch alone, so that a copy of it beside a job file is the job's own code."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Casting(nn.Module):
    """Hands on its input as another type of float."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)


def _plain(columns: int, width: int) -> list[nn.Module]:
    return [nn.Linear(columns, width), nn.Tanh()]


BOTTOMS: dict[str, Callable[[int, int], list[nn.Module]]] = {
    "plain": _plain,
    "linear": lambda columns, width: [nn.Linear(columns, width)],
    "deep": lambda columns, width: [nn.Linear(columns, 5), nn.ReLU(), *_plain(5, width)],
    "convolution": lambda columns, width: [
        nn.Unflatten(1, (1, columns)),
        nn.Conv1d(1, 2, 3, padding=1),
        nn.Flatten(),
        *_plain(2 * columns, width),
    ],
    "dropout": lambda columns, width: [*_plain(columns, width), nn.Dropout(0.3)],
    "layer norm": lambda columns, width: [*_plain(columns, width), nn.LayerNorm(width)],
    "batch norm": lambda columns, width: [nn.Linear(columns, width), nn.BatchNorm1d(width), nn.Tanh()],
    "half frozen": lambda columns, width: [nn.Linear(columns, 4).requires_grad_(False), *_plain(4, width)],
    "doubles": lambda columns, width: [Casting(torch.float64), *(part.double() for part in _plain(columns, width))],
    "gives doubles": lambda columns, width: [*_plain(columns, width), Casting(torch.float64)],
    "gives bfloat16": lambda columns, width: [*_plain(columns, width), Casting(torch.bfloat16)],
}
TOPS: dict[str, Callable[[int, int], list[nn.Module]]] = {
    "linear": lambda width, outputs: [nn.Linear(width, outputs)],
    "deep": lambda width, outputs: [nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, outputs)],
    "spectral norm": lambda width, outputs: [nn.utils.parametrizations.spectral_norm(nn.Linear(width, outputs))],
    "doubles": lambda width, outputs: [nn.Linear(width, outputs).double()],
    "dropout": lambda width, outputs: [nn.Dropout(0.2), nn.Linear(width, outputs)],
}
ROUNDS_OTHERWISE = {"dropout", "doubles", "gives doubles", "gives bfloat16"}  # than a plain loop of one process
NEEDS_ALL_ROWS = {"dropout", "batch norm"}  # comes out otherwise where a batch is divided


class Bottom(nn.Sequential):
    def __init__(self, in_features: int, width: int, kind: str) -> None:
        super().__init__(*BOTTOMS[kind](in_features, width))


class Top(nn.Sequential):
    def __init__(self, in_features: int, outputs: int, kind: str) -> None:
        super().__init__(*TOPS[kind](in_features, outputs))
