"""Fully connected layers: bottom models, and top models for what comes after the fusion."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from thinwire.engine.models.checks import activation as activation_named
from thinwire.engine.models.checks import flat_rows, require_size, require_sizes


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
