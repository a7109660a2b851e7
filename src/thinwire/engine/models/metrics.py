"""Metrics over all rows of an evaluation, in float64: outputs [B], [B, 1] or [B, C], labels [B].

A positive logit says class 1; two logits per row count as their difference. Outputs that hold NaN give
NaN: a run that diverges shows it in its history, and never reaches a target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadInput, BadParameter, BadTensor
from thinwire.base.format import did_you_mean

Array: TypeAlias = NDArray[np.float64]
Compute: TypeAlias = Callable[[Tensor, Tensor], float]
_SORTED = 1 << 20  # labels at a time


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric by name: how to compute it, and which way is better.

    Args:
        name: such as "auc".
        compute: called with outputs and labels; returns a number.
        higher_is_better: False for losses.

    Examples:
        >>> import torch
        >>> tw.models.metric("accuracy").compute(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
        1.0
    """

    name: str
    compute: Compute
    higher_is_better: bool


def metric(name: str) -> Metric:
    """Looks up a metric.

    Args:
        name: one of `tw.models.METRICS`, such as "accuracy", "auc" or "f1".

    Raises:
        BadParameter: no such metric; the message names the nearest.

    Examples:
        >>> tw.models.metric("auc").higher_is_better
        True
    """
    if name in METRICS:
        return METRICS[name]
    raise BadParameter(f"metric {name!r} is not one of {', '.join(METRICS)}{did_you_mean(str(name), METRICS)}")


def try_metric(name: str, outputs: Tensor, labels: Tensor) -> None:
    """Refuses labels that the metric does not take; `outputs` are of one row.

    That follows from which labels there are, so each is tried once; all of them together only for the message.
    """
    few = find_different(labels)
    try:
        metric(name).compute(outputs.expand(len(few), *outputs.shape[1:]), few)
    except BadInput:
        metric(name).compute(outputs.expand(len(labels), *outputs.shape[1:]), labels)


def find_different(labels: Tensor) -> Tensor:
    """Each label once, rising; a part at a time, since sorting takes a multiple of the labels' memory."""
    found: Tensor = torch.unique(torch.cat([torch.unique(part) for part in labels.split(_SORTED)]))
    return found


def _on_arrays(compute: Callable[[Array, Array], float]) -> Compute:
    """From tensors to float64 arrays [B] or [B, C] and [B], checked once for every metric."""

    @wraps(compute)
    def on_tensors(outputs: Tensor, labels: Tensor) -> float:
        name = compute.__name__.replace("_at_", "@")
        values, truth = _array(outputs), _array(labels)
        if values.ndim not in (1, 2) or truth.ndim != 1 or len(values) != len(truth) or not truth.size:
            raise BadTensor(
                f"{name}: outputs of shape {tuple(outputs.shape)} do not fit labels of shape "
                f"{tuple(labels.shape)}; expected [B], [B, 1] or [B, C] and [B], B at least 1"
            )
        if not np.isfinite(truth).all():
            raise BadTensor(f"{name}: the labels hold NaN or infinity; drop the rows with missing labels")
        with np.errstate(invalid="ignore"):  # infinite logits of a diverging run: the result says it
            return float("nan") if np.isnan(values).any() else compute(values, truth)

    return on_tensors


def _array(x: Tensor) -> Array:
    """In float64; [B, 1] as [B]."""
    values: Array = x.detach().cpu().double().numpy()
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


@_on_arrays
def accuracy(outputs: Array, labels: Array) -> float:
    if outputs.ndim == 1:
        return float(np.mean((outputs > 0) == _classes(labels, 2)))
    return float(np.mean(outputs.argmax(axis=1) == _classes(labels, outputs.shape[1])))


@_on_arrays
def accuracy_at_5(outputs: Array, labels: Array) -> float:
    """The label is among the five largest logits; among equal logits the first class counts as larger."""
    if outputs.ndim == 1:
        raise BadTensor("accuracy@5 needs one logit per class, outputs [B, C]; use accuracy")
    classes = _classes(labels, outputs.shape[1])[:, None]
    own = np.take_along_axis(outputs, classes, axis=1)
    earlier = np.arange(outputs.shape[1]) < classes
    ahead = (outputs > own) | ((outputs == own) & earlier)
    return float(np.mean(ahead.sum(axis=1) < 5))


@_on_arrays
def auc(outputs: Array, labels: Array) -> float:
    """The chance that a random positive row scores above a random negative one; ties count half."""
    positive = _classes(labels, 2) == 1
    _, places, counts = np.unique(_score(outputs, "auc"), return_inverse=True, return_counts=True)
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives:
        raise BadInput(
            f"AUC needs both classes: all {len(labels)} rows have class {int(positive[0])}; evaluate on more rows"
        )
    # Twice the average rank is whole, so the sum is exact.
    twice_rank = 2 * np.cumsum(counts) - counts + 1
    twice_sum = int(twice_rank[places][positive].sum())
    return (twice_sum - positives * (positives + 1)) / (2 * positives * negatives)


@_on_arrays
def f1(outputs: Array, labels: Array) -> float:
    """2 TP / (2 TP + FP + FN); 0 where there is no positive row to find or none was found."""
    positive = _classes(labels, 2) == 1
    predicted = _score(outputs, "f1") > 0
    hits, total = int((positive & predicted).sum()), int(positive.sum()) + int(predicted.sum())
    return 2 * hits / total if total else 0.0


@_on_arrays
def log_loss(outputs: Array, labels: Array) -> float:
    if outputs.ndim == 1:
        return float(np.logaddexp(0, np.where(_classes(labels, 2) == 1, -outputs, outputs)).mean())
    classes = _classes(labels, outputs.shape[1])[:, None]
    own = np.take_along_axis(outputs, classes, axis=1)
    return float(np.logaddexp.reduce(outputs - own, axis=1).mean())


@_on_arrays
def mse(outputs: Array, labels: Array) -> float:
    return float(np.square(_prediction(outputs, "mse") - labels).mean())


@_on_arrays
def mae(outputs: Array, labels: Array) -> float:
    return float(np.abs(_prediction(outputs, "mae") - labels).mean())


@_on_arrays
def r2(outputs: Array, labels: Array) -> float:
    """1 - squared error / variance; for constant labels 1 where all are met and else 0."""
    left = np.square(_prediction(outputs, "r2") - labels).sum()
    total = np.square(labels - labels.mean()).sum()
    if (labels == labels[0]).all():
        return float(left == 0)
    return float(1 - left / total)


def _classes(labels: Array, count: int) -> NDArray[np.int64]:
    classes = labels.astype(np.int64)
    wrong = (classes != labels) | (classes < 0) | (classes >= count)
    if wrong.any():
        raise BadTensor(f"labels must be integers from 0 to {count - 1}, got {labels[wrong][0]:g}")
    return classes


def _score(outputs: Array, name: str) -> Array:
    if outputs.ndim == 1:
        return outputs
    if outputs.shape[1] != 2:
        raise BadTensor(f"{name} is for two classes, the outputs have {outputs.shape[1]}; use accuracy")
    return outputs[:, 1] - outputs[:, 0]


def _prediction(outputs: Array, name: str) -> Array:
    if outputs.ndim != 1:
        raise BadTensor(f"{name} is for one prediction per row, the outputs have {outputs.shape[1]}")
    return outputs


METRICS: dict[str, Metric] = {
    entry.name: entry
    for entry in (
        Metric("accuracy", accuracy, higher_is_better=True),
        Metric("accuracy@5", accuracy_at_5, higher_is_better=True),
        Metric("auc", auc, higher_is_better=True),
        Metric("f1", f1, higher_is_better=True),
        Metric("log_loss", log_loss, higher_is_better=False),
        Metric("mse", mse, higher_is_better=False),
        Metric("mae", mae, higher_is_better=False),
        Metric("r2", r2, higher_is_better=True),
    )
}
