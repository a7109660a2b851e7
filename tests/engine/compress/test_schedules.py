"""The diminishing-error rules of C-VFL, and schedules in general."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2, sqrt
from statistics import fmean
from typing import Any

import pytest
import torch

from every import generator
from thinwire.base.errors import BadParameter
from thinwire.engine.compress import (
    QSGD,
    Compressor,
    Diminishing,
    DiminishingError,
    HexLattice,
    Hint,
    Milestones,
    RowScale,
    StdGrid,
    TopK,
    Uniform,
)

X = torch.rand(64, 16, generator=generator())
ROUNDS = (0, 1, 2, 15, 99, 1000)


def test_milestones_hold_from_their_round_on() -> None:
    schedule = Milestones((0, 2), (10, 3), (50, 8))
    assert [schedule.at(t) for t in (0, 9, 10, 49, 50, 10**6)] == [2, 2, 3, 3, 8, 8]
    compressor = Uniform(schedule, dither=False)
    assert compressor.compress(X, generator(), Hint(9)) == Uniform(2, dither=False).compress(X, generator())
    assert compressor.compress(X, generator(), Hint(10)) == Uniform(3, dither=False).compress(X, generator())


@pytest.mark.parametrize("kind", [lambda s: QSGD(bits=s), lambda s: QSGD(levels=s), RowScale, StdGrid, HexLattice])
def test_every_number_may_be_a_schedule(kind: Callable[[Any], Compressor]) -> None:
    late = kind(Milestones((0, 2), (3, 4))).compress(X, generator(), Hint(3))
    assert late == kind(4).compress(X, generator())


@pytest.mark.parametrize("round", ROUNDS)
def test_bits_follow_table_1_of_cvfl(round: int) -> None:
    span = float(X.max() - X.min())
    c = 2.5
    expected = ceil(0.5 * log2(X.numel() * span**2 / (12 * c / sqrt(round + 1))))
    symbols = Uniform(DiminishingError(c)).compress(X, generator(), Hint(round))
    assert symbols.bits == max(1, expected)
    assert Uniform(Diminishing(2)).compress(X, generator(), Hint(round)).bits == ceil(
        2 + 0.25 * log2(round + 1) - 1e-9
    )


@pytest.mark.parametrize("round", ROUNDS)
def test_lattice_cells_follow_table_1_with_the_right_constant(round: int) -> None:
    span = float(X.max() - X.min())
    c = 2.5
    cell = c / sqrt(round + 1) / (5 / (36 * sqrt(3)) * X.numel())
    bits = HexLattice(DiminishingError(c)).compress(X, generator(), Hint(round)).bits
    assert 4.0**-bits * span**2 == pytest.approx(cell)
    assert HexLattice(Diminishing(3)).compress(X, generator(), Hint(round)).bits == pytest.approx(
        3 + 0.25 * log2(round + 1)
    )


@pytest.mark.parametrize("round", ROUNDS)
def test_kept_values_follow_table_1(round: int) -> None:
    most = 64 * float(X.double().square().sum(dim=1).max())
    c = 0.6 * most
    k = ceil(16 * (1 - c / sqrt(round + 1) / most))
    symbols = TopK(DiminishingError(c)).compress(X, generator(), Hint(round))
    assert symbols.indices.size == 64 * k  # type: ignore[attr-defined]
    start = TopK(Diminishing(0.25)).compress(X, generator(), Hint(round))
    assert start.indices.size == 64 * ceil(16 * (1 - 0.75 / sqrt(round + 1)) - 1e-9)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "compressor",
    [Uniform(DiminishingError(3.0)), HexLattice(DiminishingError(3.0)), TopK(DiminishingError(200.0))],
    ids=str,
)
def test_the_error_really_diminishes_as_one_over_the_root(compressor: Compressor) -> None:
    initial = compressor.bits.initial if hasattr(compressor, "bits") else compressor.fraction.initial  # type: ignore[attr-defined]
    for round in ROUNDS:
        rng = generator(round)
        errors = [float((compressor.compress(X, rng, Hint(round)).to_tensor() - X).square().sum()) for _ in range(20)]
        # A dithered step is range / (2^b - 1), not / 2^b: at few bits a little over the rule's own count.
        slack = 1.1 if not isinstance(compressor, Uniform) else (2**2 / (2**2 - 1)) ** 2 * 1.1
        assert fmean(errors) <= initial / sqrt(round + 1) * slack


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_a_diminishing_error_on_a_constant_message_is_no_trouble(value: float) -> None:
    x = torch.full((4, 4), value)
    for compressor in (Uniform(DiminishingError(1e-3)), HexLattice(Diminishing(2)), TopK(DiminishingError(1e-9))):
        assert torch.equal(compressor.compress(x, generator(), Hint(7)).to_tensor(), x)
        assert compressor.error_bound(x, Hint(7)).worst < 1e-6


def test_contraction_under_a_schedule_is_what_every_round_keeps() -> None:
    assert TopK(Diminishing(0.25)).contraction((10, 10), 50) == 0.25
    assert TopK(DiminishingError(1.0)).contraction((10, 10), 50) == 0.01
    assert TopK(Milestones((0, 0.1), (5, 0.5))).contraction((10, 10), 5) == 0.5


def test_a_rule_without_a_message_is_refused() -> None:
    from thinwire.engine.compress.parameters import at_round

    with pytest.raises(BadParameter, match="needs a compressor with an error rule"):
        at_round(DiminishingError(1.0), 3)
