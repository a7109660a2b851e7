"""Counted cosines: their quantiles are those of the cosines themselves."""

from __future__ import annotations

import pytest
import torch

from every import generator
from thinwire.base.errors import BadState
from thinwire.engine.schedule import CosineTally

PARTS = [0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0]


@pytest.mark.parametrize("shape", ["uniform", "near one", "ends"])
def test_quantiles_are_right_to_half_a_thousandth(shape: str) -> None:
    uniform = torch.rand(20_011, generator=generator()) * 2 - 1
    cosines = {"uniform": uniform, "near one": 1 - uniform.square() * 1e-2, "ends": uniform.sign()}[shape]
    tally = CosineTally()
    for part in cosines.split(777):
        tally.add(part)
    exact = torch.quantile(cosines.double(), torch.tensor(PARTS, dtype=torch.float64), interpolation="lower")
    assert len(tally) == 20_011
    assert tally.quantiles(PARTS) == pytest.approx(exact.tolist(), abs=0.0005 + 1e-6)


def test_a_tally_goes_on_where_it_was_saved() -> None:
    first, second = CosineTally(), CosineTally()
    first.add(torch.tensor([0.5, -0.5, 1.0]))
    second.load(first.state())
    first.clear()
    assert (len(first), len(second)) == (0, 3)
    assert second.quantiles([0.5]) == pytest.approx([0.5], abs=0.0005)
    with pytest.raises(BadState, match=r"saved cosines are torch\.float32"):
        second.load(torch.zeros(7))
