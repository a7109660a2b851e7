"""What the label party brings to either conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.conversations.learner import Learner, prefixed, unprefixed
from thinwire.conversations.seat import taken
from thinwire.models.fusion import fuse
from thinwire.models.losses import Weighted
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
    _running: tuple[float, int] = (0.0, 0)  # the batches' losses since the last look: sum and rows

    def own(self, rows: Rows) -> list[Tensor]:
        """The label party's own embedding, last in the order; none where it has no features."""
        if self.bottom is None or self.features is None:
            return []
        return [self.bottom.forward(taken(self.features, rows))]

    def losses(self, embeddings: list[Tensor], rows: Rows) -> Tensor:
        """One loss a row."""
        losses = self.loss(self.top.forward(fuse(self.fusion, embeddings)), taken(self.labels, rows))
        self._running = (self._running[0] + losses.detach().sum().item(), self._running[1] + len(losses))
        return losses

    def derivatives(self, loss: Tensor, embeddings: list[Tensor]) -> list[Tensor]:
        """dL/dh for each embedding; the top model's gradients are then in place.

        Not by backward(): it would copy one derivative for every party, even where all are the same.
        """
        ours = self.top.trained
        found = torch.autograd.grad(loss, [*embeddings, *ours], allow_unused=True)
        for parameter, gradient in zip(ours, found[len(embeddings) :], strict=True):
            parameter.grad = gradient
        pairs = zip(embeddings, found, strict=False)
        return [torch.zeros_like(h) if derivative is None else derivative for h, derivative in pairs]

    def running_loss(self) -> float | None:
        """The mean loss of the batches since the last look; None where there were none."""
        total, rows = self._running
        self._running = (0.0, 0)
        return total / rows if rows else None

    def architecture(self) -> str:
        """The top model, fusion and loss in words: what parties under shared labels must have alike."""
        return f"{self.fusion} fusion, {_named(self.loss)}, {self.top.module!r}"

    def like(self) -> Tensor:
        """A tensor where and as the top model computes."""
        held = self.top.trained or list(self.top.module.parameters())
        return held[0].detach() if held else torch.zeros(1)

    def step(self) -> None:
        self.top.step()
        if self.bottom is not None:
            self.bottom.step()

    def begin(self, round: Round) -> None:
        self.top.begin(round)
        if self.bottom is not None:
            self.bottom.begin(round)

    def tensors(self) -> dict[str, Tensor]:
        found = prefixed("top", self.top.tensors()) | {"running": torch.tensor(self._running, dtype=torch.float64)}
        return found | ({} if self.bottom is None else prefixed("bottom", self.bottom.tensors()))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.top.load(unprefixed("top", tensors))
        total, rows = tensors["running"].tolist()
        self._running = (total, int(rows))
        if self.bottom is not None:
            self.bottom.load(unprefixed("bottom", tensors))


def _named(loss: Callable[[Tensor, Tensor], Tensor]) -> str:
    """A loss by its name, and its class weights; never by its address."""
    if isinstance(loss, Weighted):
        return f"{_named(loss.loss)} weighted by {list(loss.class_weights)}"
    return getattr(loss, "__name__", type(loss).__name__)
