"""The model that a run delivers: the weights of the evaluation with the best score on validation rows.

The label party's verdict tells every party which evaluation that is, so all of them keep the same round. A resumed
run goes on from the last weights; these come back at the end.

With averaging (torch's AveragedModel does the like) a party also holds a running average of its weights, and
evaluations and the delivered model use that one: avg += 9 / (t + 8) (w - avg) after round t, which forgets the first
rounds as training goes on (Shamir and Zhang, 2013). Buffers, as those of batch normalisation, stay as they are.
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
_WEIGHT = 8  # how much more the last rounds count than the first


class Weighted(Protocol):
    """A model of this party's whose weights can be exchanged."""

    averaging: bool

    @property
    def module(self) -> nn.Module: ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None: ...


class BestModel:
    """A party's copy of its models as they were in the best evaluation so far; none before the first."""

    def __init__(self, models: Mapping[str, Weighted]) -> None:
        self.round: Round | None = None
        self._models = models
        self._weights: _Weights = {}
        self._averages: _Weights = {}  # of trained parameters, of the models that have averages
        self._training: _Weights = {}  # what is trained, while the models have averaged weights

    def average(self, done: Round) -> None:
        """Takes the weights after so many rounds into the averages."""
        for name, model in self._models.items():
            if model.averaging:
                self._average(self._averages.setdefault(name, {}), model.module, (_WEIGHT + 1) / (done + _WEIGHT))

    def _average(self, averages: dict[str, Tensor], module: nn.Module, part: float) -> None:
        for key, tensor in module.state_dict(keep_vars=True).items():
            if not isinstance(tensor, nn.Parameter) or not tensor.requires_grad:
                continue
            if key in averages:
                averages[key].lerp_(tensor.detach(), part)
            else:
                averages[key] = tensor.detach().clone()

    def keep(self, round: Round) -> None:
        self.round, self._weights = round, self._copy()

    @contextmanager
    def average_in(self) -> Iterator[None]:
        """Meanwhile the models have averaged weights, where there are any."""
        if not any(self._averages.values()):
            yield
            return
        self._training = {name: held for name, held in self._copy().items() if name in self._averages}
        self._load(self._merge_averages(self._training))
        try:
            yield
        finally:
            self._load(self._training)
            self._training = {}

    @contextmanager
    def swap_in(self) -> Iterator[None]:
        """Meanwhile the models have the weights that are delivered; then the last ones again."""
        if self.round is None:
            with self.average_in():
                yield
            return
        last = self._copy()
        self._load(self._weights)
        try:
            yield
        finally:
            self._load(last)

    def deliver(self) -> None:
        """Those weights for good, in this process; nothing is trained from here on."""
        weights = self._weights
        if self.round is None and self._averages:
            weights = self._merge_averages(self._copy())
        for name, tensors in weights.items():
            self._models[name].module.load_state_dict(tensors)

    def _copy(self) -> _Weights:
        return {
            name: {key: tensor.detach().clone() for key, tensor in model.module.state_dict().items()}
            for name, model in self._models.items()
        }

    def _merge_averages(self, weights: _Weights) -> _Weights:
        return {name: tensors | self._averages.get(name, {}) for name, tensors in weights.items()}

    def _load(self, weights: _Weights) -> None:
        for name, held in weights.items():
            self._models[name].load_weights(held)

    def tensors(self) -> dict[str, Tensor]:
        """During an evaluation the models' own tensors are averages, and what is trained is here."""
        found = _join("average", self._averages) | _join("training", self._training)
        if self.round is not None:
            found |= {"round": torch.tensor(self.round)} | _join("weights", self._weights)
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """After the models' own tensors."""
        self.round = int(tensors["round"]) if "round" in tensors else None
        self._weights = self._split("weights", tensors)
        averages = self._split("average", tensors)
        self._averages = {name: _copy_like(self._models[name].module, held) for name, held in averages.items()}
        if training := self._split("training", tensors):
            self._load(training)

    def _split(self, part: str, tensors: Mapping[str, Tensor]) -> _Weights:
        found = {name: dict(remove_prefix(f"{part}.{name}", tensors)) for name in self._models}
        return {name: held for name, held in found.items() if held}


def _join(part: str, weights: _Weights) -> dict[str, Tensor]:
    return {key: t for name, held in weights.items() for key, t in add_prefix(f"{part}.{name}", held).items()}


def _copy_like(module: nn.Module, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where the module computes."""
    like = module.state_dict()
    return {key: tensor.to(like[key].device, copy=True) for key, tensor in held.items()}
