"""A schedule's plan: what a party does in a round, in order; one update per round, several on its batch, or none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from thinwire.base.types import Round
from thinwire.engine.compress.parameters import check_whole
from thinwire.engine.schedule.step_controller import BatchOutcome, Pace


@dataclass(frozen=True, slots=True)
class Send:
    """Compute this round's embedding and send it, unless it was sent ahead or must wait for an evaluation.

    Args:
        round: from 0.

    Examples:
        >>> tw.schedule.Send(0).round
        0
    """

    round: Round


@dataclass(frozen=True, slots=True)
class Await:
    """Wait for what the round brings back, and update from it.

    Args:
        round: from 0.

    Examples:
        >>> tw.schedule.Await(3).round
        3
    """

    round: Round


@dataclass(frozen=True, slots=True)
class Local:
    """One update without a message, on the exchange of this or an earlier round.

    Args:
        round: of the exchange.

    Examples:
        >>> tw.schedule.Local(2).round
        2
    """

    round: Round


@dataclass(frozen=True, slots=True)
class Update:
    """Update from the surrogates as they are, once the round's messages are in; with shared labels by `Local`.

    Args:
        round: from 0.

    Examples:
        >>> tw.schedule.Update(0).round
        0
    """

    round: Round


@dataclass(frozen=True, slots=True)
class Refresh:
    """Send what the surrogates miss of the embeddings under the new weights; both ends add it.

    Args:
        round: from 0.

    Examples:
        >>> tw.schedule.Refresh(1).round
        1
    """

    round: Round


Action: TypeAlias = Send | Await | Local | Update | Refresh
Ready: TypeAlias = Callable[[], bool]


class Plan(ABC):
    """A schedule at work at one party. It remembers rounds, never tensors.

    Examples:
        >>> tw.schedule.EveryBatch().open(seed=0, rows=64).usable_rounds()
        set()
    """

    pace: Pace = Pace(0)  # what holds until the next rest; as the label party said

    @abstractmethod
    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        """What a feature party does in this round; `ready()` says whether the answer has come.

        `away()` waits for the answer, and says whether it must be gone without because a party is away.
        """

    @abstractmethod
    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        """What the label party does in this round; `ready()` says whether the next embeddings have come.

        `away()` waits for this round's embeddings likewise.
        """

    def usable_rounds(self) -> set[Round]:
        """The rounds whose exchange may still be used."""
        return set()

    def observe_batch(self, fresh: BatchOutcome) -> None:  # noqa: B027
        """The label party has learned from a fresh batch."""

    def decide_pace(self, done: Round, is_best: bool | None = None, share: float = 0.0) -> Pace:
        """What holds from this rest on: the label party decides. `is_best`: is the validation score, so far?"""
        return self.pace

    def diagnostics(self) -> dict[str, Any]:
        """Figures for people: uses, bubbles."""
        return {}

    def state(self) -> dict[str, Any]:
        """What to save, as plain data."""
        return {}

    def load(self, state: dict[str, Any]) -> None:  # noqa: B027
        """The inverse of `state`."""


@dataclass(frozen=True, slots=True)
class EveryBatch:
    """One update per round, at every party.

    Examples:
        >>> list(tw.schedule.EveryBatch().open(seed=0, rows=64).feature_round(0, lambda: True, lambda: False))
        [Send(round=0), Await(round=0)]
    """

    def open(self, seed: int, rows: int) -> Plan:
        return _EveryBatchPlan()


class _EveryBatchPlan(Plan):
    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Send(round)
        yield Await(round)

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Await(round)


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """`steps` updates per round, all on the round's own batch (FedBCD); the exchange itself updates nothing.

    Args:
        steps: 1 or more.

    Raises:
        BadParameter: `steps` is out of range.

    Examples:
        >>> tw.schedule.LocalSteps(5).steps
        5
    """

    steps: int = 1

    def __post_init__(self) -> None:
        check_whole(self, "steps", 1, 10_000)

    def open(self, seed: int, rows: int) -> Plan:
        return _LocalStepsPlan(self.steps)


class _LocalStepsPlan(Plan):
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Send(round)
        yield from self.label_round(round, ready, away)

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Await(round)
        for _ in range(self._steps):
            yield Local(round)


class UpdateFirstPlan(Plan):
    """The order of EF-VFL's algorithms: update, then send; the same at both ends.

    Args:
        schedule: `EveryBatch` or `LocalSteps`.

    Examples:
        >>> plan = tw.schedule.UpdateFirstPlan(tw.schedule.EveryBatch())
        >>> [type(action).__name__ for action in plan.feature_round(0, lambda: True, lambda: False)]
        ['Update', 'Refresh']
    """

    def __init__(self, schedule: EveryBatch | LocalSteps) -> None:
        self._steps = schedule.steps if isinstance(schedule, LocalSteps) else 0

    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Update(round)
        for _ in range(self._steps):
            yield Local(round)
        yield Refresh(round)

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        return self.feature_round(round, ready, away)


@dataclass(frozen=True, slots=True)
class OneWay:
    """Embeddings go up and nothing comes back: bottom models are not trained; the label party trains by itself.

    After each round it fits its top model to all rows so far.

    Args:
        passes: most passes over the rows.
        batch_rows: rows per batch.
        patience: passes without a lower validation loss before it stops.

    Raises:
        BadParameter: a setting is out of range.

    Examples:
        >>> tw.methods.once().schedule.__class__ is tw.schedule.OneWay
        True
    """

    passes: int = 100
    batch_rows: int = 64
    patience: int = 10

    def __post_init__(self) -> None:
        check_whole(self, "passes", 1, 10_000)
        check_whole(self, "batch_rows", 1, 1_000_000)
        check_whole(self, "patience", 1, 10_000)

    def open(self, seed: int, rows: int) -> Plan:
        return _OneWayPlan()


class _OneWayPlan(Plan):
    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Send(round)

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Await(round)
