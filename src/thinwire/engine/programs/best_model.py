"""The model that a run delivers: the weights of the evaluation with the best score on validation rows.

The label party's verdict tells every party which evaluation that is, so all of them keep the same round. A resumed
run goes on from the last weights; these come back at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from thinwire.base.types import Round
from thinwire.engine.protocols.context import add_prefix, remove_prefix

_Weights = dict[str, dict[str, Tensor]]  # by model, by parameter or buffer


class Weighted(Protocol):
    """A model of this party's whose weights can be exchanged."""

    @property
    def module(self) -> nn.Module: ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None: ...


class BestModel:
    """A party's copy of its models as they were in the best evaluation so far; none before the first."""

    def __init__(self, models: Mapping[str, Weighted]) -> None:
        self.round: Round | None = None
        self._models = models
        self._weights: _Weights = {}

    def keep(self, round: Round) -> None:
        self.round, self._weights = round, self._copy()

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Meanwhile the models have the best weights; then the last ones again."""
        if self.round is None:
            yield
            return
        last = self._copy()
        self._load(self._weights)
        try:
            yield
        finally:
            self._load(last)

    def deliver(self) -> None:
        """The best weights for good, in this process; nothing is trained from here on."""
        for name, weights in self._weights.items():
            self._models[name].module.load_state_dict(weights)

    def _copy(self) -> _Weights:
        return {
            name: {key: tensor.detach().clone() for key, tensor in model.module.state_dict().items()}
            for name, model in self._models.items()
        }

    def _load(self, weights: _Weights) -> None:
        for name, model in self._models.items():
            model.load_weights(weights[name])

    def tensors(self) -> dict[str, Tensor]:
        if self.round is None:
            return {}
        found = {"round": torch.tensor(self.round)}
        for name, weights in self._weights.items():
            found |= add_prefix(f"weights.{name}", weights)
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.round = int(tensors["round"]) if "round" in tensors else None
        self._weights = {}
        if self.round is not None:
            self._weights = {name: dict(remove_prefix(f"weights.{name}", tensors)) for name in self._models}
