"""Numbers for things that come again and again, the same wherever the same sequence is seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def number_by_appearance(values: npt.NDArray[np.integer]) -> tuple[Numbers, Numbers]:
    """The different values in the order in which they first appear, and for each value its number among them."""
    different, first, places = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.arange(len(order))
    return different[order].astype(np.int64), numbers[places]
