"""The label party's defence: what its labels and derivatives become before anything follows from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.conversations.evaluation import evaluating
from thinwire.privacy import NoiseKey
from thinwire.privacy.defences import Defence, NoDefence
from thinwire.types import PartyName, Round

__all__ = ["Guard", "classes_of"]


def classes_of(top: nn.Module, width: int) -> int:
    """As many as the top model tells apart; a single output tells two. It must not follow from the labels."""
    like = next(top.parameters(), torch.zeros(1))
    with evaluating(top):
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

    def protected(self, derivatives: list[Tensor], labels: Tensor, round: Round) -> list[Tensor]:
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
