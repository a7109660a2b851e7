"""The pace of a run, by what the label party sees: how many cached steps per round, and how fine messages are.

It sees the loss of every fresh batch before it learns from it, and what a value costs. At every rest it tells the
others what holds until the next:

- No cached steps where messages are cheap. They save bytes and cost accuracy where embeddings are wide and optimisers
  remember; there they are also the least needed, because such messages take few bits. So none are taken until the
  first rest after an exchange.
- The next level where the loss stands still: finer messages, half as many steps. What limits training then is noise,
  and rounding and stale steps are a part of it. Two windows of batches are compared; a gain that is within their
  noise is none. So too where validation rows have seen no better score for some rests: cached steps can overfit
  while the loss of training rows falls.
- A level at the latest when its share of the first half of the run is over, so that short runs get fine too, and the
  second half is as fine as can be.
- Half as many steps where the loss stays far above its lowest. One high mean is no reason: large first steps
  overshoot, and come back.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import inf, sqrt
from typing import Any

from thinwire.base.types import Round

MOST_LEVEL = 15
_PART = 0.1
_IN_A_ROW = 2
_WINDOW = 60  # batches at least
_DEVIATIONS = 2.0
_RESTS = 3  # without a better score
_COARSE_SHARE = 0.5  # of a run, after which messages are as fine as can be


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What the label party knows after a fresh batch.

    Args:
        loss: mean loss before the update.
        bits_a_value: of embeddings and derivatives, as sent.

    Examples:
        >>> tw.schedule.BatchOutcome(loss=0.7, bits_a_value=2.5).loss
        0.7
    """

    loss: float  # the mean, before anything was learned from it
    bits_a_value: float  # of embeddings and derivatives, as they were sent


@dataclass(frozen=True, slots=True)
class Pace:
    """What all parties follow between two evaluations.

    Args:
        steps: local steps per round.
        level: level of precision; 0 is the coarsest.

    Examples:
        >>> tw.schedule.Pace(steps=3).level
        0
    """

    steps: int  # local, a round
    level: int = 0  # of precision: 0 is the coarsest


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
    level: int = 0
    refined: list[Round] = field(default_factory=list)  # when each level began
    window: list[float] = field(default_factory=lambda: [0, 0.0, 0.0])  # losses: how many, their mean, their scatter
    before: list[float] | None = None  # the window before it, of the same level
    since: int = 0  # batches of this level
    worse: int = 0  # rests in a row without a better score


class StepController:
    """`steps` a round, if a value costs `worth_bits` or more; without limits they stay as they are."""

    def __init__(
        self, steps: int, rise_limit: float | None = None, worth_bits: float | None = None, levels: int = 0
    ) -> None:
        self._most = steps
        self._rise_limit = rise_limit
        self._worth_bits = worth_bits
        self._levels = levels
        self._seen = _Progress(steps if worth_bits is None else 0, decided=worth_bits is None)

    @property
    def pace(self) -> Pace:
        return Pace(self._seen.steps, self._seen.level)

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self._seen.steps, self._seen.level = pace.steps, pace.level

    def observe_batch(self, fresh: BatchOutcome) -> None:
        seen = self._seen
        if seen.first == inf:  # nothing was learned yet
            seen.first = seen.lowest = fresh.loss
        seen.total += fresh.loss
        seen.batches += 1
        seen.since += 1
        if not seen.decided:
            seen.bits += fresh.bits_a_value
        count, mean, scatter = seen.window
        moved = fresh.loss - mean
        mean += moved / (count + 1)
        seen.window = [count + 1, mean, scatter + moved * (fresh.loss - mean)]

    def decide_pace(self, done: Round, is_best: bool | None = None, share: float = 0.0) -> Pace:
        """What holds from here on.

        `is_best`: is the score the best so far? None where no validation rows say. `share` of the run that is over.
        """
        if self._seen.batches:
            self._decide_worth()
            self._seen.worse = self._seen.worse + 1 if is_best is False else 0
            if self._stands_still():
                self._refine(done)
            while self._seen.level < int(self._levels * min(1.0, share / _COARSE_SHARE)):
                self._refine(done)
            self._back_off(done)
            self._seen.total, self._seen.batches = 0.0, 0
        return self.pace

    def _decide_worth(self) -> None:
        seen = self._seen
        if self._worth_bits is not None and not seen.decided:
            seen.bits /= seen.batches
            seen.decided = True
            seen.steps = self._most if seen.bits >= self._worth_bits else 0

    def _stands_still(self) -> bool:
        """The score does, or the last window of batches is not clearly better than the one before."""
        seen = self._seen
        if seen.level >= self._levels or seen.since < _WINDOW:
            return False
        if seen.worse >= _RESTS:
            return True
        if seen.window[0] < _WINDOW:
            return False
        now, before = seen.window, seen.before
        seen.window, seen.before = [0, 0.0, 0.0], now
        return before is not None and before[1] - now[1] < _DEVIATIONS * _measure_noise(before, now)

    def _refine(self, done: Round) -> None:
        """To the next level."""
        seen = self._seen
        seen.level += 1
        seen.steps //= 2
        seen.refined.append(done)
        seen.window, seen.before = [0, 0.0, 0.0], None
        seen.since = seen.worse = 0

    def _back_off(self, done: Round) -> None:
        seen = self._seen
        if self._rise_limit is None:
            return
        mean = seen.total / seen.batches
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

    def diagnostics(self) -> dict[str, Any]:
        seen, found = self._seen, dict[str, Any]()
        if self._worth_bits is not None and seen.decided:
            found["first_bits_a_value"] = round(seen.bits, 4)
        if self._rise_limit is not None:
            found |= {"local_steps": seen.steps, "backed_off": list(seen.halved)}
        if self._levels:
            found |= {"precision_level": seen.level, "refined_after": list(seen.refined)}
        return found

    def state(self) -> dict[str, Any]:
        return {name: None if value == inf else value for name, value in asdict(self._seen).items()}

    def load(self, state: dict[str, Any]) -> None:
        known: dict[str, Any] = {name: inf if value is None else value for name, value in state.items()}
        known["before"] = state.get("before")
        self._seen = _Progress(**known)


def _measure_noise(before: list[float], now: list[float]) -> float:
    """The standard error of the difference between two windows' means."""
    return sqrt(sum(scatter / count**2 for count, _, scatter in (before, now)))
