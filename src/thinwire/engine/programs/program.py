"""What each party does all day: rounds over agreed batches, evaluation barriers, stopping after the same round."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock

import torch
from torch import Tensor

from thinwire.base.errors import BadParameter
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.programs.best_model import BestModel, Weighted
from thinwire.engine.protocols.bottom import Bottom, RegressionBottom
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.ends import FeatureEnd, LabelEnd, LabelSide, ProtocolEnd
from thinwire.engine.protocols.evaluation import (
    ColumnAnswers,
    ColumnLosses,
    ColumnTable,
    EvaluationVerdict,
    HeldOut,
    HeldOutRows,
    answer_columns,
    ask_columns,
    compute_outputs,
    receive_verdict,
    send_verdict,
)
from thinwire.engine.protocols.regression import answer_errors, ask_errors
from thinwire.engine.schedule import Await, Local, Plan, Refresh, Send, Update
from thinwire.engine.streams import Rows
from thinwire.engine.streams.surrogate import list_rows

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
            says = (
                f"must be below {_MOST_ROUNDS // self.rounds_per_epoch}, because round numbers have 32 bits; "
                f"got {epochs:g}"
            )
            raise BadParameter.of("epochs", says)
        self.rounds = max(1, round(epochs * self.rounds_per_epoch))
        self._shuffle = lru_cache(maxsize=2)(self._shuffled)

    @property
    def size(self) -> int:
        """Rows of a round; a last one may be shorter."""
        return self._size

    def limit(self, rounds: int) -> Batches:
        """The first of these rounds only."""
        fewer = copy.copy(self)
        fewer.rounds = min(self.rounds, rounds)
        return fewer

    def rows(self, round: Round) -> Rows:
        if self._whole:
            return list_rows(self._rows)
        epoch, place = divmod(round, self.rounds_per_epoch)
        rows = self._shuffle(epoch)[place * self._size : (place + 1) * self._size]
        return rows.sort().values if self.announced else rows

    def all_rows(self) -> Rows:
        return list_rows(self._rows)

    def epoch(self, rounds: int) -> float:
        """How many epochs this many rounds are."""
        return rounds / self.rounds_per_epoch

    def _shuffled(self, epoch: int) -> Rows:
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
    """One party's program; `run` blocks until the job is done, stopped or at its target.

    `held_out` are the kinds of rows that are kept back; validation rows, where there are any, are what every
    evaluation looks at, and the test rows wait for the end.
    """

    end: ProtocolEnd

    def __init__(
        self,
        context: PartyContext,
        batches: Batches,
        *,
        held_out: Collection[HeldOut],
        models: Mapping[str, Weighted],
        eval_every: int,
        control: Control,
    ) -> None:
        self.context = context
        self.best = BestModel(models)
        self.tests_at_end = set(held_out) == set(HeldOut)
        self._evaluated = HeldOut.VALIDATION if HeldOut.VALIDATION in held_out else HeldOut.TEST
        self.plan: Plan = context.recipe.open_plan(context.seed, context.rows)
        self.start: Round = 0
        self.fresh = True  # not resumed
        self.at_barrier = False  # resumed in the middle of a rest
        self.tested = False  # all that comes after the last round was said
        self._batches = batches
        self._eval_every = eval_every
        self._control = control

    def run(self) -> bool:
        """False where `control` ended it before its time."""
        if not self._train():
            return False
        if not self.tested:
            with self.best.swap_in(), self.context.channel.pause_clock():
                if self.tests_at_end:
                    self._test(self.start)
                self._measure_columns(self.start)
            with self.context.channel.pause_clock():
                self._conclude(self.start)
            self.tested = True
        return True

    def _train(self) -> bool:
        if self.fresh:
            self._prepare()
            self._begin_round(0)
            self.end.begin()
            if self.context.recipe.warm_start:
                self.end.warm_start(self._batches.all_rows())
            if self._rest(0):
                return True
        elif self.at_barrier:
            with self.best.average_in():
                if self._finish_evaluation(self.start):
                    return True
        for t in range(self.start, self._batches.rounds):
            if not self._control.may_begin(t):
                return False
            self.context.stopwatch.round = t
            self._begin_round(t)
            self.end.refine(self.plan.pace.level)
            self._round(t)
            self.best.average(t + 1)
            self.start = t + 1
            if self._evaluates_after(t + 1) and self._rest(t + 1):
                return True
        return True

    def _rest(self, done: Round) -> bool:
        """An evaluation after this many rounds, with averaged weights where there are any; whether to stop."""
        with self.best.average_in():
            return self._evaluate(done)

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
    def _prepare(self) -> None:
        """What a party's model learns before the first round, without anybody."""

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

    @abstractmethod
    def _test(self, done: Round) -> None:
        """The test rows, once."""

    @abstractmethod
    def _measure_columns(self, done: Round) -> None:
        """What each column of a feature party is worth to the score, where the job asks for it."""

    @abstractmethod
    def _conclude(self, done: Round) -> None:
        """What a regression says at the end."""


class FeatureProgram(Program):
    """A feature party's rounds."""

    def __init__(
        self,
        context: PartyContext,
        end: FeatureEnd,
        bottom: Bottom,
        batches: Batches,
        *,
        held_out: Collection[HeldOut],
        eval_every: int,
        control: Control,
        columns: ColumnTable | None = None,
    ) -> None:
        """`columns` are those whose importance is measured."""
        super().__init__(
            context, batches, held_out=held_out, models={"bottom": bottom}, eval_every=eval_every, control=control
        )
        self.end: FeatureEnd = end
        self.end.save_with("best", self.best)
        self.bottom = bottom
        self.column_losses: ColumnLosses | None = None
        self._columns = columns

    def _prepare(self) -> None:
        self.bottom.prepare()

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
                case Update():
                    self.end.update(t, self._rows(t))
                case Refresh():
                    self.end.refresh(t)
                case Local(round):
                    self._locally(self.end.local, round)
        self.end.forget(self.plan.usable_rounds())

    def _rows(self, round: Round) -> Rows:
        """Of this party's own table: with a group, the owners of the round's rows."""
        rows = self.context.receive_rows(round) if self._batches.announced else self._batches.rows(round)
        return self.context.owners(self.context.me).select(rows).owners

    def _evaluate(self, done: Round) -> bool:
        if done:
            self.end.show_surrogates(done)
        with self.context.channel.pause_clock():
            self.end.send_held_out(Kind.EVALUATION, self._evaluated, done)
        stop = self._finish_evaluation(done)
        self.end.diagnostics()  # whoever looks has looked; they would only grow
        return stop

    def _finish_evaluation(self, done: Round) -> bool:
        with self.context.channel.pause_clock():
            verdict = receive_verdict(self.context, done)
        if verdict.best:
            self.best.keep(done)
        self.plan.pace = verdict.pace
        return verdict.stop

    def _test(self, done: Round) -> None:
        self.end.send_held_out(Kind.TEST, HeldOut.TEST, done)

    def _measure_columns(self, done: Round) -> None:
        if self._columns is not None:
            self.column_losses = ask_columns(self.context, self._columns, self.bottom.module, done)

    def _conclude(self, done: Round) -> None:
        if isinstance(self.bottom, RegressionBottom):
            ask_errors(self.context, self.bottom, done)


@dataclass(frozen=True)
class EvaluationOutputs:
    """After `round` rounds: the outputs of the held-out rows, where there are such rows."""

    round: Round
    outputs: Tensor | None
    rows: HeldOut = HeldOut.TEST
    embeddings: Sequence[Tensor] = ()  # of test rows, that the outputs come from: as received, this party's own last


@dataclass(frozen=True)
class Observers:
    """Who looks at the label party's evaluations while all others wait."""

    evaluate: Callable[[EvaluationOutputs], EvaluationVerdict]
    test: Callable[[EvaluationOutputs], None]  # of the model that is delivered
    round: Callable[[Round], None] | None = None  # after each
    columns: ColumnAnswers | None = None  # where the job asks for the importance of columns


class LabelProgram(Program):
    """The label party's rounds."""

    def __init__(
        self,
        context: PartyContext,
        end: LabelEnd,
        side: LabelSide,
        batches: Batches,
        *,
        widths: Mapping[PartyName, int],
        held_out: Mapping[HeldOut, Tensor],
        eval_every: int,
        control: Control,
        observers: Observers,
    ) -> None:
        models = {"top": side.top} | ({} if side.bottom is None else {"bottom": side.bottom})
        super().__init__(context, batches, held_out=held_out, models=models, eval_every=eval_every, control=control)
        self.end: LabelEnd = end
        self.end.save_with("best", self.best)
        self.side = side
        self.verdict = EvaluationVerdict()  # what a resumed rest ends with
        self._widths = widths
        self._held_out = held_out
        self._observers = observers

    def _prepare(self) -> None:
        if self.side.bottom is not None:
            self.side.bottom.prepare()

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
                case Update():
                    self.end.update(t, rows)
                case Refresh():
                    self.end.refresh(t)
                case Local(round):
                    self._locally(self.end.local, round)
        self.end.forget(self.plan.usable_rounds())
        if self._observers.round is not None:
            self._observers.round(t + 1)

    def _next_is_here(self, t: Round) -> bool:
        """The next round's embeddings; before a rest, those of held-out rows."""
        if not self._evaluates_after(t):
            return self.end.has_embeddings(t)
        return all(self.context.channel.ready(party, Kind.EVALUATION, t) for party in self.context.feature_parties)

    def _evaluate(self, done: Round) -> bool:
        if done:
            self.end.compare_surrogates(done)
        with self.context.channel.pause_clock():
            self.verdict = self._observers.evaluate(self._compute(Kind.EVALUATION, self._evaluated, done))
        return self._finish_evaluation(done)

    def _finish_evaluation(self, done: Round) -> bool:
        with self.context.channel.pause_clock():
            settled = self.side.regression is not None and self.side.regression.settled
            # Nothing is kept where no validation rows steer.
            is_best = None if self.best.round is None else self.verdict.best
            pace = self.plan.decide_pace(done, is_best, done / self._batches.rounds)
            verdict = replace(self.verdict, stop=self.verdict.stop or settled, pace=pace)
            send_verdict(self.context, done, verdict)
        if verdict.best:
            self.best.keep(done)
        return verdict.stop

    def _test(self, done: Round) -> None:
        self._observers.test(self._compute(Kind.TEST, HeldOut.TEST, done))

    def _measure_columns(self, done: Round) -> None:
        if self._observers.columns is not None:
            rows = HeldOutRows(HeldOut.TEST, len(self._held_out[HeldOut.TEST]))
            answer_columns(self.context, rows, self._widths, done, self._observers.columns)

    def _conclude(self, done: Round) -> None:
        if self.side.regression is not None:
            answer_errors(self.context, self.side, self.side.regression, done)

    def _compute(self, kind: Kind, rows: HeldOut, done: Round) -> EvaluationOutputs:
        """The top model's outputs of held-out rows, together with all parties."""
        held_out = HeldOutRows(rows, len(self._held_out.get(rows, ())))
        received = self.end.receive_held_out(kind, held_out, self._widths, done)
        if received is None:
            return EvaluationOutputs(done, None, rows)
        own = None if self.side.bottom is None else self.side.bottom.embed_held_out(rows)
        if own is not None:
            received = [*received, own]
        outputs = compute_outputs(self.side.top.module, self.side.fusion, received)
        return EvaluationOutputs(done, outputs, rows, tuple(received) if rows is HeldOut.TEST else ())
