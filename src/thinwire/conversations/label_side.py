"""What the label party brings to either conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.conversations.learner import Learner, prefixed, unprefixed
from thinwire.conversations.seat import taken
from thinwire.models.fusion import fuse
from thinwire.streams import Rows
from thinwire.types import Round

__all__ = ["LabelSide"]


@dataclass
class LabelSide:
    """Labels, loss, fusion and the top model; its own features and bottom model, where it has them."""

    top: Learner
    labels: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]  # per row
    fusion: str
    bottom: Learner | None = None
    features: Tensor | None = None

    def own(self, rows: Rows) -> list[Tensor]:
        """The label party's own embedding, last in the order; none where it has no features."""
        if self.bottom is None or self.features is None:
            return []
        return [self.bottom.forward(taken(self.features, rows))]

    def losses(self, embeddings: list[Tensor], rows: Rows) -> Tensor:
        """One loss a row."""
        return self.loss(self.top.forward(fuse(self.fusion, embeddings)), taken(self.labels, rows))

    def like(self) -> Tensor:
        """A tensor where and as the top model computes."""
        return next((parameter.detach() for parameter in self.top.module.parameters()), torch.zeros(1))

    def step(self) -> None:
        self.top.step()
        if self.bottom is not None:
            self.bottom.step()

    def begin(self, round: Round) -> None:
        self.top.begin(round)
        if self.bottom is not None:
            self.bottom.begin(round)

    def tensors(self) -> dict[str, Tensor]:
        found = prefixed("top", self.top.tensors())
        return found | ({} if self.bottom is None else prefixed("bottom", self.bottom.tensors()))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.top.load(unprefixed("top", tensors))
        if self.bottom is not None:
            self.bottom.load(unprefixed("bottom", tensors))
