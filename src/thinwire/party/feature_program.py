"""What a feature party does all day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from thinwire.conversations.bottom import Bottom
from thinwire.conversations.context import Seat
from thinwire.conversations.evaluation import send_test_embedding, told
from thinwire.conversations.sealing import Sealing
from thinwire.party.batches import Batches
from thinwire.party.program import Control, Program
from thinwire.schedule import Await, Local, Send
from thinwire.streams import Rows
from thinwire.types import Kind, PartyName, Round


class FeatureConversation(Protocol):
    """A feature party's end of either conversation."""

    def begin(self) -> None: ...
    def warm_start(self, rows: Rows) -> None: ...
    def send(self, round: Round, rows: Rows) -> None: ...
    def answered(self, round: Round) -> bool: ...
    def awaits(self, round: Round) -> list[tuple[PartyName, Kind, Round]]: ...
    def receive(self, round: Round) -> None: ...
    def local(self, round: Round) -> None: ...
    def forget(self, kept: set[Round]) -> None: ...
    def show_surrogates(self, round: Round) -> None: ...
    def diagnostics(self) -> dict[str, Any]: ...
    def estimate(self) -> Tensor | None: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


class FeatureProgram(Program):
    """A feature party's rounds."""

    def __init__(
        self,
        seat: Seat,
        end: FeatureConversation,
        bottom: Bottom,
        batches: Batches,
        *,
        eval_every: int,
        control: Control,
        sealing: Sealing | None = None,
    ) -> None:
        super().__init__(seat, batches, eval_every, control)
        self.end = end
        self.bottom = bottom
        self._sealing = sealing

    def _begin(self) -> None:
        self.bottom.begin(0)
        self.end.begin()
        if self.seat.recipe.warm_start:
            self.end.warm_start(self._batches.all_rows())

    def _round(self, t: Round) -> None:
        self.bottom.begin(t)
        for action in self.plan.feature_round(
            t, lambda: self.end.answered(t), lambda: self._away(self.end.awaits(t))
        ):
            match action:
                case Send(round):
                    if round == t or not self._rests_after(round):  # nothing passes a rest
                        self.end.send(round, self._rows(round))
                case Await():
                    self.end.receive(t)
                case Local(round):
                    self._locally(self.end.local, round)
        self.end.forget(self.plan.kept())

    def _rows(self, round: Round) -> Rows:
        return self.seat.announced(round) if self._batches.announced else self._batches.rows(round)

    def _rest(self, done: Round) -> bool:
        if done:
            self.end.show_surrogates(done)
        with self.seat.channel.untimed():
            send_test_embedding(self.seat, self.bottom.embed_test(), done, self._sealing)
        stop = self._end_of_rest(done)
        self.end.diagnostics()  # whoever looks has looked; they would only grow
        return stop

    def _end_of_rest(self, done: Round) -> bool:
        with self.seat.channel.untimed():
            stop, steps = told(self.seat, done)
        self.plan.keep_pace(steps)
        return stop
