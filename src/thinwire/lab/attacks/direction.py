"""Labels from the direction of derivatives.

Li et al., 2022, "Label leakage and protection in two-party split learning".

p - y is negative for the rows of class 1 and positive for the others, whatever the model has learned: the derivatives
of the two classes point opposite ways. One row of known class is enough to tell which way is which.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from thinwire.base.errors import BadTensor


def direction_scores(derivatives: Tensor, known: Tensor) -> Tensor:
    """The average cosine of each row of [N, E] with the derivatives of the rows `known` to be of the class."""
    if not len(known):
        raise BadTensor("direction_scores: the attacker knows no row of the class")
    unit = normalize(derivatives.detach().double(), dim=1)
    # What is alike but for the last bits of float32 is alike.
    return (unit @ unit[known].mean(dim=0)).round(decimals=6)


def longest_rows(derivatives: Tensor, count: int) -> Tensor:
    """For an attacker who knows no row: those with the longest derivatives, most of them of the rare class."""
    norms = derivatives.detach().double().norm(dim=1)
    return torch.topk(norms, min(count, len(norms))).indices
