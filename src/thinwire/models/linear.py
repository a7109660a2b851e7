"""One linear layer, with or without an activation: the papers' MNIST bottom model."""

from __future__ import annotations

from torch import Tensor, nn

from thinwire.models.activations import activation as activation_named
from thinwire.models.checks import checked_size, flat_rows

__all__ = ["LinearBottom"]


class LinearBottom(nn.Module):
    """activation(W x + b), the rows' features flattened: [B, ...] -> [B, width]."""

    def __init__(self, in_features: int, width: int, bias: bool = True, activation: str | None = None) -> None:
        super().__init__()
        self.in_features = checked_size(self, "in_features", in_features)
        self.width = checked_size(self, "width", width)
        self.linear = nn.Linear(self.in_features, self.width, bias=bias)
        self.activation = activation_named(activation, self)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.activation(self.linear(flat_rows(self, x, self.in_features)))
        return h
