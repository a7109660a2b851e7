"""How many cached steps a round: none where messages are cheap, and half as many where they make training diverge.

Cached steps save bytes and cost accuracy where embeddings are wide and optimisers remember: there they are also
the least needed, because such messages take few bits. So none are taken until the first rest after an exchange;
then the label party knows what a value costs.

It also sees the loss of every fresh batch, before it learns from it. At every rest it compares the mean since the
last one with the lowest so far, and tells the others how many steps to take until the next. One high mean is no
reason: large first steps overshoot, and come back.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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


@dataclass(slots=True)
class _Progress:
    """What was seen so far; a checkpoint holds it, with None for what is infinite."""

    steps: int  # a round, now
    decided: bool
    bits: float = 0.0  # a value, summed over the batches until it is decided
    total: float = 0.0  # of the losses since the last rest
    batches: int = 0
    lowest: float = inf
    first: float = inf
    high: int = 0  # rests in a row
    halved: list[dict[str, Any]] = field(default_factory=list)


class StepController:
    """`steps` a round, if a value costs `worth_bits` or more; without limits they stay as they are."""

    def __init__(self, steps: int, rise_limit: float | None = None, worth_bits: float | None = None) -> None:
        self._most = steps
        self._rise_limit = rise_limit
        self._worth_bits = worth_bits
        self._seen = _Progress(steps if worth_bits is None else 0, decided=worth_bits is None)

    @property
    def steps(self) -> int:
        return self._seen.steps

    @steps.setter
    def steps(self, steps: int) -> None:
        self._seen.steps = steps

    def observe_batch(self, fresh: BatchOutcome) -> None:
        seen = self._seen
        if seen.first == inf:  # nothing was learned yet
            seen.first = seen.lowest = fresh.loss
        seen.total += fresh.loss
        seen.batches += 1
        if not seen.decided:
            seen.bits += fresh.bits_a_value

    def decide_steps(self, done: Round) -> int:
        """The steps to take from here on."""
        seen = self._seen
        if not seen.batches:
            return seen.steps
        if self._worth_bits is not None and not seen.decided:
            seen.bits /= seen.batches
            seen.decided = True
            seen.steps = self._most if seen.bits >= self._worth_bits else 0
        if self._rise_limit is None:
            return seen.steps
        mean = seen.total / seen.batches
        seen.total, seen.batches = 0.0, 0
        # Losses near zero are noisy: a rise that matters is also a part of what there was at first.
        risen = mean > self._rise_limit * seen.lowest and mean - seen.lowest > _PART * seen.first
        seen.high = seen.high + 1 if risen else 0
        if seen.high == _IN_A_ROW and seen.steps:
            halved = {"round": done, "from": seen.steps, "to": seen.steps // 2}
            seen.halved.append({**halved, "loss": mean, "lowest_loss": seen.lowest})
            seen.steps //= 2
            seen.lowest = mean
            seen.high = 0
        seen.lowest = min(seen.lowest, mean)
        return seen.steps

    def diagnostics(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self._worth_bits is not None and self._seen.decided:
            found["first_bits_a_value"] = round(self._seen.bits, 4)
        if self._rise_limit is not None:
            found |= {"local_steps": self.steps, "backed_off": list(self._seen.halved)}
        return found

    def state(self) -> dict[str, Any]:
        return {name: None if value == inf else value for name, value in asdict(self._seen).items()}

    def load(self, state: dict[str, Any]) -> None:
        known: dict[str, Any] = {name: inf if value is None else value for name, value in state.items()}
        self._seen = _Progress(**known)
