"""Fully connected layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from thinwire.models.activations import activation as activation_named
from thinwire.models.checks import checked_size, checked_sizes, flat_rows

__all__ = ["MLP"]


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
        self.in_features = checked_size(self, "in_features", in_features)
        self.width = checked_size(self, "width", width)
        sizes = [self.in_features, *checked_sizes(self, "hidden", hidden), self.width]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs, bias=bias), activation_named(activation, self)]
        layers[-1] = activation_named(out_activation, self, "out_activation")
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(flat_rows(self, x, self.in_features))
        return h
