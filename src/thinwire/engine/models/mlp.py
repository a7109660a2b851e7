"""Fully connected layers: bottom models, and top models for what comes after the fusion.

`ScaledCosine` is the top model of the deep structured semantic model (Huang et al., 2013), as CELU-VFL trains it on
Avazu: two parties, each with an `MLP` or a `DeepTower` of width 256; fusion is concat, and the top model says how
alike the two embeddings are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.base.errors import BadTensor
from thinwire.engine.models.checks import activation as activation_named
from thinwire.engine.models.checks import flat_rows, require_number, require_size, require_sizes


class LinearBottom(nn.Module):
    """activation(W x + b), the rows' features flattened: [B, ...] -> [B, width]."""

    def __init__(self, in_features: int, width: int, bias: bool = True, activation: str | None = None) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.width = require_size(self, "width", width)
        self.linear = nn.Linear(self.in_features, self.width, bias=bias)
        self.activation = activation_named(activation, self)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.linear(flat_rows(self, x, self.in_features)))
        return h


class MLP(nn.Module):
    """Linear layers with an activation between them, the rows' features flattened: [B, ...] -> [B, width]."""

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        width: int,
        activation: str | None = "relu",
        out_activation: str | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.width = require_size(self, "width", width)
        sizes = [self.in_features, *require_sizes(self, "hidden", hidden), self.width]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs, bias=bias), activation_named(activation, self)]
        layers[-1] = activation_named(out_activation, self, "out_activation")
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(flat_rows(self, x, self.in_features))
        return h


class LinearTop(nn.Module):
    """W h + b: [B, in_features] -> [B, classes]. One class: a logit or a prediction, [B, 1]."""

    def __init__(self, in_features: int, classes: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = require_size(self, "in_features", in_features)
        self.linear = nn.Linear(self.in_features, require_size(self, "classes", classes), bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        outputs: Tensor = self.linear(flat_rows(self, h, self.in_features))
        return outputs


class MLPTop(MLP):
    """Fully connected layers: [B, in_features] -> [B, classes]."""

    def __init__(
        self, in_features: int, hidden: Sequence[int], classes: int, activation: str | None = "relu"
    ) -> None:
        super().__init__(in_features, hidden, classes, activation)


# The deep structured semantic model (Huang et al., 2013), as CELU-VFL trains it on Avazu --------------------------


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
