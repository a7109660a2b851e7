"""How far a cached row may be trusted: the cosine between what it was and what it is."""

from __future__ import annotations

from math import cos, radians

import torch
from torch import Tensor

__all__ = ["cosine_weights"]


def cosine_weights(now: Tensor, cached: Tensor, xi_degrees: float) -> tuple[Tensor, Tensor]:
    """(weights, cosines), one a row; a weight is 0 where the cosine is below cos(xi).

    The cosine with one zero vector is 0, of two 1; never NaN.
    """
    dtype = now.dtype
    now, cached = now.flatten(1).double(), cached.flatten(1).double()  # float32 lengths would underflow
    lengths = now.norm(dim=1) * cached.norm(dim=1)
    cosines = (now * cached).sum(dim=1) / lengths.clamp_min(torch.finfo(now.dtype).tiny)
    both_zero = (now == 0).all(dim=1) & (cached == 0).all(dim=1)
    cosines = torch.where(both_zero, torch.ones_like(cosines), cosines.clamp(-1, 1))
    weights = torch.where(cosines < cos(radians(xi_degrees)), torch.zeros_like(cosines), cosines)
    return weights.to(dtype), cosines.to(dtype)
