"""Every compressor and every kind of message that the equations must hold for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from thinwire.engine.compress import (
    QSGD,
    Cast,
    Codebook,
    Compressor,
    Diminishing,
    Directions,
    HexLattice,
    Identity,
    Milestones,
    PoissonBinomial,
    RandK,
    RandomizedResponse,
    RowScale,
    Shorter,
    Sign,
    StdGrid,
    Then,
    TopK,
    Uniform,
)

LARGEST = float(np.finfo(np.float32).max)

COMPRESSORS: tuple[Compressor, ...] = (
    Identity(),
    Cast("bfloat16"),
    TopK(0.1),
    TopK(1.0),
    TopK(0.3, select="columns"),
    TopK(0.3, select="derivative"),
    RandK(0.1),
    RandK(0.8),
    QSGD(bits=1),
    QSGD(bits=4),
    QSGD(levels=16),
    Uniform(1),
    Uniform(2),
    Uniform(2, dither=False),
    Uniform(8),
    Uniform(12, dither=False),
    Uniform(16),
    Uniform(Milestones((0, 2), (5, 4))),
    HexLattice(1),
    HexLattice(2),
    HexLattice(3.5, dither=False),
    HexLattice(10),
    StdGrid(0.01),
    StdGrid(1),
    StdGrid(2, stochastic=True),
    RowScale(2),
    RowScale(4),
    RowScale(8, stochastic=True),
    Sign(),
    Then(TopK(0.2), Uniform(4)),
    Then(TopK(0.2), QSGD(bits=3)),
    Then(TopK(0.5, select="columns"), Sign()),
    Then(RandK(0.2), StdGrid(1)),
    TopK(Diminishing(0.2)),
    Directions(0.5),
    Directions(0.01),
    Directions(2, stochastic=True, most=3),
    Shorter(StdGrid(1.5), Directions(0.5)),
    Codebook(),
    Codebook(4),
    Then(RandK(0.5), Codebook(Milestones((0, 5), (9, 64)))),
    StdGrid(1 / 3, stochastic=True, scale="largest"),
    TopK(0.4, scope="row"),
)
BOUNDED_INPUT: tuple[Compressor, ...] = (
    Cast("float16"),
    PoissonBinomial(trials=1, beta=0.25),
    PoissonBinomial(trials=16, beta=0.1),
    RandomizedResponse(epsilon=40.0, bins=2),
    Uniform(3, bounds=(-1, 1)),
    Uniform(3, dither=False, bounds=(-1, 1)),
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def unit_messages() -> dict[str, Tensor]:
    """Messages between -1 and 1."""
    rng = generator(1)
    return {
        "random": torch.rand(40, 9, generator=rng) * 2 - 1,
        "constant": torch.full((6, 5), 0.3),
        "zero": torch.zeros(3, 4),
        "one element": torch.tensor([[-0.7]]),
        "scalar": torch.tensor(0.25),
        "vector": torch.rand(33, generator=rng),
        "cube": torch.rand(3, 4, 5, generator=rng) - 0.5,
        "one outlier": torch.cat([torch.zeros(50), torch.ones(1)]).reshape(17, 3),
        "two values": torch.tensor([[1.0, -1.0]]).repeat(16, 8),
        "tiny": torch.randn(20, 6, generator=rng) * 1e-30,
        "denormal": torch.randn(20, 6, generator=rng) * 1e-42,
        "smallest": torch.full((4, 4), 2.0**-149),
        "negative zero": torch.tensor([[-0.0, 0.0, -1.0]]),
        "far from zero": 0.75 + torch.rand(30, 4, generator=rng) * 1e-6,
    }


def messages() -> dict[str, Tensor]:
    """Messages of every size that float32 has."""
    rng = generator(2)
    return unit_messages() | {
        "normal": torch.randn(64, 17, generator=rng),
        "wide": torch.randn(2, 700, generator=rng),
        "heavy tail": torch.randn(50, 20, generator=rng) ** 5,
        "huge": torch.randn(20, 6, generator=rng) * 1e37,
        "largest": torch.tensor([[LARGEST, -LARGEST, 0.0], [LARGEST, 1.0, -LARGEST]]),
        "all largest": torch.full((8, 3), LARGEST),
        "every size": torch.logspace(-44, 38, 120).reshape(12, 10) * torch.tensor([1.0, -1.0]).repeat(5),
    }
