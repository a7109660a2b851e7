"""`VerticalClassifier` and `VerticalRegressor`: fit, predict and score, as scikit-learn's own estimators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from thinwire.base.errors import BadColumn, BadInput, BadLabels, BadParameter, BadTable
from thinwire.base.format import did_you_mean, quote_names
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation, Settings
from thinwire.engine.methods import METHODS
from thinwire.engine.models.losses import Loss, cross_entropy, squared_error
from thinwire.engine.models.networks import MLP, LinearTop
from thinwire.engine.models.optimizers import Adam, OptimizerSpec
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.protocols.evaluation import compute_outputs, embed_in_chunks
from thinwire.engine.recipe import Recipe
from thinwire.job.job import Job
from thinwire.job.messages import at
from thinwire.job.registry import derive_weight_seed
from thinwire.training.train import train

Table = dict[str, Any]  # columns by name


def prepare(preparations: Mapping[PartyName, Preparation], tables: Mapping[PartyName, Table]) -> dict[str, Tensor]:
    """Each party's table by its own preparation, fitted on its own rows."""
    found = {}
    for name, preparation in preparations.items():
        with at(f"party {name!r}"):
            found[name] = preparation.apply(tables[name])
    return found


def split(parties: Mapping[PartyName, Any], X: Any) -> dict[PartyName, Table]:
    """Each party's columns of X: a data frame, an array with columns by number, or a table for each party."""
    if not isinstance(parties, Mapping) or not parties:
        raise BadInput('parties must say whose columns are whose, as {"bank": ["age", "income"], "shop": ["visits"]}')
    if isinstance(X, Mapping):
        if set(X) != set(parties):
            theirs, ours = (", ".join(map(str, names)) for names in (X, parties))
            raise BadInput(f"X has tables of {theirs}, and the parties are {ours}")
    elif any(columns is None for columns in parties.values()):
        raise BadInput("columns of None are for X by party; where X is one table, say each party's columns")
    tables = {
        name: _table(name, X[name] if isinstance(X, Mapping) else X, columns) for name, columns in parties.items()
    }
    counts = {name: len(next(iter(table.values()))) for name, table in tables.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise BadTable(f"all parties must hold the same rows in the same order: {said}")
    if not all(counts.values()):
        raise BadTable("X has no rows")
    return tables


def _table(party: PartyName, X: Any, given: Sequence[str | int] | str | int | slice | None) -> Table:
    columns = [given] if isinstance(given, (str, int)) else given
    columns = columns if columns is None or isinstance(columns, slice) else list(columns)
    is_frame = hasattr(X, "columns") and hasattr(X, "iloc")
    table = _of_frame(party, X, columns) if is_frame else _of_array(party, np.asarray(X), columns)
    if not table:
        raise BadColumn(f"party {party!r} has no columns")
    return table


def _of_array(party: PartyName, array: NDArray[Any], columns: Sequence[str | int] | slice | None) -> Table:
    if array.ndim != 2:
        raise BadTable(f"party {party!r}: X has shape {array.shape}, expected [rows, columns]")
    numbers: Any = np.arange(array.shape[1])
    try:
        chosen = numbers if columns is None else numbers[columns]
    except (IndexError, TypeError):
        raise BadColumn(
            f"party {party!r}: X is an array of {array.shape[1]} columns, so columns are numbers from 0 to "
            f"{array.shape[1] - 1}; got {columns!r}"
        ) from None
    return {f"column {number}": array[:, number] for number in chosen}


def _of_frame(party: PartyName, X: Any, columns: Sequence[str | int] | slice | None) -> Table:
    there = list(X.columns)
    wanted = there[columns or slice(None)] if columns is None or isinstance(columns, slice) else list(columns)
    missing = [column for column in wanted if column not in there]
    if missing:
        near = did_you_mean(str(missing[0]), map(str, there))
        raise BadColumn(f"party {party!r}: X has no column {missing[0]!r}, it has {quote_names(there)}{near}")
    return {str(column): X[column].array for column in wanted}


def _fit(party: PartyName, table: Table) -> Preparation:
    """Columns of numbers are numbers, however few different ones there are; text and dates are guessed."""
    numbers = [name for name, values in table.items() if getattr(values.dtype, "kind", "O") in "iuf"]
    with at(f"party {party!r}"):
        return Preparation.fit(table, Settings(types=dict.fromkeys(numbers, "number")))


# `VerticalClassifier` and `VerticalRegressor`: fit, predict and score, as scikit-learn's own estimators -----------


class _Vertical(BaseEstimator):  # type: ignore[misc]
    """Each party's columns go through a network of its own; what meets at the label party is what was sent."""

    def __init__(
        self,
        parties: Mapping[PartyName, Any],
        label_party: PartyName = "labels",
        *,
        recipe: str | Recipe = "thin",
        hidden: Sequence[int] = (32,),
        width: int = 16,
        epochs: float = 20,
        batch_size: int | None = 64,
        optimizer: OptimizerSpec | None = None,
        seed: int = 0,
    ) -> None:
        """`parties` has each party's columns by name or number, or None where X is a table for each party.

        `label_party` has the labels: one of the parties, or one more that has no columns. Every bottom model is an
        MLP of these `hidden` layers and `width`; the top model is linear. The optimiser is Adam(lr=0.01) unless
        another is given.
        """
        self.parties = parties
        self.label_party = label_party
        self.recipe = recipe
        self.hidden = hidden
        self.width = width
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.seed = seed

    def _fit(self, X: Any, labels: NDArray[Any], classes: int, loss: Loss) -> Self:
        tables = split(self.parties, X)
        self.prepared_ = {name: _fit(name, table) for name, table in tables.items()}
        features = prepare(self.prepared_, tables)
        rows = len(next(iter(features.values())))
        if len(labels) != rows:
            raise BadInput(f"X has {rows} rows and y {len(labels)}")
        self.n_features_in_ = sum(len(table) for table in tables.values())
        if hasattr(X, "columns"):
            self.feature_names_in_ = np.asarray(X.columns, dtype=object)
        self.models_ = {
            name: self._build(name, "bottom", lambda x=x: MLP(x.shape[1], self.hidden, self.width))
            for name, x in features.items()
        }
        self.models_["top"] = self._build(self.label_party, "top", lambda: LinearTop(self.width, classes))
        job = self._job(features, labels, loss)
        self.result_ = train(job, callbacks=[])
        return self

    def _job(self, features: dict[PartyName, Tensor], labels: NDArray[Any], loss: Loss) -> Job:
        own = features.get(self.label_party)
        return Job(
            [FeatureParty(name, x, self.models_[name]) for name, x in features.items() if name != self.label_party],
            LabelParty(
                self.label_party,
                labels,
                self.models_["top"],
                features=own,
                bottom=None if own is None else self.models_[self.label_party],
                loss=loss,
            ),
            _recipe(self.recipe),
            Adam(lr=0.01) if self.optimizer is None else self.optimizer,
            batch_size=None if self.batch_size is None else min(self.batch_size, len(labels)),
            epochs=self.epochs,
            seed=self.seed,
            metrics=(),
            diagnostics=False,
        )

    def _build(self, party: PartyName, part: str, build: Any) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_weight_seed(self.seed, party, part))
            module: nn.Module = build()
        return module

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        """The top model's, [rows, classes]; the models run in this process, and nothing is sent."""
        check_is_fitted(self, "result_")
        features = prepare(self.prepared_, split(self.parties, X))
        own = [name for name in features if name == self.label_party]
        order = [name for name in features if name != self.label_party] + own
        found = compute_outputs(
            self.models_["top"], "sum", [embed_in_chunks(self.models_[name], features[name]) for name in order]
        )
        return found.double().numpy()


class VerticalClassifier(ClassifierMixin, _Vertical):  # type: ignore[misc]
    """Classes of any names, two or more.

    model = VerticalClassifier({"bank": ["age", "income"], "shop": ["visits"]}, label_party="shop")
    model.fit(X, y).predict_proba(X_new)
    model.result_.bytes.up        # what went up in training; `result_` is as `thinwire.train` gives it
    """

    def fit(self, X: Any, y: Any) -> Self:
        labels = _line(y)
        if labels.dtype.kind == "f" and not np.equal(labels, np.floor(labels)).all():
            raise BadLabels("y holds numbers that are no classes, such as fractions or NaN; use VerticalRegressor")
        if labels.dtype.kind == "O" and any(label is None or label != label for label in labels):  # noqa: PLR0124
            raise BadLabels("y holds rows without a label; drop them in X and y")
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise BadLabels(f"all {len(labels)} labels are {self.classes_[0]!r}; training needs two classes")
        return self._fit(X, codes, len(self.classes_), cross_entropy)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """[rows, classes], in the order of `classes_`."""
        logits = torch.from_numpy(self._outputs(X))
        found: NDArray[np.float64] = torch.softmax(logits, dim=1).numpy()
        return found

    def predict(self, X: Any) -> NDArray[Any]:
        best = self._outputs(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found


class VerticalRegressor(RegressorMixin, _Vertical):  # type: ignore[misc]
    """One number a row; trained on deviations from the mean, predicted in y's own units."""

    def fit(self, X: Any, y: Any) -> Self:
        values = _line(y).astype(np.float64)
        if not np.isfinite(values).all():
            raise BadLabels(f"y holds {values[~np.isfinite(values)][0]} in row {int(np.argmin(np.isfinite(values)))}")
        self.mean_, self.deviation_ = float(values.mean()), float(values.std())
        if not self.deviation_:
            raise BadLabels(f"all {len(values)} labels are {values[0]:g}; there is nothing to learn")
        scaled = ((values - self.mean_) / self.deviation_).astype(np.float32)
        return self._fit(X, scaled, 1, squared_error)

    def predict(self, X: Any) -> NDArray[np.float64]:
        scaled = self._outputs(X)[:, 0]
        return scaled * self.deviation_ + self.mean_


def _line(y: Any) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not len(labels):
        raise BadLabels(f"y has shape {labels.shape}, expected one label a row")
    return labels


def _recipe(recipe: str | Recipe) -> Recipe:
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
