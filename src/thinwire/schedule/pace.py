"""How many cached steps a round: halved where they make training diverge.

The label party sees the loss of every fresh batch, before it learns from it. At every rest it compares the mean
since the last one with the lowest so far, and tells the others how many steps to take until the next. One high
mean is no reason: large first steps overshoot, and come back.
"""

from __future__ import annotations

from math import inf
from typing import Any

from thinwire.types import Round

__all__ = ["Pace"]

_PART = 0.1
_IN_A_ROW = 2


class Pace:
    """`steps` a round; without a limit they stay as they are."""

    def __init__(self, steps: int, rise_limit: float | None) -> None:
        self.steps = steps
        self._rise_limit = rise_limit
        self._total = 0.0  # of the losses since the last rest
        self._batches = 0
        self._lowest = inf
        self._first = inf
        self._high = 0  # rests in a row
        self._halved: list[dict[str, Any]] = []

    def learned(self, loss: float) -> None:
        """The mean loss of a fresh batch."""
        if self._first == inf:  # nothing was learned yet
            self._first = self._lowest = loss
        self._total += loss
        self._batches += 1

    def rested(self, done: Round) -> int:
        """The steps to take from here on."""
        if self._rise_limit is None or not self._batches:
            return self.steps
        mean = self._total / self._batches
        self._total, self._batches = 0.0, 0
        # Losses near zero are noisy: a rise that matters is also a part of what there was at first.
        risen = mean > self._rise_limit * self._lowest and mean - self._lowest > _PART * self._first
        self._high = self._high + 1 if risen else 0
        if self._high == _IN_A_ROW and self.steps:
            self._halved.append(
                {"round": done, "from": self.steps, "to": self.steps // 2, "loss": mean, "lowest_loss": self._lowest}
            )
            self.steps //= 2
            self._lowest = mean
            self._high = 0
        self._lowest = min(self._lowest, mean)
        return self.steps

    def diagnostics(self) -> dict[str, Any]:
        return {} if self._rise_limit is None else {"local_steps": self.steps, "backed_off": list(self._halved)}

    def state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "total": self._total,
            "batches": self._batches,
            "lowest": None if self._lowest == inf else self._lowest,
            "first": None if self._first == inf else self._first,
            "high": self._high,
            "halved": self._halved,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self._total = state["total"]
        self._batches = state["batches"]
        self._lowest = inf if state["lowest"] is None else state["lowest"]
        self._first = inf if state["first"] is None else state["first"]
        self._high = state["high"]
        self._halved = list(state["halved"])
