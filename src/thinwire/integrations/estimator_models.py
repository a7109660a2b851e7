"""The models of an estimator: networks, or boosted trees; and what goes with each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from thinwire.base.errors import BadParameter
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation
from thinwire.data.prepare.settings import FOR_TREES
from thinwire.engine.methods import METHODS, boosting, thin
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.losses import (
    Loss,
    WeightedLoss,
    binary_cross_entropy,
    cross_entropy,
    find_base_rate,
    squared_error,
)
from thinwire.engine.models.networks import MLP, BiasTop, LinearTop
from thinwire.engine.models.optimizers import SGD, Adam, OptimizerSpec
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.recipe import Recipe
from thinwire.job.checks import may_use_base_rate
from thinwire.job.registry import derive_weight_seed


@dataclass(frozen=True)
class EstimatorData:
    """What a job is made of."""

    prepared: Mapping[PartyName, Preparation]
    features: Mapping[PartyName, Tensor]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    held: NDArray[np.bool_]  # rows for validation
    loss: Loss
    outputs: int  # of the top model, a row
    seed: int

    @property
    def is_weighted(self) -> bool:
        return self.weights is not None or isinstance(self.loss, WeightedLoss)


class ModelKind(ABC):
    """One kind of bottom models, and the top model, settings and defaults that suit it."""

    epochs: float
    patience: int
    optimizer: OptimizerSpec
    preparation: Mapping[str, Any]  # settings of each party's

    @abstractmethod
    def default_recipe(self) -> Recipe: ...

    @abstractmethod
    def classes_loss(self, classes: int) -> tuple[Loss, int]:
        """The loss for so many classes, and how many outputs the top model has."""

    @abstractmethod
    def limit_batch(self, size: int | None) -> int | None:
        """Rows a round, of those that were asked for; None: all of them."""

    @abstractmethod
    def build(self, data: EstimatorData, label_party: PartyName, recipe: Recipe) -> dict[str, nn.Module]:
        """A bottom model for each party with features, and the top model as "top"."""

    def find_recipe(self, recipe: str | Recipe | None) -> Recipe:
        if recipe is None:
            return self.default_recipe()
        if isinstance(recipe, Recipe):
            return recipe
        if recipe not in METHODS:
            raise BadParameter(
                f"recipe {recipe!r} is not one of {', '.join(METHODS)}{did_you_mean(str(recipe), METHODS)}"
            )
        method: Callable[..., Recipe] = METHODS[recipe]
        if any(parameter.default is Parameter.empty for parameter in signature(method).parameters.values()):
            raise BadParameter(f"recipe {recipe!r} needs arguments: give a recipe, such as tw.methods.{recipe}(...)")
        return method()


@dataclass(frozen=True)
class Networks(ModelKind):
    """An MLP at each party, and a linear top model."""

    hidden: Sequence[int]
    width: int
    epochs: float = 20
    patience: int = 5
    optimizer: OptimizerSpec = field(default_factory=lambda: Adam(lr=0.003, weight_decay=0.001))
    preparation: Mapping[str, Any] = field(default_factory=dict)

    def default_recipe(self) -> Recipe:
        """Few bytes and no cached steps, which overfit small tables."""
        return thin(reuse=1)

    def classes_loss(self, classes: int) -> tuple[Loss, int]:
        return cross_entropy, classes

    def limit_batch(self, size: int | None) -> int | None:
        return size

    def build(self, data: EstimatorData, label_party: PartyName, recipe: Recipe) -> dict[str, nn.Module]:
        found = {
            name: _build(data.seed, name, "bottom", partial(MLP, x.shape[1], self.hidden, self.width))
            for name, x in data.features.items()
        }
        return {**found, "top": _build(data.seed, label_party, "top", partial(LinearTop, self.width, data.outputs))}


@dataclass(frozen=True)
class Trees(ModelKind):
    """Boosted trees at each party, as `like` has them, and a top model that adds a bias."""

    like: BoostedTrees
    epochs: float = 40
    patience: int = 8
    optimizer: OptimizerSpec = field(default_factory=lambda: SGD(lr=0.1))
    preparation: Mapping[str, Any] = field(default_factory=lambda: FOR_TREES)

    def default_recipe(self) -> Recipe:
        return boosting()

    def classes_loss(self, classes: int) -> tuple[Loss, int]:
        return (binary_cross_entropy, 1) if classes == 2 else (cross_entropy, classes)

    def limit_batch(self, size: int | None) -> int | None:
        """Trees are fitted to all rows."""
        return None

    def build(self, data: EstimatorData, label_party: PartyName, recipe: Recipe) -> dict[str, nn.Module]:
        given = {name: getattr(self.like, name) for name in signature(BoostedTrees).parameters}
        given |= {"width": data.outputs, "curvature": self._choose_curvature(data, recipe)}
        found: dict[str, nn.Module] = {
            name: BoostedTrees(**{**given, "fields_vocab": preparation.vocabularies})
            for name, preparation in data.prepared.items()
        }
        top = BiasTop(data.outputs)
        if may_use_base_rate(recipe):
            rows = torch.from_numpy(~data.held)
            weights = None if data.weights is None else torch.from_numpy(data.weights)[rows]
            top.begin_at(find_base_rate(data.loss, torch.from_numpy(data.labels)[rows], data.outputs, weights))
        return {**found, "top": top}

    def _choose_curvature(self, data: EstimatorData, recipe: Recipe) -> float | str:
        """What it says, where it says anything; of the loss where that alone decides a derivative."""
        if self.like.curvature != "derived" or data.loss is squared_error:
            return 2.0 if self.like.curvature == "derived" else self.like.curvature
        return 0.25 if data.is_weighted or not isinstance(recipe.defence, NoDefence) else "derived"


def choose_models(model: Any, hidden: Sequence[int], width: int) -> ModelKind:
    """By the name of a kind; or trees like these."""
    if isinstance(model, BoostedTrees):
        return Trees(model)
    kinds: dict[str, Callable[[], ModelKind]] = {
        "mlp": lambda: Networks(hidden, width),
        "boosted_trees": lambda: Trees(BoostedTrees()),
    }
    if not isinstance(model, str) or model not in kinds:
        known, hint = ", ".join(kinds), did_you_mean(str(model), kinds)
        raise BadParameter(f"model must be one of {known}, or a tw.learners.BoostedTrees, got {model!r}{hint}")
    return kinds[model]()


def _build(seed: int, party: PartyName, part: str, build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_weight_seed(seed, party, part))
        return build()
