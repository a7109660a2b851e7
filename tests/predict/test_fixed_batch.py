"""What a row comes to does not depend on the rows it is computed with, or on where it stands among them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from thinwire.engine.models.losses import Outputs
from thinwire.predict.scoring import run_in_blocks

ROWS = 200


def some_module(inputs: int, hidden: int, outputs: int) -> nn.Module:
    torch.manual_seed(inputs)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs), nn.Softmax(dim=1))


# Odd widths: rows of such a table begin at other places in memory, where a matrix product rounds otherwise.
@given(
    st.sampled_from([(3, 5, 2), (5, 4, 4), (7, 13, 10), (13, 6, 3), (30, 10, 5), (257, 5, 6)]),
    st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=70),
)
def test_a_row_is_the_same_in_any_company(shape: tuple[int, int, int], rows: list[int]) -> None:
    module, table = some_module(*shape), torch.randn(ROWS, shape[0], generator=torch.Generator().manual_seed(1))
    every = run_in_blocks(module, table, torch.arange(ROWS))
    asked = torch.tensor(rows)
    assert torch.equal(run_in_blocks(module, table[asked], asked), every[asked])


@given(st.sampled_from([Outputs.PROBABILITY, Outputs.CLASSES]), st.lists(st.integers(0, ROWS - 1), min_size=1))
def test_a_probability_is_the_same_in_any_company(outputs: Outputs, rows: list[int]) -> None:
    """One logit too: a vector's end is rounded otherwise than its beginning."""
    table = 4 * torch.randn(ROWS, 1 + (outputs is Outputs.CLASSES), generator=torch.Generator().manual_seed(1))
    assert torch.equal(outputs.to_predictions(table[rows]), outputs.to_predictions(table)[rows])


def test_probabilities_of_one_logit_are_exact_to_the_last_places() -> None:
    logits = torch.tensor([-1e30, -100.0, -80.0, -1.0, 0.0, 1.0, 30.0, 1e30]).reshape(-1, 1)
    found = Outputs.PROBABILITY.to_predictions(logits)
    torch.testing.assert_close(found, torch.sigmoid(logits.double()).float(), rtol=3e-7, atol=1e-44)


def test_a_module_stays_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)).train()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    first = run_in_blocks(module, torch.ones(5, 3), torch.arange(5))
    assert torch.equal(first, run_in_blocks(module, torch.ones(5, 3), torch.arange(5)))
    assert module.training
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_tables_of_any_shape() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 16, 3))
    table = torch.randn(40, 1, 6, 6)
    assert run_in_blocks(module, table, torch.arange(40)).shape == (40, 3)
