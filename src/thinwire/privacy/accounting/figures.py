"""The figures that a party is shown: every observer's, and in words what they do not cover."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import isinf
from typing import Any

from thinwire.privacy.accounting.exposure import (
    Exact,
    Exposure,
    Frozen,
    PrivatelyTrained,
    TrainedOnRawRows,
    Uses,
    end_to_end_epsilon,
    releases_epsilon,
)
from thinwire.privacy.accounting.observers import Observer

__all__ = ["Figure", "conditions", "epsilon_plain", "figures", "not_protected"]


@dataclass(frozen=True, slots=True)
class Figure:
    """What the worst-off row has lost to one observer."""

    observer: Observer
    unknown_parties: int
    releases: float  # epsilon, as if the bottom model were public
    end_to_end: float  # epsilon, infinite where nothing is proven

    def plain(self) -> dict[str, Any]:
        """For JSON, which has no infinity."""
        return {
            "observer": str(self.observer),
            "unknown_parties": self.unknown_parties,
            "releases_epsilon": epsilon_plain(self.releases),
            "end_to_end_epsilon": epsilon_plain(self.end_to_end),
        }


def epsilon_plain(epsilon: float) -> float | str:
    return "infinity" if isinf(epsilon) else epsilon


def figures(exposure: Exposure, worst: Collection[Uses], delta: float) -> tuple[Figure, ...]:
    """Of the worst of these rows, for each observer."""
    return tuple(
        Figure(
            observer,
            observer.unknown(exposure.parties),
            max((releases_epsilon(exposure, observer, uses, delta) for uses in worst), default=0.0),
            max((end_to_end_epsilon(exposure, observer, uses, delta) for uses in worst), default=0.0),
        )
        for observer in Observer
    )


def not_protected(exposure: Exposure) -> list[str]:
    """What these figures do not cover, a sentence each."""
    says = [
        "Labels: derivatives give them away to every party that receives them, with or without this noise.",
        "Derivatives: what the label party sends down is outside the guarantee.",
        "Which rows take part in which round, and how many rows there are.",
    ]
    if isinstance(exposure.mechanism, Exact):
        says.insert(0, "Embeddings: they leave this party without noise, so nothing at all is proven for its rows.")
    elif isinstance(exposure.bottom, TrainedOnRawRows):
        says.insert(
            0,
            "The run as a whole: the bottom model learns from raw rows, so embeddings of other rows show them too. "
            "Only the releases themselves are accounted for; freeze the bottom model, or train it privately.",
        )
    return says


def conditions(exposure: Exposure) -> list[str]:
    """What must hold for the figures to be true, a sentence each."""
    if isinstance(exposure.mechanism, Exact):
        return []
    says = [
        "Parties follow the protocol, and the sum is seen only as a secure sum.",
        "No BatchNorm and nothing else that mixes rows in the bottom model; embeddings clamped to their bound.",
        "No scaling fitted on private rows, unless it is public or paid for.",
        "The noise comes from a secret of this party's own, never from the run's seed.",
        "Every pass over training rows is charged: epochs, evaluations, predictions, and retries with new noise.",
    ]
    if isinstance(exposure.bottom, Frozen):
        says.append("The frozen bottom model was never trained on private rows, here or before.")
    if isinstance(exposure.bottom, PrivatelyTrained):
        says.append("Each row's gradient is clipped on its own before it is added, and every step has fresh noise.")
        says.append("The bottom model's first weights do not depend on private rows.")
        says.append("Gaussian noise is drawn in floating point, as everywhere; the proof is for real numbers.")
    return says
