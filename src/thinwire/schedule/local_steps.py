"""Q updates on one exchanged batch, everyone from the state of its exchange (C-VFL, EF-VFL)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thinwire.compress.parameters import check_whole
from thinwire.schedule.actions import Action, Await, ForgetfulPlan, Local, Plan, Ready, Send
from thinwire.types import Round

__all__ = ["LocalSteps"]


@dataclass(frozen=True, slots=True)
class LocalSteps:
    """`steps` updates a round, all on the round's own batch; the exchange itself updates nothing."""

    steps: int = 1

    def __post_init__(self) -> None:
        check_whole(self, "steps", 1, 10_000)

    def open(self, seed: int, rows: int) -> Plan:
        return _LocalStepsPlan(self.steps)


class _LocalStepsPlan(ForgetfulPlan):
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def feature_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Send(round)
        yield from self.label_round(round, ready, away)

    def label_round(self, round: Round, ready: Ready, away: Ready) -> Iterator[Action]:
        yield Await(round)
        for _ in range(self._steps):
            yield Local(round)
