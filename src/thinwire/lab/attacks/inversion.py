"""Features from embeddings: what the label party can rebuild of a feature party's columns.

It holds the embedding of every row. With the features of a few rows, from a leak or a shared customer, it learns the
way back from embedding to features: a ridge regression on the embeddings and on random bends of them, its penalty
chosen by leaving known rows out. Under secure sum it has only the sum of all parties' embeddings, under noise only
noisy ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.base.errors import BadTensor

_BENDS = 64
_PENALTIES = torch.logspace(-6, 4, 21, dtype=torch.float64)


def inverted(embeddings: Tensor, known: Tensor, features: Tensor) -> Tensor:
    """The features [N, F] of all rows, as guessed from embeddings [N, E] and the features of the `known` rows."""
    if len(known) != len(features) or len(known) < 3:
        raise BadTensor(f"inversion needs the features of three known rows at least, got {len(features)}")
    truth = features.detach().double().reshape(len(features), -1)
    inputs = _bent(embeddings.detach().double(), known)
    mean = truth.mean(dim=0)
    return inputs @ _ridge(inputs[known], truth - mean) + mean


def _bent(embeddings: Tensor, known: Tensor) -> Tensor:
    """Embeddings of scale 1, and as many random piecewise linear functions of them."""
    known_rows = embeddings[known]
    spread = known_rows.std(dim=0)
    scaled = (embeddings - known_rows.mean(dim=0)) / torch.where(spread > 1e-9, spread, torch.ones_like(spread))
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(scaled.shape[1], _BENDS, generator=rng, dtype=torch.float64) / scaled.shape[1] ** 0.5
    offsets = torch.randn(_BENDS, generator=rng, dtype=torch.float64)
    bends = torch.relu(scaled @ weights + offsets) / _BENDS**0.5
    both = torch.cat([scaled, bends], dim=1)
    return both - both[known].mean(dim=0)


def _ridge(inputs: Tensor, targets: Tensor) -> Tensor:
    """The weights of the ridge regression whose error on left-out rows is least."""
    u, s, vt = torch.linalg.svd(inputs, full_matrices=False)
    projected = u.T @ targets
    best: tuple[float, Tensor] | None = None
    for penalty in _PENALTIES:
        shrink = s.square() / (s.square() + penalty)
        # Each row's influence on its own fit, and on the mean: what is left is the error as if it were left out.
        influence = u.square() @ shrink + 1 / len(inputs)
        left_out = (targets - u @ (shrink[:, None] * projected)) / (1 - influence).clamp(min=1e-6)[:, None]
        error = float(left_out.square().sum())
        if best is None or error < best[0]:
            best = error, vt.T @ ((shrink / s.clamp(min=1e-12))[:, None] * projected)
    if best is None:
        raise BadTensor("inversion: no penalty to choose from")
    return best[1]
