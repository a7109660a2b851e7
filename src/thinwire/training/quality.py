"""Model quality, counted over rows: scores, curves and tables by decile and threshold; no value of a single row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.engine.models.losses import Outputs
from thinwire.engine.models.metrics import log_loss
from thinwire.engine.programs.parties import LabelParty
from thinwire.engine.programs.program import EvaluationOutputs
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.report.record import ClassScores, DecisionThreshold, ErrorDecile, LiftDecile, Quality, ThresholdScores

_BINS = 10
_LEAST_ROWS = 5  # of a decile: the mean of fewer would tell of single rows
_POINTS = 100  # of a ROC curve
_MOST_CLASSES = 20  # in a table of confusions
_RESIDUAL_BINS = 21
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)  # of rows to flag, about: a threshold for each

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def _round_probability(logit: float) -> float:
    """To three digits of the rarer side."""
    rarer = float(f"{1 / (1 + np.exp(abs(logit))):.3g}")
    return 1 - rarer if logit > 0 else rarer


# Fixed, so that no threshold is a row's own probability; even in log-odds, so that rare classes have some too.
_MOST_LOGIT, _PER_LOGIT = 8, 10
_GRID = np.array([_round_probability(at / _PER_LOGIT) for at in range(-80, 81)])


def assess_held_out(outputs: Mapping[HeldOut, EvaluationOutputs], party: LabelParty) -> Quality | None:
    """Of a model's outputs: judged on test rows, its threshold chosen on validation rows where there are any."""
    tested, steering = outputs.get(HeldOut.TEST), outputs.get(HeldOut.VALIDATION)
    if tested is None or tested.outputs is None:
        return None
    chosen = None
    if steering is not None and steering.outputs is not None:
        chosen = (steering.outputs, party.validation_labels)
    return assess_quality(tested.outputs, party, tested.round, chosen)


def assess_quality(
    outputs: Tensor, party: LabelParty, round: int, validation: tuple[Tensor, Tensor] | None = None
) -> Quality | None:
    """Of the label party's test rows; None where outputs are of no known kind, or not finite.

    `validation`: outputs and labels of the rows that choose the threshold; 0.5 without them.
    """
    kind = Outputs.of(party.loss)
    threshold = None if validation is None else recommend_threshold(*validation, kind=kind)
    found = count_quality(outputs, party.test_labels, round, kind, threshold)
    names = () if party.coding is None else party.coding.classes
    if found is None or len(names) != len(found.confusion):
        return found
    return found.model_copy(update={"classes": tuple(names)})


def count_quality(
    outputs: Tensor,
    labels: Tensor,
    round: int,
    kind: Outputs = Outputs.RAW,
    threshold: DecisionThreshold | None = None,
) -> Quality | None:
    """Of outputs [N], [N, 1] or [N, C] and labels [N]; a loss of one's own leaves the task to be guessed."""
    answers = _read_answers(outputs, labels, kind)
    if answers is None:
        return None
    said, truth = answers.said, answers.truth
    if answers.task == "regression":
        counts = _regression(said, truth)
    elif answers.task == "classes":
        counts = {**_classes(said, truth.astype(np.int64)), "log_loss": log_loss(outputs, labels)}
    else:
        counts = _binary(said, truth == 1, threshold or DecisionThreshold())
        counts["log_loss"] = log_loss(outputs, labels)
    return Quality(task=answers.task, rows=len(said), round=round, **counts)


def recommend_threshold(
    outputs: Tensor, labels: Tensor, by: str = "f1", kind: Outputs = Outputs.RAW
) -> DecisionThreshold | None:
    """The best one by a field of `ThresholdScores`, on these rows; they must not be test rows. None: not binary."""
    answers = _read_answers(outputs, labels, kind)
    if answers is None or answers.task != "binary":
        return None
    rows = _score_thresholds(_sigmoid(answers.said), answers.truth == 1, _GRID)
    best = max(rows, key=lambda row: (getattr(row, by) or 0.0, -abs(row.threshold - 0.5)))
    return DecisionThreshold(value=best.threshold, chosen_by=by, rows=len(answers.truth))


@dataclass(frozen=True)
class _Answers:
    task: Literal["classes", "binary", "regression"]
    said: Array  # values or logits of class 1 [N], or logits [N, C]
    truth: Array  # [N]


def _read_answers(outputs: Tensor, labels: Tensor, kind: Outputs) -> _Answers | None:
    said = kind.to_scored(outputs).detach().cpu().double().numpy()
    said = said[:, 0] if said.ndim == 2 and said.shape[1] == 1 else said
    if said.ndim not in (1, 2) or labels.dim() != 1 or len(said) != len(labels) or not np.isfinite(said).all():
        return None
    truth = labels.cpu().double().numpy()
    are_classes = bool(np.isin(truth, range(2 if said.ndim == 1 else said.shape[1])).all())
    if said.ndim == 1 and (kind in (Outputs.VALUE, Outputs.COUNT) or not are_classes):
        return _Answers("regression", said, truth)
    if not are_classes:
        return None
    if said.ndim == 2 and said.shape[1] > 2:
        return _Answers("classes", said, truth)
    return _Answers("binary", said if said.ndim == 1 else said[:, 1] - said[:, 0], truth)


# Classes ----------------------------------------------------------------------------------------------------------


def _classes(said: Array, truth: NDArray[np.int64]) -> dict[str, Any]:
    import sklearn.metrics

    chances = np.exp(said - said.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chosen = chances.argmax(axis=1)
    found: dict[str, Any] = _calibration(chances.max(axis=1), chosen == truth)
    macro = sklearn.metrics.precision_recall_fscore_support(truth, chosen, average="macro", zero_division=0)
    found["macro"] = {
        "accuracy": float(sklearn.metrics.accuracy_score(truth, chosen)),
        **{f"macro_{name}": float(value) for name, value in zip(_PER_CLASS, macro, strict=False)},
    }
    if said.shape[1] <= _MOST_CLASSES:
        found |= _each_class(truth, chosen, said.shape[1])
    return found


_PER_CLASS = ("precision", "recall", "f1")


def _each_class(truth: NDArray[np.int64], chosen: NDArray[np.int64], classes: int) -> dict[str, Any]:
    import sklearn.metrics

    columns = sklearn.metrics.precision_recall_fscore_support(truth, chosen, labels=range(classes), zero_division=0)
    return {
        "confusion": _confusion(truth, chosen, classes),
        "class_counts": columns[3].tolist(),
        "per_class": [
            ClassScores(rows=int(rows), precision=float(precision), recall=float(recall), f1=float(f1))
            for precision, recall, f1, rows in zip(*columns, strict=True)
        ],
    }


def _confusion(truth: NDArray[np.int64], chosen: NDArray[np.int64], classes: int) -> list[list[int]]:
    import sklearn.metrics

    rows: list[list[int]] = sklearn.metrics.confusion_matrix(truth, chosen, labels=range(classes)).tolist()
    return rows


def _calibration(chance: Array, so: Flags) -> dict[str, Any]:
    """Rows by their predicted probability: how often was it so?"""
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


# Two classes ------------------------------------------------------------------------------------------------------


def _binary(score: Array, positive: Flags, threshold: DecisionThreshold) -> dict[str, Any]:
    chance, truth = _sigmoid(score), positive.astype(np.int64)
    found = {
        **_calibration(chance, positive),
        "confusion": _confusion(truth, (score > 0).astype(np.int64), 2),
        "class_counts": np.bincount(truth, minlength=2).tolist(),
        "brier": float(np.square(chance - truth).mean()),
        "threshold": threshold,
        "thresholds": _score_thresholds(chance, positive, _choose_thresholds(score, threshold.value)),
    }
    if positive.all() or not positive.any():
        return found
    return {**found, **_roc(score, positive), "lift": _lift(score, positive)}


def _sigmoid(score: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(score, -500, 500))))


def _roc(score: Array, positive: Flags) -> dict[str, Any]:
    import sklearn.metrics

    alarms, hits, _ = sklearn.metrics.roc_curve(positive, score, drop_intermediate=False)
    area = float(sklearn.metrics.auc(alarms, hits))
    kept = np.unique(np.linspace(0, len(hits) - 1, min(len(hits), _POINTS)).round().astype(int))
    return {
        "auc": area,
        "gini": 2 * area - 1,
        "ks": float((hits - alarms).max()),
        "roc": [(float(alarms[at]), float(hits[at])) for at in kept],
    }


def _lift(score: Array, positive: Flags) -> list[LiftDecile]:
    _, group, counts = np.unique(score, return_inverse=True, return_counts=True)
    rates = (np.bincount(group, positive) / counts)[group]
    found, hits = [], 0.0
    for part in _split_evenly(np.argsort(-score, kind="stable"), _BINS):
        rate = float(rates[part].mean())
        hits += float(rates[part].sum())
        lift, gain = rate / float(positive.mean()), hits / int(positive.sum())
        found.append(LiftDecile(rows=len(part), rate=rate, lift=lift, gain=gain))
    return found


def _choose_thresholds(score: Array, recommended: float) -> list[float]:
    """About one for each share of rows to flag; 0.5 and the recommended one too."""
    logits = np.quantile(score, [1 - share for share in _SHARES]).clip(-_MOST_LOGIT, _MOST_LOGIT)
    places = ((logits + _MOST_LOGIT) * _PER_LOGIT).round().astype(int)
    return sorted({0.5, recommended, *_GRID[places].tolist()})


def _score_thresholds(chance: Array, positive: Flags, thresholds: Any) -> list[ThresholdScores]:
    return [_score_threshold(float(one), chance > one, positive) for one in thresholds]


def _score_threshold(threshold: float, flagged: Flags, positive: Flags) -> ThresholdScores:
    count, positives, hits = int(flagged.sum()), int(positive.sum()), int((flagged & positive).sum())
    negatives = len(positive) - positives
    return ThresholdScores(
        threshold=threshold,
        flagged=count / len(positive),
        precision=hits / count if count else None,
        recall=hits / positives if positives else None,
        f1=2 * hits / (count + positives) if count + positives else 0.0,
        specificity=1 - (count - hits) / negatives if negatives else None,
    )


# Numbers ----------------------------------------------------------------------------------------------------------


def _regression(said: Array, truth: Array) -> dict[str, Any]:
    import sklearn.metrics

    order = np.argsort(said, kind="stable")
    errors = {
        "rmse": float(sklearn.metrics.root_mean_squared_error(truth, said)),
        "mae": float(sklearn.metrics.mean_absolute_error(truth, said)),
        **({"r2": float(sklearn.metrics.r2_score(truth, said))} if np.ptp(truth) > 0 else {}),
    }
    return {
        "residuals": _residuals(truth - said),
        "predicted": [
            (float(said[part].mean()), float(truth[part].mean()), len(part)) for part in _split_evenly(order, 20)
        ],
        "deciles": [_error_decile(said[part], truth[part]) for part in _split_evenly(order, _BINS)],
        "errors": errors,
    }


def _residuals(residuals: Array) -> list[tuple[float, float, int]]:
    # The outermost rows would stretch the axis for all others.
    low, high = np.quantile(residuals, [0.005, 0.995]) if len(residuals) > 200 else (residuals.min(), residuals.max())
    high = high if high > low else low + 1e-9
    counts, edges = np.histogram(np.clip(residuals, low, high), _RESIDUAL_BINS, (low, high))
    return [(float(a), float(b), int(n)) for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]


def _error_decile(said: Array, truth: Array) -> ErrorDecile:
    error = truth - said
    return ErrorDecile(
        rows=len(said),
        prediction=float(said.mean()),
        label=float(truth.mean()),
        rmse=float(np.sqrt(np.square(error).mean())),
        mae=float(np.abs(error).mean()),
    )


def _split_evenly(order: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """In `parts`, or as many as have enough rows; none where there are too few for one."""
    most = min(parts, len(order) // _LEAST_ROWS)
    return np.array_split(order, most) if most else []
