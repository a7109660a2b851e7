"""Which settings did best."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

from thinwire.training.result import better


def ranked(points: Sequence[dict[str, Any]], metric: str, has_target: bool) -> list[dict[str, Any]]:
    """Best first; those without a run last, in the order in which they were asked for.

    To a target: what reached it with most seeds, then with fewest bytes. Without one: the best value, then the bytes.
    """

    def key(point: dict[str, Any]) -> tuple[float, ...]:
        mean = point["mean"]
        if mean["rounds"] is None:
            return (inf, inf, inf)
        value = inf if mean["best"] is None else -better(metric) * mean["best"]
        sent = mean["bytes_up"] + mean["bytes_down"]
        return (-point["reached"] / len(point["runs"]), sent, value) if has_target else (value, sent, 0.0)

    return sorted(points, key=key)


def ranking_said(metric: str, target: dict[str, Any] | None) -> str:
    """What best first means here."""
    if target is not None:
        aim = f"{target['metric']} {target['value']:g}"
        return f"best first: reached {aim} with most seeds, then fewest bytes"
    return f"best first: {'highest' if better(metric) > 0 else 'lowest'} {metric}, then fewest bytes"
