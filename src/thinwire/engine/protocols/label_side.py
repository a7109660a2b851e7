"""What the label party brings to either conversation, and its defence: what labels and derivatives become."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.base.types import PartyName, Round
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.losses import WeightedLoss
from thinwire.engine.privacy import NoiseKey
from thinwire.engine.privacy.defences import Defence, NoDefence
from thinwire.engine.protocols.bottom import Learner
from thinwire.engine.protocols.context import add_prefix, remove_prefix, select_rows
from thinwire.engine.protocols.evaluation import evaluation_mode
from thinwire.engine.streams import Rows


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
        return [self.bottom.forward(select_rows(self.features, rows))]

    def losses(self, embeddings: list[Tensor], rows: Rows) -> Tensor:
        """One loss a row."""
        losses = self.loss(self.top.forward(fuse(self.fusion, embeddings)), select_rows(self.labels, rows))
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
        found = add_prefix("top", self.top.tensors()) | {"running": torch.tensor(self._running, dtype=torch.float64)}
        return found | ({} if self.bottom is None else add_prefix("bottom", self.bottom.tensors()))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.top.load(remove_prefix("top", tensors))
        total, rows = tensors["running"].tolist()
        self._running = (total, int(rows))
        if self.bottom is not None:
            self.bottom.load(remove_prefix("bottom", tensors))


def _named(loss: Callable[[Tensor, Tensor], Tensor]) -> str:
    """A loss by its name, and its class weights; never by its address."""
    if isinstance(loss, WeightedLoss):
        return f"{_named(loss.loss)} weighted by {list(loss.class_weights)}"
    return getattr(loss, "__name__", type(loss).__name__)


def count_classes(top: nn.Module, width: int) -> int:
    """As many as the top model tells apart; a single output tells two. It must not follow from the labels."""
    like = next(top.parameters(), torch.zeros(1))
    with evaluation_mode(top):
        outputs: Tensor = top(torch.zeros(1, width, dtype=like.dtype, device=like.device))
    return max(2, outputs.shape[-1])


@dataclass(frozen=True, slots=True)
class Guard:
    """A defence, and the label party's own secret behind its noise."""

    defence: Defence
    noise_key: NoiseKey
    run: int
    label_party: PartyName
    fusion: str

    def labels(self, labels: Tensor, classes: int) -> Tensor:
        """The labels to train on: the same ones whenever this run goes on. `classes` must not follow from them."""
        return self.defence.labels(labels, classes, self.noise_key.for_round(self.run, 0, 0, self._named("labels")))

    def protect(self, derivatives: list[Tensor], labels: Tensor, round: Round) -> list[Tensor]:
        """What goes down. Parties that put theirs together must not find more noise draws than one."""
        if isinstance(self.defence, NoDefence):  # nothing is drawn, and a round's key costs as much as a small batch
            return derivatives
        noise = self.noise_key.for_round(self.run, round, 0, self._named("derivatives"))
        if self.fusion != "concat":  # then all are the same
            return [self.defence.protect(derivatives[0], labels, noise)] * len(derivatives)
        joined = self.defence.protect(torch.cat(derivatives, dim=1), labels, noise)
        return list(joined.split([part.shape[1] for part in derivatives], dim=1))

    def _named(self, what: str) -> str:
        return f"{self.label_party}/{what}"
