"""A feature party's bottom model together with its rows: what the conversations ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from thinwire.conversations.evaluation import embedded
from thinwire.conversations.learner import Learner
from thinwire.conversations.seat import taken
from thinwire.streams import Rows
from thinwire.types import Round

__all__ = ["Bottom", "OwnBottom"]


class Bottom(Protocol):
    """Embeds rows and learns from what comes back; in this process alone, or together with others."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    def begin(self, round: Round) -> None:
        """Sets the round's step size."""

    def embed(self, round: Round, rows: Rows) -> Tensor:
        """The embedding of a round's rows, to learn from; [B, E]."""

    def embed_all(self) -> Tensor:
        """Of all training rows, in order; nothing is learned from it."""

    def embed_test(self) -> Tensor | None:
        """Of all test rows, in evaluation mode; None where there are none."""

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        """One update from dL/dh of these rows; `h` is the embedding that was made last."""

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and the optimiser's memory; not copies."""

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


class OwnBottom:
    """In this process alone."""

    def __init__(self, learner: Learner, features: Tensor, test_features: Tensor | None = None) -> None:
        self._learner = learner
        self._features = features
        self._test_features = test_features

    @property
    def module(self) -> nn.Module:
        return self._learner.module

    @property
    def device(self) -> torch.device:
        return self._features.device

    def begin(self, round: Round) -> None:
        self._learner.begin(round)

    def embed(self, round: Round, rows: Rows) -> Tensor:
        return self._learner.forward(taken(self._features, rows))

    def embed_all(self) -> Tensor:
        with torch.no_grad():
            return self._learner.forward(self._features)

    def embed_test(self) -> Tensor | None:
        return None if self._test_features is None else embedded(self.module, self._test_features)

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        self._learner.learn(rows, lambda: taken(self._features, rows), h, derivative)

    def tensors(self) -> dict[str, Tensor]:
        return self._learner.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._learner.load(tensors)
