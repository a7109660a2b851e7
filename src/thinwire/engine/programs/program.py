"""What every party's program does: rounds over agreed batches, evaluation barriers, stopping after the same round."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from threading import Lock

import torch

from thinwire.base.errors import BadParameter
from thinwire.base.seeds import derive_seed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.schedule import Plan
from thinwire.engine.streams import Rows


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


# What every party's program does: rounds, an evaluation barrier now and then, and stopping after the same round ---


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
            self._begin()
            if self._evaluate(0):
                return True
        elif self.at_barrier and self._finish_evaluation(self.start):
            return True
        for t in range(self.start, self._batches.rounds):
            if not self._control.may_begin(t):
                return False
            self.context.stopwatch.round = t
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
    def _begin(self) -> None:
        """What is said before the first round."""

    @abstractmethod
    def _round(self, t: Round) -> None: ...

    @abstractmethod
    def _evaluate(self, done: Round) -> bool:
        """An evaluation after this many rounds; whether to stop."""

    @abstractmethod
    def _finish_evaluation(self, done: Round) -> bool:
        """The rest's last message; whether to stop."""
