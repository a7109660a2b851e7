"""What is learned from training rows before training: means, deviations and vocabularies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.data.hashing import encoded

__all__ = ["standardised", "vocabulary_codes"]

Floats = NDArray[np.float32]


def standardised(train: NDArray[Any], test: NDArray[Any]) -> tuple[Floats, Floats]:
    """(x - mean) / deviation over all training values but the last axis's; NaN is skipped and stays NaN."""
    axes = tuple(range(train.ndim - 1))
    values = train.astype(np.float64)
    counts = np.maximum(np.isfinite(values).sum(axis=axes), 1)
    mean = np.nansum(values, axis=axes) / counts
    deviation = np.sqrt(np.nansum((values - mean) ** 2, axis=axes) / counts)
    deviation[deviation == 0] = 1.0  # a constant column says nothing: all zeros
    return _floats((values - mean) / deviation), _floats((test - mean) / deviation)


def vocabulary_codes(train: Any, test: Any) -> tuple[Floats, Floats, int]:
    """Codes of two Arrow columns, and how many there are; 0 is a word that no training row has, or none at all."""
    words = sorted({str(word) for word in train.unique().to_pylist() if word is not None})
    codes = {word.encode(): code for code, word in enumerate(words, 1)}

    def table(some: list[bytes]) -> Floats:
        return np.array([*(codes.get(word, 0) for word in some), 0], dtype=np.float32)

    return encoded(train, table), encoded(test, table), len(words) + 1


def _floats(x: NDArray[np.float64]) -> Floats:
    return x.astype(np.float32)
