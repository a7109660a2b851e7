"""Baselines beside a model: the label party alone, and all columns in one place, on the same test rows.

scikit-learn's defaults with a fixed seed: what a data scientist would try first on a table.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.engine.models.losses import Outputs
from thinwire.engine.models.metrics import metric
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.job import Job
from thinwire.report.record import ALL_PARTIES, BaselineScore

MOST_ROWS = 200_000  # that a baseline is trained on
_MANY_CELLS = 5_000_000  # of a table that is worth several threads
_LEAST_CHANCE = 1e-15
_MOST_CODES = 255  # of a category that a baseline's trees split by
_LEAST_RATE = 1e-6
TaskKind: TypeAlias = Literal["classes", "binary", "regression"]


@dataclass(frozen=True, eq=False)
class BaselineTask:
    """What is predicted, and how predictions are scored: in the form of the model's own outputs, by its metric."""

    kind: TaskKind
    width: int  # logits a row; 1 where the model gives one number
    metric: str
    score: Callable[[Tensor, Tensor], float]  # (outputs, labels)
    outputs: Outputs = Outputs.RAW  # the model's

    @classmethod
    def of(cls, kind: TaskKind, outputs: Tensor, party: LabelParty, metrics: Sequence[str]) -> BaselineTask:
        """`outputs` are the model's, on any rows; scores are the first metric, or the loss."""
        name = next(iter(metrics), "loss")
        width = outputs.shape[1] if outputs.dim() == 2 else 1
        return cls(kind, width, name, choose_score(name, party), Outputs.of(party.loss))

    def to_outputs(self, estimator: Any, features: NDArray[np.float32]) -> Tensor:
        """Values [N], log-odds [N] or log-probabilities [N, C]."""
        if self.kind == "regression":
            values = torch.from_numpy(estimator.predict(features)).double()
            return values.clamp(min=_LEAST_RATE).log() if self.outputs is Outputs.COUNT else values
        chances = np.zeros((len(features), max(2, self.width)))
        chances[:, estimator.classes_.astype(int)] = estimator.predict_proba(features)
        logs = torch.from_numpy(np.log(chances.clip(_LEAST_CHANCE, 1)))
        return logs if self.width > 1 else logs[:, 1] - logs[:, 0]


def choose_score(name: str, party: LabelParty) -> Callable[[Tensor, Tensor], float]:
    """A metric by its name, or the label party's mean loss."""
    if name != "loss":
        kind = Outputs.of(party.loss)
        return lambda outputs, labels: metric(name).compute(kind.to_scored(outputs), labels)
    return lambda outputs, labels: float(party.loss(outputs, labels).double().mean())


def score_baselines(job: Job, kind: TaskKind, outputs: Tensor) -> list[BaselineScore]:
    """Of a job whose parties are all here; `outputs` are its model's, on the test rows."""
    task = BaselineTask.of(kind, outputs, job.label_party, job.metrics)
    return [*score_label_party(task, job.label_party), *score_joined_table(task, job.label_party, job.parties)]


def score_label_party(task: BaselineTask, party: LabelParty) -> list[BaselineScore]:
    """What the label party reaches with its own columns; without any, by the class prior or the mean label."""
    if party.features is None or party.test_features is None:
        return _score_each(task, party.name, _priors(task), party, ())
    return _score_each(task, party.name, _estimators(task, _list_codes([party])), party, (party,))


def score_joined_table(task: BaselineTask, party: LabelParty, parties: Sequence[FeatureParty]) -> list[BaselineScore]:
    """What the same rows give with all columns in one place: a simulator's to know."""
    every = [*parties, *(() if party.features is None else (party,))]
    return _score_each(task, ALL_PARTIES, _estimators(task, _list_codes(every)), party, every)


def _score_each(
    task: BaselineTask,
    columns: str,
    estimators: Mapping[str, Any],
    labels: LabelParty,
    parties: Sequence[FeatureParty | LabelParty],
) -> list[BaselineScore]:
    rows = _choose_rows(len(labels.labels))
    truth = labels.labels[rows].cpu().numpy()
    if task.kind != "regression" and len(np.unique(truth)) == 1:
        estimators = _priors(task)
    training = _join([party.list_rows() for party in parties], rows)
    test = _join([party.list_rows(HeldOut.TEST) for party in parties], torch.arange(len(labels.test_labels)))
    found = []
    for name, estimator in estimators.items():
        began = perf_counter()
        value, note = _score(task, estimator, (training, truth), (test, labels.test_labels))
        seconds = perf_counter() - began
        found.append(
            BaselineScore(
                name=name,
                columns=columns,
                metric=task.metric,
                value=value,
                seconds=seconds,
                rows=len(rows),
                note=note or _describe_sample(len(rows), len(labels.labels)),
            )
        )
    return found


def _score(
    task: BaselineTask,
    estimator: Any,
    training: tuple[NDArray[np.float32], NDArray[Any]],
    test: tuple[NDArray[np.float32], Tensor],
) -> tuple[float | None, str]:
    """A baseline that cannot be trained costs its bar, not the run."""
    features, labels = test
    try:
        with warnings.catch_warnings(), _limit_threads(training[0].size):
            warnings.simplefilter("ignore")  # it may not have converged: that is its score
            estimator.fit(*training)
            return task.score(task.to_outputs(estimator, features), labels), ""
    except (ValueError, MemoryError, FloatingPointError) as error:
        return None, f"not trained: {error}"


def _limit_threads(cells: int) -> Any:
    """One for a small table: threads that wait for each other at every split take longer on a busy machine."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1 if cells < _MANY_CELLS else None)


def _choose_rows(rows: int) -> Tensor:
    """All, or a sample by a fixed seed."""
    if rows <= MOST_ROWS:
        return torch.arange(rows)
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:MOST_ROWS].sort().values


def _describe_sample(chosen: int, rows: int) -> str:
    return "" if chosen == rows else f"trained on {chosen:,} of {rows:,} rows, sampled at random"


def _join(tables: Sequence[Tensor], rows: Tensor) -> NDArray[np.float32]:
    """[rows, all columns]; one column of zeros where there is no table."""
    parts = [table[rows].flatten(1).float().cpu().numpy() for table in tables] or [
        np.zeros((len(rows), 1), np.float32)
    ]
    return np.concatenate(parts, axis=1)


def _list_codes(parties: Sequence[FeatureParty | LabelParty]) -> list[int]:
    """Columns of the joined table that hold codes of categories, as many as trees take."""
    found, start = [], 0
    for party in parties:
        sizes = getattr(party.bottom, "fields_vocab", ())
        found += [start + place for place, size in enumerate(sizes) if size <= _MOST_CODES]
        start += party.features[0].numel()
    return found


def _estimators(task: BaselineTask, codes: Sequence[int]) -> dict[str, Any]:
    """For tables whose columns `codes` hold codes of categories, and where others may have gaps."""
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    scaled = make_column_transformer((one_hot, list(codes)), remainder=numbers) if codes else numbers
    boosting = {"categorical_features": list(codes) or None, "random_state": 0}
    if task.kind == "regression":
        return {
            "ridge_regression": make_pipeline(scaled, Ridge(random_state=0)),
            "boosted_trees": HistGradientBoostingRegressor(**boosting),
        }
    return {
        "logistic_regression": make_pipeline(scaled, LogisticRegression(random_state=0)),
        "boosted_trees": HistGradientBoostingClassifier(**boosting),
    }


def _priors(task: BaselineTask) -> dict[str, Any]:
    from sklearn.dummy import DummyClassifier, DummyRegressor

    if task.kind == "regression":
        return {"mean_label": DummyRegressor()}
    return {"class_prior": DummyClassifier(strategy="prior")}
