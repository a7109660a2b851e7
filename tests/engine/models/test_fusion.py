"""Fusion in party order."""

from __future__ import annotations

import pytest
import torch

from thinwire.base.errors import BadParameter, BadTensor
from thinwire.engine.models import FUSIONS, check_fusion, fuse, fusion_width

RNG = torch.Generator().manual_seed(0)
H = [torch.randn(6, 4, generator=RNG) * 10**k for k in range(4)]


def test_sum_and_mean_add_from_left_to_right() -> None:
    expected = ((H[0] + H[1]) + H[2]) + H[3]
    assert torch.equal(fuse("sum", H), expected)
    assert torch.equal(fuse("mean", H), expected / 4)
    # Another order rounds otherwise: the test would see it.
    assert not torch.equal(expected, H[0] + (H[1] + (H[2] + H[3])))


def test_concat_keeps_the_order_and_takes_any_widths() -> None:
    parts = [H[0], H[1][:, :1], H[2][:, :3]]
    fused = fuse("concat", parts)
    assert fused.shape == (6, 8)
    assert torch.equal(fused[:, 4:5], parts[1])
    assert torch.equal(fused[:, 5:], parts[2])


@pytest.mark.parametrize("kind", FUSIONS)
def test_one_party_is_left_as_it_is(kind: str) -> None:
    assert torch.equal(fuse(kind, H[:1]), H[0])


@pytest.mark.parametrize("kind", FUSIONS)
def test_the_fused_width_is_what_fuse_gives(kind: str) -> None:
    assert fuse(kind, H).shape[1] == fusion_width(kind, [4] * 4)


@pytest.mark.parametrize(("kind", "share"), [("sum", 1.0), ("mean", 0.25), ("concat", 1.0)])
def test_derivatives_reach_every_party(kind: str, share: float) -> None:
    leaves = [h.clone().requires_grad_() for h in H]
    fuse(kind, leaves).sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, torch.full_like(leaf, share))


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_widths_that_differ_are_refused(kind: str) -> None:
    with pytest.raises(BadParameter, match=f"'{kind}' adds embeddings.* differ: 4, 1; use fusion='concat'"):
        check_fusion(kind, [4, 1])
    with pytest.raises(BadParameter, match="widths differ: 4, 1"):  # torch alone would broadcast them
        fuse(kind, [H[0], H[1][:, :1]])
    check_fusion("concat", [4, 1])


def test_wrong_input_is_named() -> None:
    with pytest.raises(BadParameter, match="fusion must be one of 'sum', 'mean', 'concat', got 'max'"):
        check_fusion("max", [4, 4])
    with pytest.raises(BadParameter, match="at least one party"):
        fuse("sum", [])
    with pytest.raises(BadTensor, match=r"the same rows, got \(6, 4\), \(1, 4\)"):
        fuse("sum", [H[0], H[1][:1]])
