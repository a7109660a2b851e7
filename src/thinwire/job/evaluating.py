"""Scores of an evaluation, and whether they are enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import Tensor

from thinwire.errors import Diverged
from thinwire.job.result import meets
from thinwire.models.metrics import metric

__all__ = ["Goal", "require_finite_loss", "scores"]


def scores(
    outputs: Tensor, labels: Tensor, loss: Callable[[Tensor, Tensor], Tensor], metrics: Sequence[str]
) -> dict[str, float]:
    """The mean loss and every metric."""
    outputs = outputs.cpu()
    mean = require_finite_loss(float(loss(outputs, labels).double().mean()))
    return {"loss": mean, **{name: metric(name).compute(outputs, labels) for name in metrics}}


def require_finite_loss(loss: float) -> float:
    if not isfinite(loss):
        raise Diverged(f"the loss is {loss}; use a smaller step size, or a finer compressor")
    return loss


@dataclass(frozen=True)
class Goal:
    """When a run may end before its last round."""

    target: tuple[str, float] | None = None
    stop: bool = True  # at the target
    byte_budget: int | None = None
    link_seconds_budget: float | None = None

    def is_met(self, event: dict[str, Any]) -> bool:
        if self.target is not None and self.stop and meets(event, self.target):
            return True
        if self.byte_budget is not None and event["bytes"]["total"] >= self.byte_budget:
            return True
        seconds = event["link_seconds"]
        return self.link_seconds_budget is not None and seconds is not None and seconds >= self.link_seconds_budget
