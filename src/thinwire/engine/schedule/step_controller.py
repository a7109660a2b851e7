"""How many cached steps a round: none where messages are cheap, and half as many where they make training diverge.

Cached steps save bytes and cost accuracy where embeddings are wide and optimisers remember: there they are also
the least needed, because such messages take few bits. So none are taken until the first rest after an exchange;
then the label party knows what a value costs.

It also sees the loss of every fresh batch, before it learns from it. At every rest it compares the mean since the
last one with the lowest so far, and tells the others how many steps to take until the next. One high mean is no
reason: large first steps overshoot, and come back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from thinwire.base.types import Round

_PART = 0.1
_IN_A_ROW = 2


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What the label party knows after a fresh batch."""

    loss: float  # the mean, before anything was learned from it
    bits_a_value: float  # of embeddings and derivatives, as they were sent


class StepController:
    """`steps` a round, if a value costs `worth_bits` or more; without limits they stay as they are."""

    def __init__(self, steps: int, rise_limit: float | None = None, worth_bits: float | None = None) -> None:
        self._most = steps
        self.steps = steps if worth_bits is None else 0
        self._rise_limit = rise_limit
        self._worth_bits = worth_bits
        self._decided = worth_bits is None
        self._bits = 0.0  # a value, summed over the batches until it is decided
        self._total = 0.0  # of the losses since the last rest
        self._batches = 0
        self._lowest = inf
        self._first = inf
        self._high = 0  # rests in a row
        self._halved: list[dict[str, Any]] = []

    def observe_batch(self, fresh: BatchOutcome) -> None:
        if self._first == inf:  # nothing was learned yet
            self._first = self._lowest = fresh.loss
        self._total += fresh.loss
        self._batches += 1
        if not self._decided:
            self._bits += fresh.bits_a_value

    def decide_steps(self, done: Round) -> int:
        """The steps to take from here on."""
        if not self._batches:
            return self.steps
        if self._worth_bits is not None and not self._decided:
            self._bits /= self._batches
            self._decided = True
            self.steps = self._most if self._bits >= self._worth_bits else 0
        if self._rise_limit is None:
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
        found: dict[str, Any] = {}
        if self._worth_bits is not None and self._decided:
            found["first_bits_a_value"] = round(self._bits, 4)
        if self._rise_limit is not None:
            found |= {"local_steps": self.steps, "backed_off": list(self._halved)}
        return found

    def state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "decided": self._decided,
            "bits": self._bits,
            "total": self._total,
            "batches": self._batches,
            "lowest": None if self._lowest == inf else self._lowest,
            "first": None if self._first == inf else self._first,
            "high": self._high,
            "halved": self._halved,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self._decided = state["decided"]
        self._bits = state["bits"]
        self._total = state["total"]
        self._batches = state["batches"]
        self._lowest = inf if state["lowest"] is None else state["lowest"]
        self._first = inf if state["first"] is None else state["first"]
        self._high = state["high"]
        self._halved = list(state["halved"])
