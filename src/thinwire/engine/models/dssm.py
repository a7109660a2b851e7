"""The deep structured semantic model (Huang et al., 2013), as CELU-VFL trains it on Avazu.

Two parties, each with an `MLP` or a `DeepTower` of width 256; fusion is concat, and the top model says
how alike the two embeddings are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.base.errors import BadTensor
from thinwire.engine.models.checks import require_number


class ScaledCosine(nn.Module):
    """scale * cos(left half, right half), a logit a row: [B, 2 E] -> [B]. The scale is learned.

    A half that is all zeros has cosine 0 and passes no derivative: sparse messages hold such rows, and
    the cosine's own slope has no bound there.
    """

    def __init__(self, scale: float = 10.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([require_number(self, "scale", scale, above=0)]))

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2 or x.shape[1] % 2 or not x.shape[1]:
            raise BadTensor(
                f"ScaledCosine: the input has shape {tuple(x.shape)}, expected [B, 2 E]: two embeddings of "
                "the same width under fusion='concat'"
            )
        left, right = x.chunk(2, dim=1)
        with torch.no_grad():
            both = (left.abs().amax(dim=1) > 0) & (right.abs().amax(dim=1) > 0)
            ones = (~both).to(x.dtype).unsqueeze(1)  # for zeros; added, which costs a fraction of choosing
        cosine = functional.cosine_similarity(left + ones, right + ones)
        return self.scale * cosine.where(both, 0.0)
