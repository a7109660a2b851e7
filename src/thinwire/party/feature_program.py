"""What a feature party does all day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from thinwire.conversations.evaluation import send_test_embedding, told_to_stop
from thinwire.conversations.learner import Learner
from thinwire.conversations.seat import Seat
from thinwire.conversations.sums import Sealing
from thinwire.party.batches import Batches
from thinwire.party.control import Control
from thinwire.schedule import Await, Local, Plan, Send
from thinwire.streams import Rows
from thinwire.types import Round

__all__ = ["FeatureConversation", "FeatureProgram"]


class FeatureConversation(Protocol):
    """A feature party's end of either conversation."""

    def begin(self) -> None: ...
    def warm_start(self, rows: Rows) -> None: ...
    def send(self, round: Round, rows: Rows) -> None: ...
    def answered(self, round: Round) -> bool: ...
    def receive(self, round: Round) -> None: ...
    def local(self, round: Round) -> None: ...
    def forget(self, kept: set[Round]) -> None: ...
    def diagnostics(self) -> dict[str, Any]: ...
    def estimate(self) -> Tensor | None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


class FeatureProgram:
    """Rounds, and a rest at every evaluation."""

    def __init__(
        self,
        seat: Seat,
        end: FeatureConversation,
        learner: Learner,
        batches: Batches,
        *,
        test_features: Tensor | None,
        eval_every: int,
        control: Control,
        sealing: Sealing | None = None,
    ) -> None:
        self.seat = seat
        self.end = end
        self.learner = learner
        self.plan: Plan = seat.recipe.schedule.open(seat.seed)
        self.start: Round = 0
        self.fresh = True  # not resumed
        self.resting = False  # resumed in the middle of a rest
        self._batches = batches
        self._test_features = test_features
        self._eval_every = eval_every
        self._control = control
        self._sealing = sealing

    def run(self) -> None:
        if self.fresh:
            self.learner.begin(0)
            self.end.begin()
            if self.seat.recipe.warm_start:
                self.end.warm_start(self._batches.all_rows())
            if self._rest(0):
                return
        elif self.resting and self._told_to_stop(self.start):
            return
        for t in range(self.start, self._batches.rounds):
            if not self._control.may_begin(t):
                return
            self._round(t)
            done = t + 1
            if (done % self._eval_every == 0 or done == self._batches.rounds) and self._rest(done):
                return

    def _round(self, t: Round) -> None:
        self.learner.begin(t)
        rows = self.seat.announced(t) if self._batches.announced else self._batches.rows(t)
        for action in self.plan.feature_round(t, lambda: self.end.answered(t)):
            match action:
                case Send():
                    self.end.send(t, rows)
                case Await():
                    self.end.receive(t)
                case Local(round):
                    self.end.local(round)
        self.end.forget(self.plan.kept())
        self.start = t + 1

    def _rest(self, done: Round) -> bool:
        with self.seat.channel.untimed():
            send_test_embedding(self.seat, self.learner.module, self._test_features, done, self._sealing)
        return self._told_to_stop(done)

    def _told_to_stop(self, done: Round) -> bool:
        with self.seat.channel.untimed():
            return told_to_stop(self.seat, done)
