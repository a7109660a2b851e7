"""Each compressor keeps what it promises, on messages of every kind."""

from __future__ import annotations

from math import sqrt
from statistics import fmean, pstdev

import pytest
import torch
from torch import Tensor

from every import BOUNDED_INPUT, COMPRESSORS, generator, messages, unit_messages
from thinwire.base.errors import BadTensor, NotFinite
from thinwire.engine.compress import Compressor, Promise

CASES = [
    (compressor, name, x)
    for compressors, kinds in ((COMPRESSORS, messages()), (BOUNDED_INPUT, unit_messages()))
    for compressor in compressors
    for name, x in kinds.items()
]
NAMES = [f"{compressor}-{name}" for compressor, name, _ in CASES]
DRAWS = 40


def squared_error(x: Tensor, decoded: Tensor) -> float:
    return float((x.double() - decoded.double()).square().sum())


def below(errors: list[float], mean: float) -> bool:
    """Is the average no higher than `mean`, five standard deviations of chance aside?"""
    return fmean(errors) <= mean * (1 + 1e-9) + 5 * pstdev(errors) / sqrt(DRAWS)


@pytest.mark.parametrize(("compressor", "name", "x"), CASES, ids=NAMES)
def test_the_error_stays_within_the_declared_bound(compressor: Compressor, name: str, x: Tensor) -> None:
    bound = compressor.error_bound(x)
    rng = generator()
    errors = [squared_error(x, compressor.compress(x, rng).to_tensor()) for _ in range(DRAWS)]
    assert max(errors) <= bound.worst * (1 + 1e-9)
    assert below(errors, bound.mean)


@pytest.mark.parametrize(("compressor", "name", "x"), CASES, ids=NAMES)
def test_a_contraction_contracts(compressor: Compressor, name: str, x: Tensor) -> None:
    factor = compressor.contraction(tuple(x.shape))
    assert 0 <= factor <= 1
    assert (factor > 0) == (compressor.promise is Promise.CONTRACTION)
    norm = float(x.double().square().sum())
    rng = generator(3)
    if compressor.promise is Promise.CONTRACTION:
        errors = [squared_error(x, compressor.compress(x, rng).to_tensor()) for _ in range(DRAWS)]
        rounding = sqrt(x.numel()) * (2.0**-21 * float(x.abs().max()) + 2.0**-147)
        assert below(errors, (sqrt((1 - factor) * norm) + rounding) ** 2)


@pytest.mark.parametrize("compressor", [*COMPRESSORS, *BOUNDED_INPUT], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")], ids=["nan", "inf", "-inf"])
def test_nan_and_infinity_are_refused_by_name_and_place(compressor: Compressor, bad: float) -> None:
    x = torch.zeros(4, 6)
    x[2, 5] = bad
    with pytest.raises(NotFinite, match=r"(NaN|infinity|-infinity) at \[2, 5\]"):
        compressor.compress(x, generator())


@pytest.mark.parametrize("compressor", [*COMPRESSORS, *BOUNDED_INPUT], ids=str)
def test_what_is_no_message_is_refused(compressor: Compressor) -> None:
    rng = generator()
    with pytest.raises(BadTensor, match="no values"):
        compressor.compress(torch.zeros(0, 5), rng)
    with pytest.raises(BadTensor, match=r"floats, not torch\.int64"):
        compressor.compress(torch.zeros(2, 2, dtype=torch.int64), rng)
    with pytest.raises(BadTensor, match="torch tensor, not list"):
        compressor.compress([1.0, 2.0], rng)  # type: ignore[arg-type]


@pytest.mark.parametrize("compressor", [*COMPRESSORS, *BOUNDED_INPUT], ids=str)
def test_symbols_keep_the_shape_and_depend_on_the_generator_alone(compressor: Compressor) -> None:
    for name, x in unit_messages().items():
        first = compressor.compress(x, generator(5))
        again = compressor.compress(x.clone(), generator(5))
        assert first == again, name
        assert first.shape == tuple(x.shape)
        assert first.to_tensor().shape == x.shape


@pytest.mark.parametrize("compressor", [*COMPRESSORS, *BOUNDED_INPUT], ids=str)
def test_layout_graph_and_dtype_of_the_tensor_do_not_matter(compressor: Compressor) -> None:
    x = torch.rand(6, 8, generator=generator(7)).bfloat16()  # exact in every dtype
    plain = compressor.compress(x.float(), generator(1)).to_tensor()
    transposed = x.float().t().contiguous().t().requires_grad_()
    assert torch.equal(compressor.compress(transposed, generator(1)).to_tensor(), plain)
    for dtype in (torch.float64, torch.bfloat16):
        assert torch.equal(compressor.compress(x.to(dtype), generator(1)).to_tensor().float(), plain)


def test_a_float64_that_float32_cannot_hold_is_refused_by_all_but_identity() -> None:
    x = torch.tensor([[1.0, 1e300]], dtype=torch.float64)
    identity, *lossy = COMPRESSORS
    assert torch.equal(identity.compress(x, generator()).to_tensor(), x)
    for compressor in lossy:
        with pytest.raises(BadTensor, match=r"1e\+300 does not fit float32"):
            compressor.compress(x, generator())
