"""Exchange every batch, learn from it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thinwire.schedule.actions import Action, Await, ForgetfulPlan, Plan, Ready, Send
from thinwire.types import Round

__all__ = ["EveryBatch"]


@dataclass(frozen=True, slots=True)
class EveryBatch:
    """One update a round, at every party."""

    def open(self, seed: int, rows: int) -> Plan:
        return _EveryBatchPlan()


class _EveryBatchPlan(ForgetfulPlan):
    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Send(round)
        yield Await(round)

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Await(round)
