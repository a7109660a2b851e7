"""The shorter of two messages, and what is shorter than both."""

from __future__ import annotations

import pytest
import torch

from thinwire.engine.compress import Directions, Identity, Shorter, StdGrid
from thinwire.wire import encode


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_no_message_is_longer_than_its_floats(rows: int) -> None:
    x = torch.randn(rows, 1, generator=torch.Generator().manual_seed(rows))
    sent = Shorter(StdGrid(0.5), Directions(0.1)).compress(x, torch.Generator())
    assert len(encode(sent)) <= len(encode(Identity().compress(x, torch.Generator())))
    assert torch.equal(sent.to_tensor(), x) == (rows <= 2)
