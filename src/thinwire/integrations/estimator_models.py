"""The models of an estimator, networks, boosted trees or an exact regression, and what goes with each kind."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from thinwire.base.errors import BadLabels, BadParameter
from thinwire.base.format import did_you_mean, quote_names
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation
from thinwire.data.prepare.settings import FOR_TREES
from thinwire.engine.compress import RowScale
from thinwire.engine.methods import METHODS, boosting, svfl, thin
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.losses import (
    Loss,
    WeightedLoss,
    binary_cross_entropy,
    choose_curvature,
    cross_entropy,
    find_base_rate,
    squared_error,
)
from thinwire.engine.models.networks import MLP, BiasTop, InteractionTop, LinearTop
from thinwire.engine.models.optimizers import SGD, Adam, OptimizerSpec
from thinwire.engine.models.regression import Facts, Linear, RegressionTop
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.recipe import Recipe
from thinwire.engine.wire.entropy import Effort
from thinwire.job.checks import may_use_base_rate
from thinwire.job.registry import derive_weight_seed
from thinwire.report.record import Coefficient, CoefficientTable


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
    effort: Effort = "small"
    is_exact: bool = False  # fits all rows to the optimum: nothing to stop early, one logit a row

    def classes_loss(self, classes: int) -> tuple[Loss, int]:
        """The loss for so many classes, and how many outputs the top model has."""
        if self.is_exact and classes != 2:
            raise BadLabels(
                f"Only binary classification is supported by a linear model, and y has {classes} classes; fit one "
                "model per class, as scikit-learn's OneVsRestClassifier does, or use 'mlp' or 'boosted_trees'"
            )
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


_MOST_EXCHANGES = 1000  # a regression ends by itself


def choose_models(model: Any, hidden: Sequence[int], width: int) -> ModelKind:
    """By the name of a kind; or trees like these."""
    if isinstance(model, BoostedTrees) or model == "boosted_trees":
        like = BoostedTrees() if isinstance(model, str) else model
        fusion = "concat" if like.pairs else "sum"
        return ModelKind(partial(_build_trees, like), boosting(), SGD(lr=0.1), 40, 8, fusion=fusion, effort="fast")
    if isinstance(model, Linear) or model == "linear":
        build = partial(_build_regression, None if isinstance(model, str) else model)
        return ModelKind(build, svfl(), SGD(lr=0.1), _MOST_EXCHANGES, 1, preparation={}, is_exact=True)
    if model == "mlp":
        recipe, optimizer = replace(thin(), scoring=RowScale(8)), Adam(lr=0.003, weight_decay=0.001)
        build = partial(_build_networks, hidden, width)
        return ModelKind(build, recipe, optimizer, 20, 5, cross_entropy, preparation={}, full_batch=False)
    hint = did_you_mean(str(model), ("mlp", "boosted_trees", "linear"))
    raise BadParameter(
        "model must be 'mlp', 'boosted_trees', 'linear', a tw.learners.BoostedTrees or a tw.learners.Linear, "
        f"got {model!r}{hint}"
    )


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


def find_class_weights(
    given: Mapping[Any, float] | str, classes: NDArray[Any], counts: NDArray[Any]
) -> NDArray[np.float64]:
    """A factor for each class, in order."""
    if isinstance(given, str):
        if given != "balanced":
            raise BadParameter(f"class_weight must be None, 'balanced' or a weight for each class, got {given!r}")
        return np.asarray(counts.sum() / (len(classes) * counts))
    known = classes.tolist()
    unknown = [one for one in given if one not in known]
    if unknown:
        near = did_you_mean(str(unknown[0]), map(str, known))
        raise BadParameter(f"class_weight has {unknown[0]!r}, y has the classes {quote_names(known)}{near}")
    factors = np.array([float(given.get(one, 1.0)) for one in known])
    if not np.isfinite(factors).all() or (factors < 0).any() or not factors.any():
        raise BadParameter(f"class_weight must be numbers of 0 or more, not zero for all classes, got {dict(given)}")
    return factors


# An exact regression ----------------------------------------------------------------------------------------------


def _build_regression(like: Linear | None, data: EstimatorData) -> dict[str, nn.Module]:
    """Coefficients at each party; a plain "linear" has the l2 of scikit-learn's own LogisticRegression or none."""
    l2 = like.l2 if like is not None else 0.0 if data.loss is squared_error else 1.0
    inference = like is not None and like.inference
    found = {name: Linear(x.shape[1], l2=l2, inference=inference) for name, x in data.features.items()}
    return {**found, "top": RegressionTop(l2=l2)}


def check_convergence(top: nn.Module) -> None:
    """Where the exchanges ended before the optimum."""
    if isinstance(top, RegressionTop) and not Facts(*top.facts.tolist()).settled:
        says = (
            "coefficients were still changing in the last exchange; use more epochs, or none: training then "
            "stops when it has converged"
        )
        warnings.warn(says, ConvergenceWarning, stacklevel=4)


def convert_to_units(table: CoefficientTable, mean: float, deviation: float) -> CoefficientTable:
    """Coefficients of y itself, from those of its deviations from the mean."""
    return table.model_copy(update={"rows": tuple(_convert_row(row, mean, deviation) for row in table.rows)})


def _convert_row(row: Coefficient, mean: float, deviation: float) -> Coefficient:
    """The intercept's z would be of another question: is the mean of y 0?"""
    is_intercept = row.column == "intercept"
    shifts = {"coefficient": 1, "low": 1, "high": 1, "in_units": 0, "error": 0}
    changes: dict[str, float | None] = {"z": None, "p": None} if is_intercept else {}
    for name, shift in shifts.items():
        one = getattr(row, name)
        changes[name] = None if one is None else deviation * one + is_intercept * shift * mean
    return row.model_copy(update=changes)
