"""What scikit-learn's `fit` is given as y and sample_weight, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import column_or_1d

from thinwire.base.errors import BadInput, BadLabels
from thinwire.base.format import quote_names


def read_labels(y: Any) -> NDArray[Any]:
    """y as one label per row."""
    if y is None:
        raise BadLabels("fit requires y to be passed, but the target y is None; give one label per row")
    labels = np.asarray(y)
    if labels.dtype.kind == "c":
        raise BadLabels("Complex data not supported: y must hold classes or numbers")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    if labels.ndim != 1 or not len(labels):
        raise BadLabels(f"y has shape {labels.shape}, expected one label per row")
    return labels


def code_classes(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The classes in order, and each row's place among them."""
    if labels.dtype.kind == "f" and not np.equal(labels, np.floor(labels)).all():
        raise BadLabels(
            "y is continuous: it holds numbers that are not classes, such as fractions or NaN; use VerticalRegressor"
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise BadLabels("y holds infinity, which is not a class; drop these rows in X and y")
    if labels.dtype.kind == "O" and any(label is None or label != label for label in labels):  # noqa: PLR0124
        raise BadLabels("y has missing labels; drop these rows in X and y")
    try:
        classes, codes = np.unique(labels, return_inverse=True)
    except TypeError:
        kinds = sorted({type(label).__name__ for label in labels})
        raise BadLabels(
            f"y mixes labels of the types {quote_names(kinds)}; give them one type, such as y.astype(str)"
        ) from None
    if len(classes) < 2:
        raise BadLabels(f"all {len(labels)} labels are {classes[0]!r}, only 1 class; training needs at least two")
    return classes, codes


def read_values(labels: NDArray[Any]) -> NDArray[np.float64]:
    """The labels of a regression, as finite numbers."""
    try:
        values = labels.astype(np.float64)
    except (TypeError, ValueError):
        raise BadLabels("y holds labels that are not numbers; use VerticalClassifier") from None
    if not np.isfinite(values).all():
        raise BadLabels(f"y holds {values[~np.isfinite(values)][0]} in row {int(np.argmin(np.isfinite(values)))}")
    return values


def read_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """One weight per row, 0 or more, not all 0."""
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise BadInput("sample_weight must hold one number per row") from None
    weights = np.full(rows, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (rows,):
        raise BadInput(f"sample_weight has shape {weights.shape}, expected ({rows},): one number per row")
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise BadInput("sample_weight must be 0 or more for every row, without NaN and infinity")
    if not weights.any():
        raise BadInput("sample_weight is zero for all rows; at least one row must count")
    return weights
