"""The models of an estimator, networks or boosted trees, and what goes with each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from thinwire.engine.compress import RowScale
from thinwire.engine.methods import METHODS, boosting, thin
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.losses import (
    Loss,
    WeightedLoss,
    binary_cross_entropy,
    choose_curvature,
    cross_entropy,
    find_base_rate,
)
from thinwire.engine.models.networks import MLP, BiasTop, InteractionTop, LinearTop
from thinwire.engine.models.optimizers import SGD, Adam, OptimizerSpec
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.recipe import Recipe
from thinwire.job.checks import may_use_base_rate
from thinwire.job.registry import derive_weight_seed


@dataclass(frozen=True)
class EstimatorData:
    """What a job is made of."""

    label_party: PartyName
    prepared: Mapping[PartyName, Preparation]
    features: Mapping[PartyName, Tensor]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None
    held: NDArray[np.bool_]  # rows for validation
    loss: Loss
    outputs: int  # of the top model, a row
    recipe: Recipe
    seed: int


@dataclass(frozen=True)
class ModelKind:
    """One kind of bottom models, with the loss, settings and defaults that suit it."""

    build: Callable[[EstimatorData], dict[str, nn.Module]]  # bottom models by party, and the top model as "top"
    recipe: Recipe
    optimizer: OptimizerSpec
    epochs: float
    patience: int
    binary_loss: Loss = binary_cross_entropy
    preparation: Mapping[str, Any] = field(default_factory=lambda: FOR_TREES)
    full_batch: bool = True
    fusion: str = "sum"

    def classes_loss(self, classes: int) -> tuple[Loss, int]:
        """The loss for so many classes, and how many outputs the top model has."""
        loss = self.binary_loss if classes == 2 else cross_entropy
        return loss, classes if loss is cross_entropy else 1

    def find_recipe(self, recipe: str | Recipe | None) -> Recipe:
        if recipe is None or isinstance(recipe, Recipe):
            return recipe or self.recipe
        if recipe not in METHODS:
            raise BadParameter(
                f"recipe {recipe!r} is not one of {', '.join(METHODS)}{did_you_mean(str(recipe), METHODS)}"
            )
        method: Callable[..., Recipe] = METHODS[recipe]
        if any(parameter.default is Parameter.empty for parameter in signature(method).parameters.values()):
            raise BadParameter(f"recipe {recipe!r} needs arguments: give a recipe, such as tw.methods.{recipe}(...)")
        return method()


def choose_models(model: Any, hidden: Sequence[int], width: int) -> ModelKind:
    """By the name of a kind; or trees like these."""
    if isinstance(model, BoostedTrees) or model == "boosted_trees":
        like = BoostedTrees() if isinstance(model, str) else model
        fusion = "concat" if like.pairs else "sum"
        return ModelKind(partial(_build_trees, like), boosting(), SGD(lr=0.1), 40, 8, fusion=fusion)
    if model == "mlp":
        # Without cached steps, which overfit small tables.
        recipe, optimizer = replace(thin(reuse=1), scoring=RowScale(8)), Adam(lr=0.003, weight_decay=0.001)
        build = partial(_build_networks, hidden, width)
        return ModelKind(build, recipe, optimizer, 20, 5, cross_entropy, preparation={}, full_batch=False)
    hint = did_you_mean(str(model), ("mlp", "boosted_trees"))
    raise BadParameter(f"model must be 'mlp', 'boosted_trees' or a tw.learners.BoostedTrees, got {model!r}{hint}")


def _build_networks(hidden: Sequence[int], width: int, data: EstimatorData) -> dict[str, nn.Module]:
    """An MLP at each party, and a linear top model."""
    parts = {name: partial(MLP, x.shape[1], hidden, width) for name, x in data.features.items()}
    found = {name: _draw(data.seed, name, "bottom", part) for name, part in parts.items()}
    return {**found, "top": _draw(data.seed, data.label_party, "top", partial(LinearTop, width, data.outputs))}


def _draw(seed: int, party: PartyName, part: str, build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_weight_seed(seed, party, part))
        return build()


def _build_trees(like: BoostedTrees, data: EstimatorData) -> dict[str, nn.Module]:
    """Trees like these at each party, and a top model that adds a bias, and products where the trees have pairs."""
    given = {name: getattr(like, name) for name in signature(BoostedTrees).parameters}
    if like.curvature == "derived":
        weighted = data.weights is not None or isinstance(data.loss, WeightedLoss)
        given["curvature"] = choose_curvature(data.loss, not weighted and isinstance(data.recipe.defence, NoDefence))
    width = data.outputs * (1 + like.pairs)
    joined = width * len(data.prepared)
    top = InteractionTop(joined, data.outputs, like.pairs) if like.pairs else BiasTop(data.outputs)
    if may_use_base_rate(data.recipe):
        rows = torch.from_numpy(~data.held)
        weights = None if data.weights is None else torch.from_numpy(data.weights)[rows]
        top.begin_at(find_base_rate(data.loss, torch.from_numpy(data.labels)[rows], data.outputs, weights))
    found = {
        name: BoostedTrees(**{**given, "width": width, "fields_vocab": preparation.vocabularies})
        for name, preparation in data.prepared.items()
    }
    return {**found, "top": top}
