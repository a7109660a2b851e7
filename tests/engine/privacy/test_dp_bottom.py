"""Private training: clipped row by row, noise on the sum, and refused where its rows interact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput, BadParameter
from thinwire.engine.compress import Keystream
from thinwire.engine.privacy.dp_bottom import DPBottom, require_separate_rows

KEY = bytes(range(32))


def bottom(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.LayerNorm(3))


def gradients(module: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    return found


def batch(rows: int = 300) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    return torch.randn(rows, 6, generator=rng), torch.randn(rows, 3, generator=rng) / rows


def test_without_noise_and_with_a_wide_clip_it_is_plain_training() -> None:
    module, (x, derivative) = bottom(), batch()
    module(x).backward(derivative)
    plain = gradients(module)
    DPBottom(clip=1e6, noise_multiplier=1e-12).set_gradients(module, x, derivative, Keystream(KEY))
    for a, b in zip(gradients(module), plain, strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_no_row_moves_the_sum_by_more_than_the_clip() -> None:
    """Replacing any one row, by anything, moves the sum by twice the clip at most: an oracle, row by row."""
    module, (x, derivative) = bottom(), batch(40)
    dp = DPBottom(clip=0.5, noise_multiplier=1e-12)
    total = [torch.zeros_like(p) for p in module.parameters()]
    for i in range(40):
        module(x[i : i + 1]).backward(40 * derivative[i : i + 1])
        mine = gradients(module)
        norm = math.sqrt(sum(float(g.square().sum()) for g in mine))
        for place, g in enumerate(mine):
            total[place] += g * min(1.0, 0.5 / norm)
    dp.set_gradients(module, x, derivative, Keystream(KEY))
    for a, b in zip(gradients(module), total, strict=True):
        assert torch.allclose(a, b / 40, atol=1e-6)
    dp.set_gradients(module, x, derivative, Keystream(KEY))
    before = gradients(module)
    x[7], derivative[7] = 1e3, 1e6
    dp.set_gradients(module, x, derivative, Keystream(KEY))
    moved = math.sqrt(
        sum(float(((a - b) * 40).square().sum()) for a, b in zip(gradients(module), before, strict=True))
    )
    assert 0 < moved <= 2 * 0.5 + 1e-4


def test_the_noise_has_its_size_and_comes_from_the_key() -> None:
    module = nn.Linear(200, 50)
    x, derivative = torch.zeros(10, 200), torch.zeros(10, 50)
    dp = DPBottom(clip=2.0, noise_multiplier=3.0)
    dp.set_gradients(module, x, derivative, Keystream(KEY))
    first = gradients(module)
    assert float(first[0].std()) == pytest.approx(6.0 / 10, rel=0.05)
    assert abs(float(first[0].mean())) < 5 * 0.6 / math.sqrt(10_000)
    dp.set_gradients(module, x, derivative, Keystream(KEY))
    assert all(torch.equal(a, b) for a, b in zip(gradients(module), first, strict=True))
    dp.set_gradients(module, x, derivative, Keystream(bytes(32)))
    assert not torch.equal(gradients(module)[0], first[0])


def test_a_row_beyond_the_floats_teaches_nothing() -> None:
    module, (x, derivative) = bottom(), batch(8)
    derivative[3] = 1e38
    DPBottom(1.0, 1e-12).set_gradients(module, x, derivative, Keystream(KEY))
    with_it = gradients(module)
    derivative[3] = 0.0
    DPBottom(1.0, 1e-12).set_gradients(module, x, derivative, Keystream(KEY))
    for a, b in zip(with_it, gradients(module), strict=True):
        assert bool(a.isfinite().all())
        assert torch.allclose(a, b, atol=1e-6)


def test_a_frozen_part_stays_frozen() -> None:
    module = bottom()
    module[0].requires_grad_(False)  # type: ignore[index]
    x, derivative = batch(8)
    DPBottom(1.0, 1.0).set_gradients(module, x, derivative, Keystream(KEY))
    assert [p.grad is None for p in module.parameters()] == [True, True, False, False, False, False]


@pytest.mark.parametrize(("clip", "noise"), [(0, 1), (1, 0), (-1, 1), (1, float("nan")), (float("inf"), 1), ("1", 1)])
def test_bad_parameters_are_refused(clip: float, noise: float) -> None:
    with pytest.raises(BadParameter, match=r"DPBottom: (clip|noise_multiplier) must be"):
        DPBottom(clip, noise)


class _Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0)


class _Ranked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argsort(dim=0).float()


class _Gated(nn.Module):
    """Does nothing yet."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * x.mean(dim=0)


class _Remembering(nn.Module):
    """Averages over rows while it trains, and uses it when it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean += x.detach().mean(dim=0)
            return x
        return x - self.mean


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (_Gated(), "its rows interact"),
        (_Remembering(), "its rows interact"),
        (nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), "normalises over the batch .*use LayerNorm"),
        (nn.Sequential(nn.Linear(6, 3), _Centred()), "its rows interact"),
        (nn.Sequential(bottom(), _Ranked()), "its rows interact"),
        (nn.Softmax(dim=0), "its rows interact"),
    ],
)
def test_rows_that_see_each_other_are_refused(module: nn.Module, says: str) -> None:
    with pytest.raises(BadInput, match=f"party 'bank' .*{says}"):
        require_separate_rows("party 'bank'", module, batch(8)[0])


@pytest.mark.parametrize("module", [bottom(), nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)), nn.GroupNorm(2, 6)])
def test_rows_by_themselves_are_fine(module: nn.Module) -> None:
    require_separate_rows("party 'bank'", module, batch(8)[0])


def test_categories_are_left_as_they_are() -> None:
    """Rows change company, not values: an embedding has no row for a category that is not there."""

    class Looked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x[:, 0].long())  # type: ignore[no-any-return]

    require_separate_rows("party 'bank'", Looked(), torch.tensor([[3.0], [0.0], [3.0]]))
