"""Exchange every batch, learn from it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thinwire.schedule.actions import Action, Await, Plan, Ready, Send
from thinwire.types import Round

__all__ = ["EveryBatch"]


@dataclass(frozen=True, slots=True)
class EveryBatch:
    """One update a round, at every party."""

    def open(self, seed: int) -> Plan:
        return _EveryBatchPlan()


class _EveryBatchPlan:
    def feature_round(self, round: Round, ready: Ready) -> Iterator[Action]:
        yield Send(round)
        yield Await(round)

    def label_round(self, round: Round, ready: Ready) -> Iterator[Action]:
        yield Await(round)

    def kept(self) -> set[Round]:
        return set()

    def diagnostics(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass
