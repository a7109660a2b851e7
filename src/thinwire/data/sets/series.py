"""Time series of stays in hospital: gaps are filled from the hour before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["HOURS", "forward_filled"]

HOURS = 48


def forward_filled(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N, T, F]: each NaN becomes the last value before it; what comes before the first value stays NaN."""
    hours = np.arange(x.shape[1])[None, :, None]
    last = np.maximum.accumulate(np.where(np.isnan(x), 0, hours), axis=1)
    filled: NDArray[np.float32] = np.take_along_axis(x, last, axis=1)
    return filled
