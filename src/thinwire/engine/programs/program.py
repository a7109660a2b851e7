"""What each party does all day: rounds over agreed batches, evaluation barriers, stopping after the same round."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import torch
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.protocols.bottom import Bottom
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.ends import FeatureEnd, LabelEnd, LabelSide, ProtocolEnd
from thinwire.engine.protocols.evaluation import (
    compute_outputs,
    embed_in_chunks,
    receive_decision,
    receive_test_embeddings,
    send_decision,
    send_test_embedding,
)
from thinwire.engine.protocols.sealing import Sealing
from thinwire.engine.schedule import Await, Local, Plan, Send
from thinwire.engine.streams import Rows

_MOST_ROUNDS = 2**32


class Batches:
    """The rows of each round: an epoch's shuffle in pieces, a last short one kept; or all rows in order.

    Announced: the label party draws them and sends them, in rising order, as the EF-VFL poster does.
    """

    def __init__(self, rows: int, batch_size: int | None, epochs: float, seed: int, announced: bool = False) -> None:
        if batch_size is not None and not 1 <= batch_size <= rows:
            says = f"must be from 1 to the {rows} training rows, got {batch_size}; leave it out for all rows"
            raise BadParameter.of("batch_size", says)
        if not epochs > 0:
            raise BadParameter.of("epochs", f"must be above 0, got {epochs}")
        self._rows = rows
        self._size = batch_size or rows
        self._whole = batch_size is None
        self._seed = seed
        self.announced = announced
        self.rounds_per_epoch = -(-rows // self._size)
        if epochs * self.rounds_per_epoch >= _MOST_ROUNDS:
            says = f"must be below {_MOST_ROUNDS // self.rounds_per_epoch}, since rounds have 32 bits; got {epochs:g}"
            raise BadParameter.of("epochs", says)
        self.rounds = max(1, round(epochs * self.rounds_per_epoch))
        self._shuffle = lru_cache(maxsize=2)(self._shuffled)

    def limit(self, rounds: int) -> Batches:
        """The first of these rounds only."""
        fewer = copy.copy(self)
        fewer.rounds = min(self.rounds, rounds)
        return fewer

    def rows(self, round: Round) -> Rows:
        epoch, place = divmod(round, self.rounds_per_epoch)
        rows = self._shuffle(epoch)[place * self._size : (place + 1) * self._size]
        return rows.sort().values if self.announced else rows

    def all_rows(self) -> Rows:
        return torch.arange(self._rows)

    def epoch(self, rounds: int) -> float:
        """How many epochs this many rounds are."""
        return rounds / self.rounds_per_epoch

    def _shuffled(self, epoch: int) -> Rows:
        if self._whole:
            return torch.arange(self._rows)
        rng = torch.Generator().manual_seed(derive_seed(self._seed, "batches", epoch))
        return torch.randperm(self._rows, generator=rng)


class Control:
    """Shared by the programs of one process. Ctrl-C asks; every program ends after the same round."""

    def __init__(self) -> None:
        self._lock = Lock()  # Ctrl-C arrives in another thread
        self._begun: Round = -1
        self._last: Round | None = None

    def may_begin(self, round: Round) -> bool:
        with self._lock:
            if self._last is not None and round > self._last:
                return False
            self._begun = max(self._begun, round)
            return True

    def stop(self) -> None:
        """No round beyond those that a party has begun already."""
        with self._lock:
            self._last = self._begun

    @property
    def stopping(self) -> bool:
        return self._last is not None


class Program(ABC):
    """One party's program; `run` blocks until the job is done, stopped or at its target."""

    end: ProtocolEnd

    def __init__(self, context: PartyContext, batches: Batches, eval_every: int, control: Control) -> None:
        self.context = context
        self.plan: Plan = context.recipe.schedule.open(context.seed, context.rows)
        self.start: Round = 0
        self.fresh = True  # not resumed
        self.at_barrier = False  # resumed in the middle of a rest
        self._batches = batches
        self._eval_every = eval_every
        self._control = control

    def run(self) -> bool:
        """False where `control` ended it before its time."""
        if self.fresh:
            self._begin_round(0)
            self.end.begin()
            if self.context.recipe.warm_start:
                self.end.warm_start(self._batches.all_rows())
            if self._evaluate(0):
                return True
        elif self.at_barrier and self._finish_evaluation(self.start):
            return True
        for t in range(self.start, self._batches.rounds):
            if not self._control.may_begin(t):
                return False
            self.context.stopwatch.round = t
            self._begin_round(t)
            self._round(t)
            self.start = t + 1
            if self._evaluates_after(t + 1) and self._evaluate(t + 1):
                return True
        return True

    def _locally(self, step: Callable[[Round], None], round: Round) -> None:
        """A step without a message, and noted as one."""
        self.context.stopwatch.begin("local")
        step(round)
        self.context.stopwatch.begin("compute")

    def _away(self, awaited: list[tuple[PartyName, Kind, Round]]) -> bool:
        """Whether to learn from what is here instead of waiting for a party that is away."""
        return self.context.recipe.on_outage == "continue" and self.context.channel.away(awaited)

    def _evaluates_after(self, done: Round) -> bool:
        return done % self._eval_every == 0 or done == self._batches.rounds

    @abstractmethod
    def _begin_round(self, t: Round) -> None:
        """Sets the round's learning rates."""

    @abstractmethod
    def _round(self, t: Round) -> None: ...

    @abstractmethod
    def _evaluate(self, done: Round) -> bool:
        """An evaluation after this many rounds; whether to stop."""

    @abstractmethod
    def _finish_evaluation(self, done: Round) -> bool:
        """The rest's last message; whether to stop."""


class FeatureProgram(Program):
    """A feature party's rounds."""

    def __init__(
        self,
        context: PartyContext,
        end: FeatureEnd,
        bottom: Bottom,
        batches: Batches,
        *,
        eval_every: int,
        control: Control,
        sealing: Sealing | None = None,
    ) -> None:
        super().__init__(context, batches, eval_every, control)
        self.end: FeatureEnd = end
        self.bottom = bottom
        self._sealing = sealing

    def _begin_round(self, t: Round) -> None:
        self.bottom.begin(t)

    def _round(self, t: Round) -> None:
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
        end: LabelEnd,
        side: LabelSide,
        batches: Batches,
        *,
        widths: Mapping[PartyName, int],
        test: tuple[Tensor, Tensor | None] | None,
        eval_every: int,
        control: Control,
        at_evaluation: Callable[[EvaluationOutputs], bool],
        on_round: Callable[[Round], None] | None = None,
    ) -> None:
        super().__init__(context, batches, eval_every, control)
        self.end: LabelEnd = end
        self.side = side
        self.stop_after_evaluation = False  # what a resumed rest ends with
        self._widths = widths
        self._test = test  # labels, and the label party's own test features
        self._at_rest = at_evaluation
        self._on_round = on_round

    def _begin_round(self, t: Round) -> None:
        self.side.begin(t)

    def _round(self, t: Round) -> None:
        rows = self._batches.rows(t)
        if self._batches.announced:
            self.context.announce(rows, t)
        for action in self.plan.label_round(
            t, lambda: self._next_is_here(t + 1), lambda: self._away(self.end.awaits(t))
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
        tests = 0 if labels is None else len(labels)
        received = receive_test_embeddings(self.context, tests, self._widths, done)
        if received is None:
            return None
        if self.side.bottom is not None and own_features is not None:
            received.append(embed_in_chunks(self.side.bottom.module, own_features))
        return compute_outputs(self.side.top.module, self.side.fusion, received)
