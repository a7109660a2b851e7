"""Model quality, counted over the test rows: confusion, ROC, calibration, residuals; no value of a single row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.engine.models.losses import Outputs
from thinwire.engine.programs.parties import LabelParty
from thinwire.report.record import Quality

_BINS = 10
_POINTS = 100  # of a ROC curve
_MOST_CLASSES = 20  # in a table of confusions
_RESIDUAL_BINS = 21

Array = NDArray[np.float64]


def assess_quality(outputs: Tensor, party: LabelParty, round: int) -> Quality | None:
    """Of the label party's test rows; None where outputs are of no known kind, or not finite."""
    found = count_quality(outputs, party.test_labels, round, Outputs.of(party.loss))
    names = () if party.coding is None else party.coding.classes
    if found is None or len(names) != len(found.confusion):
        return found
    return found.model_copy(update={"classes": tuple(names)})


def count_quality(outputs: Tensor, labels: Tensor, round: int, kind: Outputs = Outputs.RAW) -> Quality | None:
    """Of outputs [N], [N, 1] or [N, C] and labels [N]; a loss of one's own leaves the task to be guessed."""
    said = outputs.detach().cpu().double().numpy()
    said = said[:, 0] if said.ndim == 2 and said.shape[1] == 1 else said
    if said.ndim not in (1, 2) or labels.dim() != 1 or len(said) != len(labels) or not np.isfinite(said).all():
        return None
    truth = labels.cpu().double().numpy()
    are_classes = bool(np.isin(truth, range(2 if said.ndim == 1 else said.shape[1])).all())
    if said.ndim == 1 and (kind is Outputs.VALUE or not are_classes):
        return Quality(task="regression", rows=len(said), round=round, **_regression(said, truth))
    if not are_classes:
        return None
    if said.ndim == 2 and said.shape[1] > 2:
        return Quality(task="classes", rows=len(said), round=round, **_classes(said, truth.astype(np.int64)))
    score = said if said.ndim == 1 else said[:, 1] - said[:, 0]
    return Quality(task="binary", rows=len(said), round=round, **_binary(score, truth.astype(np.int64)))


def _classes(said: Array, truth: NDArray[np.int64]) -> dict[str, Any]:
    chances = np.exp(said - said.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chosen = chances.argmax(axis=1)
    found: dict[str, Any] = _calibration(chances.max(axis=1), chosen == truth)
    if said.shape[1] <= _MOST_CLASSES:
        found["confusion"] = _confusion(truth, chosen, said.shape[1])
    return found


def _binary(score: Array, truth: NDArray[np.int64]) -> dict[str, Any]:
    import sklearn.metrics

    positive = truth == 1
    chance = 1 / (1 + np.exp(-np.clip(score, -500, 500)))
    found = {**_calibration(chance, positive), "confusion": _confusion(truth, (score > 0).astype(np.int64), 2)}
    if positive.all() or not positive.any():
        return found
    alarms, hits, _ = sklearn.metrics.roc_curve(positive, score, drop_intermediate=False)
    found["auc"] = float(sklearn.metrics.auc(alarms, hits))
    kept = np.unique(np.linspace(0, len(hits) - 1, min(len(hits), _POINTS)).round().astype(int))
    found["roc"] = [(float(alarms[at]), float(hits[at])) for at in kept]
    return found


def _confusion(truth: NDArray[np.int64], chosen: NDArray[np.int64], classes: int) -> list[list[int]]:
    import sklearn.metrics

    rows: list[list[int]] = sklearn.metrics.confusion_matrix(truth, chosen, labels=range(classes)).tolist()
    return rows


def _calibration(chance: Array, so: NDArray[np.bool_]) -> dict[str, Any]:
    """Rows by the probability that was said: how often was it so?"""
    bins = np.minimum((chance * _BINS).astype(int), _BINS - 1)
    found, error = [], 0.0
    for number in range(_BINS):
        inside = bins == number
        count = int(inside.sum())
        if count:
            mean, share = float(chance[inside].mean()), float(so[inside].mean())
            found.append((mean, share, count))
            error += count * abs(mean - share) / len(chance)
    return {"calibration": found, "calibration_error": error}


def _regression(said: Array, truth: Array) -> dict[str, Any]:
    residuals = truth - said
    # The outermost rows would stretch the axis for all others.
    low, high = np.quantile(residuals, [0.005, 0.995]) if len(residuals) > 200 else (residuals.min(), residuals.max())
    high = high if high > low else low + 1e-9
    counts, edges = np.histogram(np.clip(residuals, low, high), _RESIDUAL_BINS, (low, high))
    order = np.array_split(np.argsort(said, kind="stable"), min(20, len(said)))
    spread = float(((truth - truth.mean()) ** 2).sum())
    return {
        "residuals": [(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)],
        "predicted": [(float(said[part].mean()), float(truth[part].mean()), len(part)) for part in order],
        "errors": {
            "rmse": float(np.sqrt((residuals**2).mean())),
            "mae": float(np.abs(residuals).mean()),
            **({"r2": 1 - float((residuals**2).sum()) / spread} if spread else {}),
        },
    }
