"""What runs that differ in the seed alone say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

FIGURES = ("rounds", "bytes_up", "bytes_down", "link_seconds", "best", "last")


def averaged(outcomes: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(mean, standard deviation) of every figure; None where no run has it."""
    mean: dict[str, Any] = {}
    deviation: dict[str, Any] = {}
    for name in FIGURES:
        values = [outcome[name] for outcome in outcomes if outcome[name] is not None]
        if not values:
            mean[name] = deviation[name] = None
            continue
        mean[name] = sum(values) / len(values)
        squares = sum((value - mean[name]) ** 2 for value in values)
        deviation[name] = sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
    return mean, deviation
