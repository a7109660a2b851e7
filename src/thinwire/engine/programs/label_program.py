"""What the label party does all day."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.privacy import SecureSum
from thinwire.engine.programs.program import Batches, Control, Program
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.evaluation import (
    compute_outputs,
    embed_in_chunks,
    receive_test_embeddings,
    send_decision,
)
from thinwire.engine.protocols.label_side import LabelSide
from thinwire.engine.schedule import Await, BatchOutcome, Local
from thinwire.engine.streams import Rows


class LabelProtocol(Protocol):
    """The label party's end of either conversation."""

    def begin(self) -> None: ...
    def warm_start(self, rows: Rows) -> None: ...
    def has_embeddings(self, round: Round) -> bool: ...
    def exchange(self, round: Round, rows: Rows) -> BatchOutcome | None: ...
    def local(self, round: Round) -> None: ...
    def forget(self, kept: set[Round]) -> None: ...
    def compare_surrogates(self, round: Round) -> None: ...
    def diagnostics(self) -> dict[str, Any]: ...
    def tensors(self) -> dict[str, Tensor]: ...
    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class EvaluationOutputs:
    """A rest after `round` rounds: the test rows' outputs, where there are test rows."""

    round: Round
    outputs: Tensor | None


class LabelProgram(Program):
    """The label party's rounds; `at_rest` looks while all others wait, and says whether to stop."""

    def __init__(
        self,
        context: PartyContext,
        end: LabelProtocol,
        side: LabelSide,
        batches: Batches,
        *,
        test: tuple[Tensor, Tensor | None] | None,
        eval_every: int,
        control: Control,
        at_evaluation: Callable[[EvaluationOutputs], bool],
        on_round: Callable[[Round], None] | None = None,
    ) -> None:
        super().__init__(context, batches, eval_every, control)
        self.end = end
        self.side = side
        self.stop_after_evaluation = False  # what a resumed rest ends with
        self._test = test  # labels, and the label party's own test features
        self._at_rest = at_evaluation
        self._on_round = on_round

    def _begin(self) -> None:
        self.side.begin(0)
        self.end.begin()
        if self.context.recipe.warm_start:
            self.end.warm_start(self._batches.all_rows())

    def _round(self, t: Round) -> None:
        self.side.begin(t)
        rows = self._batches.rows(t)
        if self._batches.announced:
            self.context.announce(rows, t)
        for action in self.plan.label_round(
            t, lambda: self._next_is_here(t + 1), lambda: self._away(self._awaits(t))
        ):
            match action:
                case Await():
                    fresh = self.end.exchange(t, rows)
                    if fresh is not None:
                        self.plan.observe_batch(fresh)
                case Local(round):
                    self._locally(self.end.local, round)
        self.end.forget(self.plan.usable_rounds())
        if self._on_round is not None:
            self._on_round(t + 1)

    def _awaits(self, t: Round) -> list[tuple[PartyName, Kind, Round]]:
        return [(party, Kind.EMBEDDING, t) for party in self.context.feature_parties]

    def _next_is_here(self, t: Round) -> bool:
        """The next round's embeddings; before a rest, the test embeddings."""
        if not self._evaluates_after(t):
            return self.end.has_embeddings(t)
        return all(self.context.channel.ready(party, Kind.EVALUATION, t) for party in self.context.feature_parties)

    def _evaluate(self, done: Round) -> bool:
        if done:
            self.end.compare_surrogates(done)
        with self.context.channel.pause_clock():
            self.stop_after_evaluation = self._at_rest(EvaluationOutputs(done, self._outputs(done)))
        return self._finish_evaluation(done)

    def _finish_evaluation(self, done: Round) -> bool:
        with self.context.channel.pause_clock():
            send_decision(self.context, done, self.stop_after_evaluation, self.plan.decide_steps(done))
        return self.stop_after_evaluation

    def _outputs(self, done: Round) -> Tensor | None:
        labels, own_features = self._test or (None, None)
        summed = isinstance(self.context.recipe.aggregation, SecureSum)
        received = receive_test_embeddings(self.context, 0 if labels is None else len(labels), done, summed)
        if received is None:
            return None
        if self.side.bottom is not None and own_features is not None:
            received.append(embed_in_chunks(self.side.bottom.module, own_features))
        return compute_outputs(self.side.top.module, self.side.fusion, received)
