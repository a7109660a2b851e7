"""A batch of rows from question to scores: what is kept is taken, the rest is asked for, defaults fill gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.predict.asking import AskingParty
from thinwire.predict.errors import NoAnswer, PartyAway
from thinwire.predict.ready import Ready
from thinwire.predict.under_way import Answers
from thinwire.serve.cache import EmbeddingCache
from thinwire.types import PartyName

__all__ = ["Batch", "Scored", "Scorer"]

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scored:
    """Probabilities or values, [rows, columns]; `missing` parties were replaced by their defaults."""

    table: Tensor
    ready: Ready
    missing: list[PartyName]


@dataclass(eq=False)
class Batch:
    """Different rows under one question, and what is known of them already."""

    ready: Ready
    rows: RowNumbers  # in rising order, each once
    answers: Answers
    asked: dict[PartyName, RowNumbers]
    kept: dict[PartyName, dict[int, Tensor]]
    embeddings: dict[PartyName, Tensor] = field(default_factory=dict)  # of all rows, once they were put together

    def missing(self) -> list[PartyName]:
        return self.answers.missing()


class Scorer:
    """Begins batches, and scores them; `scored` is for one thread at a time."""

    def __init__(self, party: AskingParty) -> None:
        self.party = party
        self.cache = EmbeddingCache()

    def begin(self, rows: RowNumbers, done: Callable[[], None]) -> Batch:
        """Asks for what is not kept; `done` is called once, in some thread, when every answer is there or lost.

        Raises PartyAway where no model was ever whole.
        """
        ready = self.party.ready()
        if ready is None:
            away = self.party.away() or list(self.party.own.feature_parties)
            raise self.party.why_away(away[0])
        distinct = np.unique(rows)
        asked, kept = {}, {}
        for name in self.party.own.feature_parties:
            terms = None if ready.half.summed else self.party.cache_terms.get(name)
            kept[name] = self.cache.known(name, ready.hashes[name], distinct, terms)
            wanted = distinct[[row not in kept[name] for row in distinct.tolist()]] if kept[name] else distinct
            if len(wanted):
                asked[name] = wanted
        answers = self.party.ask(ready, {name: torch.from_numpy(wanted) for name, wanted in asked.items()})
        left, lock = [len(answers.waiting)], Lock()

        def one_more(_: Future[memoryview]) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                done()

        for waiting in answers.waiting.values():
            waiting.add_done_callback(one_more)
        if not answers.waiting:
            done()
        return Batch(ready, distinct, answers, asked, kept)

    def scored(self, batch: Batch, rows: RowNumbers, own: Tensor | None) -> Scored:
        """Of these rows of the batch; raises what a party refused with, unless a default stands for it."""
        half, names = batch.ready.half, self.party.own.feature_parties
        missing: list[PartyName] = []
        places = torch.from_numpy(np.searchsorted(batch.rows, rows))
        if half.summed:
            total = self._summed(batch)
            embeddings = [total[places]]
        else:
            embeddings = []
            for name in names:
                found = self._embedding(batch, name)
                if found is None:
                    missing.append(name)
                    found = torch.tensor(batch.ready.defaults[name]).expand(len(batch.rows), -1)
                embeddings.append(found[places])
        outputs = half.scored(embeddings, torch.from_numpy(rows), own)
        return Scored(half.outputs.shown(outputs), batch.ready, missing)

    def _summed(self, batch: Batch) -> Tensor:
        if "" not in batch.embeddings:
            half = batch.ready.half
            symbols = {
                name: half.decoded(_result(name, waiting), name, len(batch.rows))
                for name, waiting in batch.answers.waiting.items()
            }
            rows = torch.from_numpy(batch.rows)
            batch.embeddings[""] = half.embeddings(symbols, rows, batch.answers.number)[0]
        return batch.embeddings[""]

    def _embedding(self, batch: Batch, name: PartyName) -> Tensor | None:
        """Of all rows of the batch; None where a default must stand for them."""
        if name in batch.embeddings:
            return batch.embeddings[name]
        kept, wanted = batch.kept[name], batch.asked.get(name)
        fresh = None
        if wanted is not None:
            try:
                body = _result(name, batch.answers.waiting[name])
            except (PartyAway, NoAnswer):
                if name in batch.ready.defaults:
                    return None
                raise
            fresh = batch.ready.half.embedding(body, name, len(wanted))
            terms = self.party.cache_terms.get(name)
            self.cache.keep(name, batch.ready.hashes[name], wanted, fresh, terms)
        if fresh is None or kept:
            fresh = _together(batch.rows, kept, wanted, fresh)
        batch.embeddings[name] = fresh
        return fresh

    def forget(self, batch: Batch) -> None:
        """Nobody waits for it any more."""
        self.party.forget(batch.answers)
        for name, waiting in batch.answers.waiting.items():
            with suppress(InvalidStateError):  # it is answered
                waiting.set_exception(NoAnswer(name, 0.0))


def _result(name: PartyName, waiting: Future[memoryview]) -> memoryview:
    if not waiting.done():
        raise NoAnswer(name, 0.0)
    return waiting.result()


def _together(rows: RowNumbers, kept: dict[int, Tensor], wanted: RowNumbers | None, fresh: Tensor | None) -> Tensor:
    found: dict[int, Tensor] = dict(kept)
    if wanted is not None and fresh is not None:
        found |= dict(zip(wanted.tolist(), fresh, strict=True))
    parts: Sequence[Tensor] = [found[row] for row in rows.tolist()]
    return torch.stack(list(parts))
