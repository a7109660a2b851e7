"""Top models: what the label party puts after the fusion."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from thinwire.models.checks import checked_size, flat_rows
from thinwire.models.mlp import MLP

__all__ = ["LinearTop", "MLPTop"]


class LinearTop(nn.Module):
    """W h + b: [B, in_features] -> [B, classes]. One class: a logit or a prediction, [B, 1]."""

    def __init__(self, in_features: int, classes: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features = checked_size(self, "in_features", in_features)
        self.linear = nn.Linear(self.in_features, checked_size(self, "classes", classes), bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        outputs: Tensor = self.linear(flat_rows(self, h, self.in_features))
        return outputs


class MLPTop(MLP):
    """Fully connected layers: [B, in_features] -> [B, classes]."""

    def __init__(
        self, in_features: int, hidden: Sequence[int], classes: int, activation: str | None = "relu"
    ) -> None:
        super().__init__(in_features, hidden, classes, activation)
