"""`VerticalClassifier` and `VerticalRegressor`: fit, predict and score, as scikit-learn's own estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from thinwire.base.errors import BadInput, BadLabels, BadParameter, BadTable, IncompatibleRecipe
from thinwire.base.types import PartyName
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.losses import Loss, squared_error, with_class_weights
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.models.regression import Linear
from thinwire.engine.privacy.defences import LabelDP
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.protocols.evaluation import compute_outputs, embed_in_chunks
from thinwire.engine.recipe import Recipe
from thinwire.integrations.estimator_models import (
    EstimatorData,
    ModelKind,
    check_convergence,
    choose_models,
    convert_to_units,
    find_class_weights,
)
from thinwire.integrations.labels import code_classes, read_labels, read_values, read_weights
from thinwire.integrations.party_tables import (
    Table,
    check_party_names,
    check_table,
    count_columns,
    fit_preparation,
    prepare,
    refuse_sparse,
    select_rows,
    split,
)
from thinwire.job.checks import allows_steering
from thinwire.job.job import Job
from thinwire.job.settings import RunSettings
from thinwire.training.train import train


@dataclass(frozen=True)
class _TrainingRows:
    """What `fit` was given, checked: rows that weigh nothing are left out."""

    tables: Mapping[PartyName, Table]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None = None  # 1 on average


class _Vertical(BaseEstimator):  # type: ignore[misc]
    """Each party's columns go through a model of its own; what meets at the label party is what was sent."""

    def __init__(
        self,
        parties: Mapping[PartyName, Any] | None = None,
        label_party: PartyName = "labels",
        *,
        model: str | BoostedTrees | Linear = "mlp",
        recipe: str | Recipe | None = None,
        hidden: Sequence[int] = (64,),
        width: int = 16,
        epochs: float | None = None,
        batch_size: int | None = 64,
        optimizer: OptimizerSpec | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.parties = parties
        self.label_party = label_party
        self.model = model
        self.recipe = recipe
        self.hidden = hidden
        self.width = width
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state

    def __repr__(self) -> str:
        """The parameters that are not the default ones; of parties' columns how many."""
        changed = self._changed_parameters()
        if "parties" in changed and isinstance(self.parties, Mapping):
            columns = ", ".join(f"{name!r}: {count_columns(given)}" for name, given in self.parties.items())
            changed["parties"] = f"{{{columns}}}"
        if isinstance(self.recipe, Recipe):
            changed["recipe"] = self.recipe.name
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in changed.items())})"

    def _changed_parameters(self) -> dict[str, str]:
        defaults = signature(type(self)).parameters
        shown = {name: repr(value) for name, value in self.get_params(deep=False).items()}
        return {name: text for name, text in shown.items() if text != repr(defaults[name].default)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    # Fitting --------------------------------------------------------------------------------------------

    def _read_rows(self, X: Any, y: Any, sample_weight: Any) -> _TrainingRows:
        tables = self._begin_tables(X)
        labels = read_labels(y)
        rows = _count_rows(tables)
        if len(labels) != rows:
            raise BadInput(f"X has {rows} rows and y {len(labels)}")
        if sample_weight is None:
            return _TrainingRows(tables, labels)
        weights = read_weights(sample_weight, rows)
        kept = np.flatnonzero(weights)
        return _TrainingRows(
            {name: select_rows(table, kept) for name, table in tables.items()},
            labels[kept],
            weights[kept] / weights[kept].mean(),
        )

    def _begin_tables(self, X: Any) -> dict[PartyName, Table]:
        """Each party's columns of X, by which rows that are to be predicted are checked from here on."""
        refuse_sparse(X)
        self.parties_ = _resolve_parties(self.parties, X)
        check_party_names(self.parties_, self.label_party)
        if not isinstance(X, Mapping):
            return split(self.parties_, self._check_columns(X, reset=True))
        tables = split(self.parties_, X)
        self.n_features_in_ = sum(map(len, tables.values()))
        self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
        return tables

    def _read_tables(self, X: Any) -> dict[PartyName, Table]:
        """Each party's columns of rows that are to be predicted."""
        refuse_sparse(X)
        return split(self.parties_, X if isinstance(X, Mapping) else self._check_columns(X, reset=False))

    def _check_columns(self, X: Any, reset: bool) -> Any:
        """One table, its columns counted and named as scikit-learn does it."""
        table = check_table(X)
        try:
            validate_data(self, table, reset=reset, skip_check_array=True)
        except (TypeError, ValueError) as error:
            raise BadTable(str(error)) from None
        return table

    @property
    def _kind(self) -> ModelKind:
        return choose_models(self.model, self.hidden, self.width)

    def _find_recipe(self) -> Recipe:
        return self._kind.find_recipe(self.recipe)

    def _train(self, rows: _TrainingRows, loss: Loss, outputs: int, groups: NDArray[Any]) -> Self:
        seed = _draw_seed(self.random_state)
        held = self._hold_back(groups, seed)
        self.prepared_ = {
            name: fit_preparation(name, select_rows(table, np.flatnonzero(~held)), self._kind.preparation)
            for name, table in rows.tables.items()
        }
        features = prepare(self.prepared_, rows.tables)
        me, recipe = self.label_party, self._find_recipe()
        data = EstimatorData(
            me, self.prepared_, features, rows.labels, rows.weights, held, loss, outputs, recipe, seed
        )
        self.models_ = self._kind.build(data)
        self.result_ = train(self._job(data), callbacks=[])
        if self._kind.is_exact:
            check_convergence(self.models_["top"])
            self.coefficients_ = self.result_.coefficients
        return self

    def _hold_back(self, groups: NDArray[Any], seed: int) -> NDArray[np.bool_]:
        """Which rows are for validation; none where a guarantee does not count evaluations, or nothing overfits."""
        stops = self.early_stopping and not self._kind.is_exact
        if not stops or not allows_steering(self._find_recipe(), RunSettings()):
            return np.zeros(len(groups), dtype=bool)
        return choose_validation_rows(groups, self.validation_fraction, seed)

    def _job(self, given: EstimatorData) -> Job:
        """The one place where a job is made; with validation rows it stops early and delivers the best model."""
        me, rows, held = self.label_party, torch.from_numpy(~given.held), torch.from_numpy(given.held)
        kind, size = self._kind, None if self._kind.full_batch else self.batch_size
        stops = bool(held.any())
        features = {name: x[rows] for name, x in given.features.items()}
        named = given.prepared if kind.is_exact else {}  # a table of coefficients has the columns' names
        patience = kind.patience if self.n_iter_no_change is None else self.n_iter_no_change
        steering: dict[str, Any] = {"patience": patience} if stops else {}
        answers: dict[str, Any] = {"validation_labels": given.labels[given.held]} if stops else {}
        validation: dict[PartyName, dict[str, Any]] = {
            name: {"validation_features": x[held]} if stops else {} for name, x in given.features.items()
        }
        return Job(
            [
                FeatureParty(name, x, self.models_[name], preparation=named.get(name), **validation[name])
                for name, x in features.items()
                if name != me
            ],
            LabelParty(
                me,
                given.labels[~given.held],
                self.models_["top"],
                features=features.get(me),
                bottom=self.models_.get(me),
                fusion=kind.fusion,
                preparation=named.get(me),
                loss=given.loss,
                sample_weight=None if given.weights is None else given.weights[~given.held],
                **answers,
                **validation.get(me, {}),
            ),
            given.recipe,
            kind.optimizer if self.optimizer is None else self.optimizer,
            batch_size=None if size is None else min(size, int(rows.sum())),
            epochs=kind.epochs if self.epochs is None else self.epochs,
            seed=given.seed,
            effort=kind.effort,
            metrics=(),
            diagnostics=False,
            **steering,
        )

    def _compute_outputs(self, X: Any) -> NDArray[np.float64]:
        """The top model's, [rows, classes]; the models run in this process, and nothing is sent."""
        check_is_fitted(self, "result_")
        features = prepare(self.prepared_, self._read_tables(X))
        own = [name for name in features if name == self.label_party]
        order = [name for name in features if name != self.label_party] + own
        # In float64: then what stands beside a row changes its prediction by less than anybody compares.
        models = {name: deepcopy(model).double() for name, model in self.models_.items()}
        found = compute_outputs(
            models["top"],
            self._kind.fusion,
            [embed_in_chunks(models[name], features[name].double()) for name in order],
        )
        return found.numpy()


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    """Classification with two or more classes, whose labels may be text.

    Each party's columns go through a model of its own. `fit` trains it as `tw.train` does; `result_` is its result.

    Args:
        parties: each party's columns by name, number or slice. None: one party "features" has all columns or, where X
            is a dict of tables, each table is a party.
        label_party: the party with the labels: one of the parties, or one more without columns.
        model: "mlp": an MLP per party and a linear top model. "boosted_trees", or `tw.learners.BoostedTrees(...)`:
            exchanges of all rows. "linear", or `tw.learners.Linear(...)`: exact regression without early stopping;
            `coefficients_` has each party's table. A plain "linear" has l2 1 for classes, as scikit-learn's
            LogisticRegression, and none for values.
        recipe: a recipe or a method's name; `tw.methods.thin()` with validation rows scored at 8 bits per value, or
            `tw.methods.boosting()` for trees, unless given.
        hidden: hidden layers of each party's MLP.
        width: embedding width of each party's MLP.
        epochs: 20, or 40 exchanges for trees, unless given.
        batch_size: rows per round, for networks.
        optimizer: Adam(lr=0.003, weight_decay=0.001) unless given.
        class_weight: a weight per class, 1 where none is given; "balanced" for rows / (classes * rows of the class).
        early_stopping: keep the model with the lowest loss on validation rows, and stop once it no longer falls.
        validation_fraction: fraction of the rows used for that.
        n_iter_no_change: epochs without a lower loss before stopping; 5, or 8 for trees, unless given.
        random_state: seed of batches and initial weights.

    Raises:
        BadInput: raised by `fit` and `predict`: columns, labels or settings that cannot be used.

    Examples:
        >>> X, y = torch.rand(60, 3).numpy(), ["good", "bad"] * 30
        >>> model = tw.VerticalClassifier({"bank": [0, 1], "shop": [2]}, label_party="shop", epochs=1).fit(X, y)
        >>> model.predict_proba(X).shape, model.result_.bytes.up > 0
        ((60, 2), True)
    """

    def __init__(
        self,
        parties: Mapping[PartyName, Any] | None = None,
        label_party: PartyName = "labels",
        *,
        model: str | BoostedTrees | Linear = "mlp",
        recipe: str | Recipe | None = None,
        hidden: Sequence[int] = (64,),
        width: int = 16,
        epochs: float | None = None,
        batch_size: int | None = 64,
        optimizer: OptimizerSpec | None = None,
        class_weight: Mapping[Any, float] | str | None = None,
        early_stopping: bool = True,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        super().__init__(
            parties,
            label_party,
            model=model,
            recipe=recipe,
            hidden=hidden,
            width=width,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = self.model != "linear" and not isinstance(self.model, Linear)
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """`sample_weight` weights each row's loss; gradients leak weights as they leak labels.

        Weights are normalised by their mean, and rows with weight 0 are dropped.
        """
        rows = self._read_rows(X, y, sample_weight)
        self.classes_, codes = code_classes(rows.labels)
        loss, outputs = self._kind.classes_loss(len(self.classes_))
        weighted = self._weigh_classes(loss, codes, rows.weights)
        return self._train(replace(rows, labels=codes), weighted, outputs, codes)

    def _weigh_classes(self, loss: Loss, codes: NDArray[np.int64], weights: NDArray[np.float64] | None) -> Loss:
        if self.class_weight is None:
            return loss
        if self.class_weight == "balanced" and isinstance(self._find_recipe().defence, LabelDP):
            raise IncompatibleRecipe(
                "class_weight='balanced' uses the true labels, which LabelDP does not cover; give explicit weights"
            )
        counts = np.bincount(codes, weights)
        factors = find_class_weights(self.class_weight, self.classes_, counts)
        return with_class_weights(loss, (factors * counts.sum() / (factors * counts).sum()).tolist())

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """[rows, classes], in the order of `classes_`."""
        logits = torch.from_numpy(self._compute_logits(X))
        found: NDArray[np.float64] = torch.softmax(logits, dim=1).numpy()
        return found

    def _compute_logits(self, X: Any) -> NDArray[np.float64]:
        """[rows, classes]; one output is that of the second class, beside 0."""
        outputs = self._compute_outputs(X)
        return outputs if outputs.shape[1] > 1 else np.concatenate([np.zeros_like(outputs), outputs], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        best = self._compute_logits(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    """Regression: one number per row, trained on deviations from the mean, predicted in y's own units.

    Args:
        parties: each party's columns by name, number or slice. None: one party "features" has all columns or, where X
            is a dict of tables, each table is a party.
        label_party: the party with the labels: one of the parties, or one more without columns.
        model: "mlp": an MLP per party and a linear top model. "boosted_trees", or `tw.learners.BoostedTrees(...)`:
            exchanges of all rows. "linear", or `tw.learners.Linear(...)`: exact regression without early stopping;
            `coefficients_` has each party's table. A plain "linear" has l2 1 for classes, as scikit-learn's
            LogisticRegression, and none for values.
        recipe: a recipe or a method's name; `tw.methods.thin()` with validation rows scored at 8 bits per value, or
            `tw.methods.boosting()` for trees, unless given.
        hidden: hidden layers of each party's MLP.
        width: embedding width of each party's MLP.
        epochs: 20, or 40 exchanges for trees, unless given.
        batch_size: rows per round, for networks.
        optimizer: Adam(lr=0.003, weight_decay=0.001) unless given.
        early_stopping: keep the model with the lowest loss on validation rows, and stop once it no longer falls.
        validation_fraction: fraction of the rows used for that.
        n_iter_no_change: epochs without a lower loss before stopping; 5, or 8 for trees, unless given.
        random_state: seed of batches and initial weights.

    Raises:
        BadInput: raised by `fit` and `predict`: columns, labels or settings that cannot be used.

    Examples:
        >>> X, y = torch.rand(60, 3).numpy(), torch.rand(60).numpy()
        >>> model = tw.VerticalRegressor({"bank": [0, 1], "shop": [2]}, label_party="shop", epochs=1)
        >>> model.fit(X, y).predict(X).shape
        (60,)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """`sample_weight` weights each row's loss; gradients leak weights as they leak labels.

        Weights are normalised by their mean, and rows with weight 0 are dropped.
        """
        rows = self._read_rows(X, y, sample_weight)
        values = read_values(rows.labels)
        self.mean_ = float(np.average(values, weights=rows.weights))
        self.deviation_ = float(np.sqrt(np.average((values - self.mean_) ** 2, weights=rows.weights)))
        if not self.deviation_:
            samples = "1 sample" if len(values) == 1 else f"{len(values)} samples"
            raise BadLabels(f"all labels of {samples} are {values[0]:g}; there is nothing to learn")
        scaled = ((values - self.mean_) / self.deviation_).astype(np.float32)
        self._train(replace(rows, labels=scaled), squared_error, 1, np.zeros(len(scaled)))
        if self._kind.is_exact:
            units = partial(convert_to_units, mean=self.mean_, deviation=self.deviation_)
            self.coefficients_ = {name: units(table) for name, table in self.coefficients_.items()}
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        scaled = self._compute_outputs(X)[:, 0]
        return scaled * self.deviation_ + self.mean_


# What `fit` is given ----------------------------------------------------------------------------------------------


def _resolve_parties(parties: Mapping[PartyName, Any] | None, X: Any) -> Mapping[PartyName, Any]:
    """Without any, all columns are one party's, or each table of X is."""
    if parties is not None:
        return parties
    return dict.fromkeys(X) if isinstance(X, Mapping) else {"features": slice(None)}


def _count_rows(tables: Mapping[PartyName, Table]) -> int:
    return len(next(iter(next(iter(tables.values())).values())))


def choose_validation_rows(groups: NDArray[Any], fraction: float, seed: int) -> NDArray[np.bool_]:
    """That fraction of each group's rows, drawn by row number; one row at least is left to train on."""
    if not 0 < fraction < 1:
        raise BadParameter(f"validation_fraction must be between 0 and 1, got {fraction!r}")
    rng = np.random.RandomState(seed)
    chosen = np.zeros(len(groups), dtype=bool)
    for group in np.unique(groups):
        rows = rng.permutation(np.flatnonzero(groups == group))
        chosen[rows[: min(round(fraction * len(rows)), len(rows) - 1)]] = True
    return chosen


# What a job is made of --------------------------------------------------------------------------------------------


def _draw_seed(random_state: Any) -> int:
    """The number itself where one is given; else drawn, a new one at each fit."""
    if isinstance(random_state, (int, np.integer)) and random_state >= 0:
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError:
        raise BadParameter(
            f"random_state must be a number from 0, a numpy RandomState or None, got {random_state!r}"
        ) from None
