"""What a feature party does all day."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.programs.program import Batches, Control, Program
from thinwire.engine.protocols.bottom import Bottom
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.evaluation import receive_decision, send_test_embedding
from thinwire.engine.protocols.sealing import Sealing
from thinwire.engine.schedule import Await, Local, Send
from thinwire.engine.streams import Rows


class FeatureProtocol(Protocol):
    """A feature party's end of either conversation."""

    def begin(self) -> None: ...
    def warm_start(self, rows: Rows) -> None: ...
    def send(self, round: Round, rows: Rows) -> None: ...
    def has_answer(self, round: Round) -> bool: ...
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
        context: PartyContext,
        end: FeatureProtocol,
        bottom: Bottom,
        batches: Batches,
        *,
        eval_every: int,
        control: Control,
        sealing: Sealing | None = None,
    ) -> None:
        super().__init__(context, batches, eval_every, control)
        self.end = end
        self.bottom = bottom
        self._sealing = sealing

    def _begin(self) -> None:
        self.bottom.begin(0)
        self.end.begin()
        if self.context.recipe.warm_start:
            self.end.warm_start(self._batches.all_rows())

    def _round(self, t: Round) -> None:
        self.bottom.begin(t)
        for action in self.plan.feature_round(
            t, lambda: self.end.has_answer(t), lambda: self._away(self.end.awaits(t))
        ):
            match action:
                case Send(round):
                    if round == t or not self._evaluates_after(round):  # nothing passes a rest
                        self.end.send(round, self._rows(round))
                case Await():
                    self.end.receive(t)
                case Local(round):
                    self._locally(self.end.local, round)
        self.end.forget(self.plan.usable_rounds())

    def _rows(self, round: Round) -> Rows:
        return self.context.receive_rows(round) if self._batches.announced else self._batches.rows(round)

    def _evaluate(self, done: Round) -> bool:
        if done:
            self.end.show_surrogates(done)
        with self.context.channel.pause_clock():
            send_test_embedding(self.context, self.bottom.embed_test(), done, self._sealing)
        stop = self._finish_evaluation(done)
        self.end.diagnostics()  # whoever looks has looked; they would only grow
        return stop

    def _finish_evaluation(self, done: Round) -> bool:
        with self.context.channel.pause_clock():
            stop, steps = receive_decision(self.context, done)
        self.plan.set_steps(steps)
        return stop
