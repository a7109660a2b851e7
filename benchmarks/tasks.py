"""Nine data sets with a network each, as fewest_bytes.py trains them: the same rows and weights for every method.

Sizes are such that a trial of plain split learning takes about 40 seconds of a core. A tenth of the training rows,
5,000 at most, are validation rows, drawn once for all runs.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from math import log2
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import thinwire as tw
from thinwire.engine.models import LOSSES, MODELS
from thinwire.engine.recipe import Recipe
from thinwire.lab.datasets import Scale, load_split
from thinwire.lab.datasets.vertical import LABEL, VerticalData, Views

_VALIDATION_SHARE, _VALIDATION_MOST = 0.1, 5_000
_VALIDATION_SEED = 20_000


class Networks(NamedTuple):
    """A bottom model a feature party, the label party's own where it holds features, and the top model."""

    bottoms: Sequence[nn.Module]
    top: nn.Module
    label_bottom: nn.Module | None = None


@dataclass(frozen=True)
class Codes:
    """What `once` sends of a row, and what learns from it."""

    encoder: str  # directions or bins
    detail: float = 0.0  # bits a row, or bins a column
    top: str = "network"  # or trees


class CodeKinds(NamedTuple):
    """What suits a data set: the encoder, and the top models to choose from."""

    encoder: str
    tops: Sequence[str]


_PICTURES = CodeKinds("directions", ["network"])
_TABLES = CodeKinds("bins", ["trees"])


@dataclass(frozen=True)
class Task:
    """A job up to its recipe, optimiser, batch size and seed."""

    data: str
    about: str  # rows and networks, in words
    networks: Callable[[VerticalData], Networks]
    metric: str
    epochs: float  # at most
    eval_rows: int  # training rows between two evaluations, whatever the batch size
    patience: int  # evaluations without a better validation score
    lr: float  # of Adam, in the first trial
    fusion: str = "sum"
    loss: str = "cross_entropy"
    class_weights: tuple[float, ...] | None = None
    load: Mapping[str, Any] = field(default_factory=dict)  # as `load_split` takes it
    codes: CodeKinds = _PICTURES

    def describe(self) -> dict[str, Any]:
        """What records were computed with; they cannot be compared with those of another size."""
        left_out = {"networks", "load", "class_weights", "codes"}
        return {name: value for name, value in asdict(replace(self, load={})).items() if name not in left_out}


@dataclass(frozen=True, eq=False)
class Rows:
    """The feature parties' tables, the label party's own where it has one, and the labels."""

    features: Sequence[Tensor]
    label_features: Tensor | None
    labels: Tensor


@dataclass(frozen=True, eq=False)
class TaskData:
    """A data set with its validation rows apart; the test rows are for the judge alone."""

    vertical: VerticalData
    train: Rows
    validation: Rows
    test: Rows


@lru_cache(maxsize=1)
def load_data(name: str) -> TaskData:
    task = TASKS[name]
    data = load_split(task.data, **task.load)
    rows = len(data.labels)
    order = np.random.default_rng(_VALIDATION_SEED).permutation(rows)
    held = min(int(rows * _VALIDATION_SHARE), _VALIDATION_MOST)
    return TaskData(
        data,
        _select_rows(data, np.sort(order[held:])),
        _select_rows(data, np.sort(order[:held])),
        Rows(data.test_features, data.test_label_features, data.test_labels),
    )


def _select_rows(data: VerticalData, numbers: NDArray[np.int64]) -> Rows:
    rows = torch.from_numpy(numbers)
    own = data.label_features
    return Rows([x[rows] for x in data.features], None if own is None else own[rows], data.labels[rows])


def build_job(task: Task, data: TaskData, recipe: Recipe, settings: Mapping[str, Any]) -> tw.Job:
    """First weights follow from the seed among `settings`; test rows are no part of the job."""
    torch.manual_seed(settings["seed"])
    networks, train, validation = task.networks(data.vertical), data.train, data.validation
    tables = zip(data.vertical.names, train.features, networks.bottoms, validation.features, strict=True)
    parties = [tw.FeatureParty(name, x, bottom, validation_features=held) for name, x, bottom, held in tables]
    label = tw.LabelParty(
        LABEL, train.labels, networks.top, validation_labels=validation.labels, features=train.label_features,
        validation_features=validation.label_features, bottom=networks.label_bottom, fusion=task.fusion,
        loss=LOSSES[task.loss], class_weights=task.class_weights,
    )  # fmt: skip
    every = max(1, round(task.eval_rows / (settings["batch_size"] or len(train.labels))))
    common = {"epochs": task.epochs, "eval_every": every, "patience": task.patience, "metrics": [task.metric]}
    return tw.Job(parties, label, recipe, **{**common, **settings})


# What it would cost to send the table instead ---------------------------------------------------------------------


def count_raw_bytes(data: TaskData) -> int:
    """Of the feature parties' training rows, gzipped party by party."""
    return sum(len(gzip.compress(_as_integers(x), 9)) for x in data.train.features)


def _as_integers(x: Tensor) -> bytes:
    """At their own precision: pictures as bytes, row by row; of a table each column's values as their ranks.

    Ranks are one, two or four bytes wide, as many values as a column has; which value has which rank is not counted.
    """
    if x.dim() == 4:
        return bytes((x * 255).round().to(torch.uint8).numpy().tobytes())
    columns = x.reshape(-1, x.shape[-1]).numpy().T if x.dim() == 3 else x.numpy().T
    return b"".join(_rank(column).tobytes() for column in columns)


def _rank(column: NDArray[np.float32]) -> NDArray[Any]:
    values, ranks = np.unique(column, return_inverse=True)
    return ranks.astype(np.min_scalar_type(len(values) - 1))


def count_label_bytes(labels: Tensor) -> int:
    """The entropy of the training labels."""
    counts = torch.unique(labels, return_counts=True)[1].tolist()
    bits: float = -sum(count * log2(count / len(labels)) for count in counts)
    return round(bits / 8)


# The networks -----------------------------------------------------------------------------------------------------


def build_quadrants(data: VerticalData) -> Networks:
    bottoms = [nn.Sequential(nn.Flatten(), nn.Linear(196, 16), nn.Sigmoid()) for _ in data.names]
    return Networks(bottoms, nn.Linear(16, 10))


def build_convolutions(data: VerticalData) -> Networks:
    """A quadrant of 16 x 16 pixels; batch normalisation after each convolution."""

    def bottom() -> nn.Module:
        first = [nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        second = [nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(32 * 4 * 4, 64))

    return Networks([bottom() for _ in data.names], nn.Sequential(nn.ReLU(), nn.Linear(64, 10)))


def build_views(data: VerticalData) -> Networks:
    """A view a party, of 32 x 32 pixels, which are halved first."""

    def bottom() -> nn.Module:
        first = [nn.AvgPool2d(2), nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU()]
        second = [nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU()]
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16 * 4 * 4, 64))

    return Networks([bottom() for _ in data.names], nn.Linear(64, 10))


def build_recurrent(data: VerticalData) -> Networks:
    bottoms = [MODELS["lstm"](x.shape[2], hidden=16, width=16, out_activation="sigmoid") for x in data.features]
    return Networks(bottoms, MODELS["mlp_top"](16 * len(bottoms), hidden=[16], classes=1))


def build_wide_and_deep(data: VerticalData) -> Networks:
    deep, wide = (_build_tower(data, *which) for which in ((data.names[0], "deep_tower"), (LABEL, "wide_and_deep")))
    return Networks([deep], nn.Linear(256 + 257, 1), wide)


def build_two_towers(data: VerticalData) -> Networks:
    first, second = (_build_tower(data, name, "deep_tower") for name in (data.names[0], LABEL))
    return Networks([first], MODELS["scaled_cosine"](), second)


def _build_tower(data: VerticalData, party: str, model: str) -> nn.Module:
    x = data.label_features if party == LABEL else data.features[data.names.index(party)]
    if x is None:
        raise ValueError(f"{party} has no features")
    sizes = list(data.categories.get(party, ()))
    return MODELS[model](sizes, x.shape[1] - len(sizes), embedding_width=8, hidden=[256], width=256)


def build_small_table(data: VerticalData) -> Networks:
    def bottom(columns: int) -> nn.Module:
        return nn.Sequential(nn.Linear(columns, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())

    return Networks([bottom(x.shape[1]) for x in data.features], nn.Linear(32, 1))


# What learns from codes --------------------------------------------------------------------------------------------


_DIRECTIONS = 64  # at most


def build_coded(task: Task, data: VerticalData, codes: Codes) -> Networks:
    """Encoders in place of the feature parties' networks, and a network or boosted trees on what they send."""
    encoders = [
        _build_encoder(x, data.categories.get(name, ()), codes)
        for name, x in zip(data.names, data.features, strict=True)
    ]
    outputs = 1 if task.loss == "binary_cross_entropy" else int(data.labels.max()) + 1
    if codes.top == "trees":
        own = None if data.label_features is None else tw.learners.RawColumns()
        return Networks(encoders, tw.learners.BoostedTrees(outputs, shrinkage=0.1, leaves=16), own)
    return Networks(encoders, _build_classifier(sum(encoder.width for encoder in encoders), outputs))


def _build_classifier(columns: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = [nn.BatchNorm1d(columns)]
    for before, after in pairwise((columns, 256, 128)):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(128, outputs))


def _build_encoder(
    x: Tensor, vocabularies: Sequence[int], codes: Codes
) -> tw.learners.Bins | tw.learners.PrincipalDirections:
    columns = x[0].numel()
    if codes.encoder == "bins":
        return tw.learners.Bins(columns, int(codes.detail), list(vocabularies))
    return tw.learners.PrincipalDirections(columns, _DIRECTIONS, codes.detail)


_QUADRANTS: dict[str, Any] = {
    "about": "quadrants, 16 sigmoid units per party, sum, linear top; all rows",
    "networks": build_quadrants, "metric": "accuracy", "epochs": 10, "eval_rows": 10_240, "patience": 12, "lr": 0.01,
    "load": {"scale": Scale.UNIT},
}  # fmt: skip
_CLICKS: dict[str, Any] = {
    "metric": "auc", "epochs": 5, "eval_rows": 2_560, "patience": 14, "lr": 0.001, "fusion": "concat",
    "loss": "binary_cross_entropy", "codes": _TABLES,
}  # fmt: skip

TASKS: dict[str, Task] = {
    "mnist": Task("mnist", **_QUADRANTS),
    "fashion": Task("fashion_mnist", **_QUADRANTS),
    "cifar10": Task(
        "cifar10",
        "quadrants, strided convolutions of 16 and 32 channels with batch normalisation, 64 units per party, sum; "
        "10,000 rows",
        build_convolutions, "accuracy", 12, 4_608, 8, 0.003, load={"scale": Scale.UNIT},
    ),
    "modelnet10": Task(
        "modelnet10",
        "12 parties with a view each, halved; strided convolutions of 8 and 16 channels, 64 units per party, mean; "
        "all rows",
        build_views, "accuracy", 15, 1_792, 10, 0.003, "mean", load={"scale": Scale.UNIT, "split": Views(1)},
    ),
    "physionet2012": Task(
        "physionet2012", "four parties, an LSTM of 16 units each, concat, 16 hidden units; all rows",
        build_recurrent, "auc", 25, 1_792, 12, 0.003, "concat", "binary_cross_entropy", (1.0, 3.0),
        codes=CodeKinds("directions", ["network", "trees"]),
    ),
    "criteo": Task(
        "criteo", "categories / counts, wide and deep towers of 256, concat; all 22,076 rows of the sample",
        build_wide_and_deep, **_CLICKS,
    ),
    "avazu": Task(
        "avazu", "two towers of 256, cosine; all 14,077 rows of the sample", build_two_towers, **_CLICKS,
    ),
    "movielens": Task(
        "movielens", "users / films, two towers of 256, cosine; 60,000 of the 1,000,209 ratings", build_two_towers,
        **{**_CLICKS, "epochs": 3, "eval_rows": 5_120, "load": {"rows": 60_000, "test_rows": 10_000}},
    ),
    "credit": Task(
        "credit_card", "two parties, a hidden layer of 32 and 16 tanh units each, concat; all rows",
        build_small_table, "auc", 30, 10_240, 12, 0.003, "concat", "binary_cross_entropy",
        codes=_TABLES,
    ),
}  # fmt: skip
