"""Batch normalisation over all rows of a batch, where several processes hold them.

torch's SyncBatchNorm runs on a GPU only. This one runs anywhere, and a rank with no row of a batch takes part: the
row that it computes instead has no weight in the mean and the variance.

    forward   mean, variance and number of rows of every rank are gathered, and combined in double precision
    backward  dx = w / sigma (dy - sum(dy) / N - x^ sum(dy x^) / N), both sums over all ranks
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from thinwire.training.ranks.ranks import Ranks

SHARED_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def share_batch_norm(module: nn.Module, ranks: Ranks) -> nn.Module:
    """The same module, with batch normalisation over all ranks' rows; parameters, buffers and names are the same."""
    if type(module) in SHARED_NORMS:
        return GroupBatchNorm(module, ranks)
    for name, child in module.named_children():
        setattr(module, name, share_batch_norm(child, ranks))
    return module


def find_unshared_norm(module: nn.Module) -> str | None:
    """The name of a batch normalisation that cannot be shared, since it never evaluates as it was trained."""
    norms = ((name, part) for name, part in module.named_modules() if type(part) in SHARED_NORMS)
    return next((name or "the model" for name, part in norms if not getattr(part, "track_running_stats", True)), None)


class _Moments(NamedTuple):
    """Of each channel over all ranks, in double precision; the variance is the biased one."""

    mean: Tensor
    var: Tensor
    rows: int  # values of a channel


class GroupBatchNorm(nn.modules.batchnorm._BatchNorm):
    """In place of torch's; in evaluation mode it is torch's."""

    def __init__(self, norm: nn.Module, ranks: Ranks) -> None:
        super().__init__(1, affine=False, track_running_stats=False)
        self.__dict__.update(norm.__dict__)
        self.counts = True  # are the rows that come next of the batch?
        self._ranks = ranks

    def _check_input_dim(self, input: Tensor) -> None:
        """What it replaces has looked, before the first round."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        moments = self._measure(input.detach())
        self._remember(moments)
        output: Tensor = _Normalise.apply(input, self.weight, self.bias, moments, self)  # type: ignore[no-untyped-call]
        return output

    def _measure(self, x: Tensor) -> _Moments:
        var, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        rows = mean.new_full((1,), x.numel() // x.shape[1] if self.counts else 0, dtype=torch.float64)
        every = self._ranks.gather_all(torch.cat([mean.double(), var.double(), rows]))
        means, variances, counts = every.split([x.shape[1], x.shape[1], 1], dim=1)
        mean = (counts * means).sum(0) / counts.sum()
        var = (counts * (variances + (means - mean) ** 2)).sum(0) / counts.sum()
        return _Moments(mean, var, int(counts.sum()))

    def _remember(self, moments: _Moments) -> None:
        """The running averages, of the unbiased variance, as torch keeps them."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        mean, var, rows = moments
        self.num_batches_tracked.add_(1)
        part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), part)
        self.running_var.lerp_((var * rows / max(1, rows - 1)).to(self.running_var), part)

    def sum_up(self, sums: Tensor) -> Tensor:
        """Over all ranks."""
        return self._ranks.gather_all(sums).sum(0)


class _Normalise(torch.autograd.Function):
    """By moments that follow from the rows of all ranks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, moments: _Moments, norm: GroupBatchNorm
    ) -> Tensor:
        mean, var = moments.mean.to(x), moments.var.to(x)
        scale = torch.ones_like(mean) if weight is None else weight
        ctx.save_for_backward(x, scale, mean, var)
        ctx.rows, ctx.norm, ctx.counts = moments.rows, norm, norm.counts
        return nn.functional.batch_norm(x, mean, var, scale, bias, False, 0.0, norm.eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        x, scale, mean, var = ctx.saved_tensors
        dx, dscale, dbias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, scale, mean, var, None, None, False, ctx.norm.eps, [True, True, True]
        )
        by_scale, by_bias = ctx.norm.sum_up(torch.stack([dscale, dbias]))
        if ctx.counts:  # a row that does not count has no part in the moments, and its derivative is 0
            inverse = torch.rsqrt(var + ctx.norm.eps)
            shift, slope = scale * inverse * by_bias / ctx.rows, scale * inverse**2 * by_scale / ctx.rows
            dx -= ((x - _wide(mean, x)) * _wide(slope, x)).add_(_wide(shift, x))
        wants = ctx.needs_input_grad
        return dx if wants[0] else None, dscale if wants[1] else None, dbias if wants[2] else None, None, None


def _wide(values: Tensor, like: Tensor) -> Tensor:
    """One value a channel, in the shape of `like`."""
    return values.reshape(-1, *[1] * (like.dim() - 2))
