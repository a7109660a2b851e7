"""A wrong parameter: one message that names compressor, field and range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from every import COMPRESSORS, generator
from thinwire.base.errors import BadParameter, IncompatibleRecipe
from thinwire.engine.compress import (
    QSGD,
    Cast,
    Codebook,
    Diminishing,
    DiminishingError,
    HexLattice,
    Identity,
    Keystream,
    Milestones,
    PoissonBinomial,
    RandK,
    RowScale,
    StdGrid,
    Then,
    TopK,
    Uniform,
)

WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: TopK(0), "TopK: fraction must be above 0 and at most 1, got 0"),
    (lambda: TopK(1.5), "TopK: fraction must be above 0 and at most 1, got 1.5"),
    (lambda: TopK(float("nan")), "TopK: fraction must be above 0 and at most 1, got nan"),
    (lambda: TopK("1 %"), "TopK: fraction must be a number above 0 and at most 1, got '1 %'"),  # type: ignore[arg-type]
    (lambda: TopK(True), "TopK: fraction must be a number above 0 and at most 1, got True"),
    (
        lambda: TopK(0.1, select="best"),
        "TopK: select must be one of 'magnitude', 'derivative', 'columns', got 'best'",
    ),
    (lambda: TopK(0.1, scope="rows"), "TopK: scope must be one of 'message', 'row', got 'rows'"),
    (
        lambda: TopK(0.1, select="columns", scope="row"),
        "TopK: scope 'row' chooses for each row, and select='columns'",
    ),
    (lambda: TopK(Milestones((0, 0.1), (9, 2.0))), "TopK: fraction must be above 0 and at most 1, got 2.0"),
    (lambda: TopK(Diminishing(1.5)), "TopK: fraction must be above 0 and at most 1, got 1.5"),
    (lambda: RandK(-0.1), "RandK: fraction must be above 0 and at most 1, got -0.1"),
    (lambda: RandK(Diminishing(0.1)), "RandK: fraction has no rule that follows a diminishing error"),
    (QSGD, "QSGD: give either bits or levels"),
    (lambda: QSGD(bits=2, levels=3), "QSGD: give either bits or levels"),
    (lambda: QSGD(bits=0), "QSGD: bits must be from 1 to 16, got 0"),
    (lambda: QSGD(bits=2.5), "QSGD: bits must be an integer from 1 to 16, got 2.5"),  # type: ignore[arg-type]
    (lambda: QSGD(levels=0), "QSGD: levels must be from 1 to 65536, got 0"),
    (lambda: Uniform(17), "Uniform: bits must be from 1 to 16, got 17"),
    (lambda: Uniform(2, dither=1), "Uniform: dither must be True or False, got 1"),  # type: ignore[arg-type]
    (lambda: Uniform(2, bounds=(1, 1)), "Uniform: bounds must be increasing and finite"),
    (lambda: Uniform(2, bounds=(0, float("inf"))), "Uniform: bounds must be increasing and finite"),
    (lambda: Uniform(2, bounds=3), "Uniform: bounds must be a pair"),  # type: ignore[arg-type]
    (lambda: Uniform(2, bounds=(1, 2, 3)), "Uniform: bounds must be a pair"),  # type: ignore[arg-type]
    (lambda: HexLattice(0), "HexLattice: bits must be above 0 and at most 12, got 0"),
    (lambda: HexLattice(13), "HexLattice: bits must be above 0 and at most 12, got 13"),
    (lambda: StdGrid(0), "StdGrid: step must be above 0 and at most 1e+30, got 0"),
    (lambda: StdGrid(1, scale=-2.0), "StdGrid: scale must be above 0 and at most 1e+30, got -2.0"),
    (lambda: StdGrid(1, scale="widest"), "StdGrid: scale must be a positive number or 'largest', got 'widest'"),
    (lambda: StdGrid(1, stochastic="no"), "StdGrid: stochastic must be True or False"),  # type: ignore[arg-type]
    (lambda: RowScale(1), "RowScale: bits must be from 2 to 16, got 1"),
    (lambda: Codebook(3), "Codebook: levels must be from 4 to 256, got 3"),
    (lambda: Codebook(257), "Codebook: levels must be from 4 to 256, got 257"),
    (lambda: Cast("float8"), "Cast: dtype must be one of 'float16', 'bfloat16', got 'float8'"),
    (lambda: PoissonBinomial(0, 0.1), "PoissonBinomial: trials must be from 1 to 65535, got 0"),
    (lambda: PoissonBinomial(4, 0.3), "PoissonBinomial: beta must be above 1e-06 and at most 0.25, got 0.3"),
    (lambda: PoissonBinomial(4, 0.1, 0), "PoissonBinomial: bound must be above 1e-30 and at most 1e+30, got 0"),
    (lambda: Milestones((1, 2)), "Milestones: the rounds must increase from 0"),
    (Milestones, "Milestones: the rounds must increase from 0"),
    (lambda: Milestones((0, 2), (5, 3), (5, 4)), "Milestones: the rounds must increase from 0"),
    (lambda: Milestones(3), "Milestones: 3 is not a pair (round, value)"),  # type: ignore[arg-type]
    (lambda: Milestones((0, 2), ("a", 3)), "Milestones: ('a', 3) is not a pair"),  # type: ignore[arg-type]
    (lambda: Uniform(4, bounds=(0, 1e39)), "Uniform: bounds must be increasing and finite in float32"),
    (lambda: Uniform(4, bounds=(1, 1 + 1e-12)), "Uniform: bounds must be increasing and finite in float32"),
    (lambda: DiminishingError("x"), "DiminishingError: initial must be a positive number, got 'x'"),  # type: ignore[arg-type]
    (lambda: DiminishingError(0), "DiminishingError: initial must be a positive number, got 0"),
    (lambda: Then(TopK(0.1), "sign"), "Then: both parts must be compressors, got 'sign'"),  # type: ignore[arg-type]
    (lambda: Keystream(b"short"), "a key stream's key has 32 bytes, not 5"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_parameter_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadParameter) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("make", "way_out"),
    [
        (lambda: Then(Uniform(2), Uniform(4)), "put TopK or RandK first"),
        (lambda: Then(TopK(0.1), RandK(0.5)), "put a quantiser second"),
        (lambda: Then(TopK(0.1), Then(TopK(0.1), Uniform(2))), "put a quantiser second"),
        (lambda: Then(TopK(0.1), PoissonBinomial(4, 0.1)), "use it alone"),
    ],
)
def test_parts_that_cannot_work_together_are_refused_with_the_way_out(make: Callable[[], Any], way_out: str) -> None:
    with pytest.raises(IncompatibleRecipe, match=way_out):
        make()


def test_a_generator_is_asked_for_by_name() -> None:
    with pytest.raises(BadParameter, match=r"rng is a torch\.Generator or a Keystream, not int"):
        Uniform(2).compress(torch.ones(3), 7)  # type: ignore[arg-type]


def test_compressors_are_values() -> None:
    assert TopK(0.1) == TopK(0.1) != TopK(0.2)
    assert len({str(c) for c in COMPRESSORS}) == len(COMPRESSORS)
    assert hash(Uniform(2)) == hash(Uniform(2))
    with pytest.raises(AttributeError):
        TopK(0.1).fraction = 0.2  # type: ignore[misc]


def test_compressors_print_as_one_would_write_them() -> None:
    assert str(TopK(0.01)) == "TopK(0.01)"
    assert str(StdGrid(2, stochastic=True)) == "StdGrid(2, stochastic=True)"
    assert str(Then(TopK(0.05), Uniform(4))) == "Then(TopK(0.05), Uniform(4))"
    assert str(QSGD(bits=4)) == "QSGD(bits=4)"


def test_cast_takes_a_torch_dtype_too() -> None:
    assert Cast(torch.bfloat16) == Cast("bfloat16")  # type: ignore[arg-type]


def test_a_key_stream_stands_in_for_a_generator() -> None:
    x = torch.randn(8, 8, generator=generator())
    key = bytes(range(32))
    for compressor in COMPRESSORS:
        first = compressor.compress(x, Keystream(key))
        assert first == compressor.compress(x, Keystream(key))
    assert Identity().compress(x, Keystream(key)).to_tensor().equal(x)
