"""Requests become batches; what is kept of embeddings."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from threading import Lock
from time import monotonic
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.base.types import PartyName
from thinwire.job.schema import ServeSection
from thinwire.net.handshake import CacheTerms
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.errors import Busy, Late, NoAnswer, PartyAway
from thinwire.predict.online.api_schema import ScoreRequest
from thinwire.predict.online.server_metrics import ServerMetrics
from thinwire.predict.party_models import ReadyModel
from thinwire.predict.pending_requests import PendingAnswers

# Embeddings that a party allows to be kept: so many rows, for so long ---------------------------------------------


_Kept = OrderedDict[tuple[str, int], tuple[float, Tensor]]  # by model and row: until when, and what


class EmbeddingCache:
    """By party, model and row; the oldest go first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.hits = 0
        self.misses = 0
        self._clock = clock
        self._lock = Lock()  # batches begin in one thread and are scored in another
        self._kept: dict[PartyName, _Kept] = {}

    def find(
        self, party: PartyName, model: str, rows: npt.NDArray[np.int64], terms: CacheTerms | None
    ) -> dict[int, Tensor]:
        """What is kept of these rows and has not expired."""
        with self._lock:
            if terms is None:
                self._kept.pop(party, None)  # no longer allowed
                return {}
            kept = self._fresh(party)
            found = {row: kept[model, row][1] for row in rows.tolist() if (model, row) in kept}
            self.hits += len(found)
            self.misses += len(rows) - len(found)
            return found

    def keep(self, party: PartyName, model: str, rows: npt.NDArray[np.int64], h: Tensor, terms: CacheTerms) -> None:
        with self._lock:
            kept = self._fresh(party)
            expires = self._clock() + terms.seconds
            for row, values in zip(rows.tolist(), h, strict=True):
                kept[model, row] = (expires, values.clone())
                kept.move_to_end((model, row))
            while len(kept) > terms.rows:
                kept.popitem(last=False)

    def drop_stale(self) -> None:
        """From time to time: what may not be kept any longer is not in memory any longer."""
        with self._lock:
            for party in self._kept:
                self._fresh(party)

    def sizes(self) -> dict[PartyName, int]:
        with self._lock:
            return {party: len(kept) for party, kept in self._kept.items()}

    def _fresh(self, party: PartyName) -> _Kept:
        kept, now = self._kept.setdefault(party, OrderedDict()), self._clock()
        # The first to come are the first to go; where a party shortens its time, it has come back with other terms.
        while kept and next(iter(kept.values()))[0] <= now:
            kept.popitem(last=False)
        return kept


# Requests that come at the same time go together; each keeps its own deadline. Lives in the server's event loop ---


RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Probabilities or values, [rows, columns]; `missing` parties were replaced by their defaults."""

    table: Tensor
    columns: tuple[str, ...]
    ready: ReadyModel
    missing: list[PartyName]


@dataclass(eq=False)
class ScoringBatch:
    """Different rows under one question, and what is known of them already."""

    ready: ReadyModel
    rows: RowNumbers  # in rising order, each once
    answers: PendingAnswers
    asked: dict[PartyName, RowNumbers]
    kept: dict[PartyName, dict[int, Tensor]]
    embeddings: dict[PartyName, Tensor] = field(default_factory=dict)  # of all rows, once they were put together


class BatchScorer:
    """Begins batches, and scores them; `scored` is for one thread at a time."""

    def __init__(self, party: EmbeddingClient) -> None:
        self.party = party
        self.cache = EmbeddingCache()

    def begin(self, rows: RowNumbers) -> ScoringBatch:
        """Asks for what is not kept. Raises PartyAway where no model was ever whole."""
        ready = self.party.ready
        if ready is None:
            away = self.party.list_absent() or list(self.party.own.feature_parties)
            raise self.party.explain_absence(away[0])
        distinct = np.unique(rows) if len(rows) > 1 else rows
        asked, kept = {}, {}
        for name in self.party.own.feature_parties:
            terms = None if ready.scorer.uses_secure_sum else self.party.cache_terms.get(name)
            kept[name] = self.cache.find(name, ready.hashes[name], distinct, terms)
            wanted = distinct[[row not in kept[name] for row in distinct.tolist()]] if kept[name] else distinct
            if len(wanted):
                asked[name] = wanted
        answers = self.party.pending.ask(ready, {name: torch.from_numpy(wanted) for name, wanted in asked.items()})
        return ScoringBatch(ready, distinct, answers, asked, kept)

    def compute_scores(self, batch: ScoringBatch, rows: RowNumbers, own: Tensor | None) -> ScoredRows:
        """Of these rows of the batch; raises what a party refused with, unless a default stands for it."""
        half, names = batch.ready.scorer, self.party.own.feature_parties
        missing: list[PartyName] = []
        if half.uses_secure_sum:
            embeddings = [self._summed(batch)]
        else:
            embeddings = []
            for name in names:
                found = self._embedding(batch, name)
                if found is None:
                    missing.append(name)
                    found = torch.tensor(batch.ready.defaults[name]).expand(len(batch.rows), -1)
                embeddings.append(found)
        if not np.array_equal(batch.rows, rows):
            places = torch.from_numpy(np.searchsorted(batch.rows, rows))
            embeddings = [found[places] for found in embeddings]
        table, columns = half.score_table(embeddings, torch.from_numpy(rows), own)
        return ScoredRows(table, columns, batch.ready, missing)

    def _summed(self, batch: ScoringBatch) -> Tensor:
        if "" not in batch.embeddings:
            bodies = {name: _result(name, waiting) for name, waiting in batch.answers.futures.items()}
            rows = torch.from_numpy(batch.rows)
            (batch.embeddings[""],) = batch.ready.scorer.combine(bodies, rows, batch.answers.number)
        return batch.embeddings[""]

    def _embedding(self, batch: ScoringBatch, name: PartyName) -> Tensor | None:
        """Of all rows of the batch; None where a default must stand for them."""
        if name in batch.embeddings:
            return batch.embeddings[name]
        kept, wanted = batch.kept[name], batch.asked.get(name)
        fresh = None
        if wanted is not None:
            try:
                body = _result(name, batch.answers.futures[name])
            except (PartyAway, NoAnswer):
                if name in batch.ready.defaults:
                    return None
                raise
            fresh = batch.ready.scorer.decode_rows(body, name, torch.as_tensor(wanted))
            terms = self.party.cache_terms.get(name)
            if terms is not None:
                self.cache.keep(name, batch.ready.hashes[name], wanted, fresh, terms)
        if fresh is None or kept:
            fresh = _together(batch.rows, kept, wanted, fresh)
        batch.embeddings[name] = fresh
        return fresh

    def cancel(self, batch: ScoringBatch) -> None:
        """Nobody waits for it any more."""
        futures = batch.answers.futures
        if any(not one.done() or one.exception() is not None for one in futures.values()):
            self.party.pending.cancel(batch.answers)
        for name, waiting in futures.items():
            if not waiting.done():
                with suppress(InvalidStateError):  # answered in this moment
                    waiting.set_exception(NoAnswer(name, 0.0))


def _result(name: PartyName, waiting: Future[memoryview]) -> memoryview:
    if not waiting.done():
        raise NoAnswer(name, 0.0)
    return waiting.result()


def _together(rows: RowNumbers, kept: dict[int, Tensor], wanted: RowNumbers | None, fresh: Tensor | None) -> Tensor:
    found: dict[int, Tensor] = dict(kept)
    if wanted is not None and fresh is not None:
        found |= dict(zip(wanted.tolist(), fresh, strict=True))
    return torch.stack([found[row] for row in rows.tolist()])


_MOST_WAITING_ROWS = 1 << 18
_MOST_UNDER_WAY = 8  # batches
_PLACE_SECONDS = 0.1  # that a batch counts as one of them
_MARGIN = 0.9  # of a deadline: what is left is for the answer's way back
_MOST_IN_LOOP = 32  # rows that the event loop scores itself,
_QUICK_SECONDS = 0.002  # where the last batch took no longer than this


@dataclass(eq=False)
class _Waiting:
    request: ScoreRequest
    answer: asyncio.Future[ScoredRows | None]  # None: its deadline came first
    batch: ScoringBatch | None = None


@dataclass(eq=False)
class _Running:
    members: list[_Waiting]
    place: asyncio.TimerHandle
    deadline: asyncio.TimerHandle
    is_finishing: bool = False


class RequestBatcher:
    """One for a server."""

    def __init__(self, scorer: BatchScorer, settings: ServeSection, metrics: ServerMetrics) -> None:
        self._scorer = scorer
        self._settings = settings
        self._metrics = metrics
        self._queue: deque[_Waiting] = deque()
        self._rows_waiting = 0
        self._under_way = 0
        self._running: dict[ScoringBatch, _Running] = {}  # under way
        self._answered_at, self._answered_rows = -inf, 0  # when the last batch ended, and who may ask again
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._computing = ThreadPoolExecutor(1, thread_name_prefix="score")
        self._in_thread = 0  # batches that it has
        self._last_seconds = inf  # that scoring a batch took

    async def score(self, request: ScoreRequest) -> ScoredRows:
        """Raises what the request came to."""
        if self._rows_waiting + len(request.rows) > _MOST_WAITING_ROWS:
            raise Busy(f"{self._rows_waiting} rows are already waiting; try again later")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future())
        self._queue.append(waiting)
        self._rows_waiting += len(request.rows)
        self._look()
        deadline = loop.call_later(_MARGIN * request.deadline_seconds, _give_up, waiting.answer)
        try:
            scored = await waiting.answer
        finally:
            deadline.cancel()
        return await self._score_late(waiting) if scored is None else scored

    async def _score_late(self, waiting: _Waiting) -> ScoredRows:
        """At a request's own deadline: by defaults where they stand for all that is missing, otherwise an error."""
        batch = waiting.batch
        held_up = self._running if batch is None else [batch]
        missing = sorted({name for one in held_up for name in one.answers.missing()})
        if batch is None or not missing or any(name not in batch.ready.defaults for name in missing):
            raise Late(waiting.request.deadline_seconds, missing)
        return await self._compute(batch, [waiting])

    def close(self) -> None:
        self._computing.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        """Begins a batch where it is time for one."""
        while self._queue and self._rows_waiting >= self._settings.max_batch and self._under_way < _MOST_UNDER_WAY:
            self._begin()
        if not self._queue or self._under_way >= _MOST_UNDER_WAY:
            return
        is_time = not self._under_way and self._rows_waiting >= self._count_returning()
        if self._timer is not None and is_time:
            self._stop_timer()
        if self._timer is None:
            # Once round the loop even where nobody is waited for: what has arrived by now goes along.
            wait = 0.0 if is_time else self._settings.max_wait_ms / 1000
            self._timer = asyncio.get_running_loop().call_later(wait, self._waited)

    def _count_returning(self) -> int:
        """Rows of the batch that has just been answered: clients that ask again at once go together again."""
        return self._answered_rows if monotonic() - self._answered_at < self._settings.max_wait_ms / 1000 else 0

    def _waited(self) -> None:
        self._timer = None
        if self._queue and self._under_way < _MOST_UNDER_WAY:
            self._begin()
            self._look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self._stop_timer()
        members = [self._next()]
        rows = len(members[0].request.rows)
        while self._queue and rows + len(self._queue[0].request.rows) <= self._settings.max_batch:
            members.append(self._next())
            rows += len(members[-1].request.rows)
        members = [one for one in members if not one.answer.done()]
        if members:
            self._ask(members)

    def _next(self) -> _Waiting:
        one = self._queue.popleft()
        self._rows_waiting -= len(one.request.rows)
        return one

    # One batch, from its question to everybody's answer -------------------------------------------------------------

    def _ask(self, members: list[_Waiting]) -> None:
        """The question leaves at once; what is left is done when the last answer has come."""
        rows = _join_rows(members)
        try:
            batch = self._scorer.begin(rows)
        except Exception as error:  # noqa: BLE001  whoever asked must hear of it
            _fail(members, error)
            return
        loop, futures = asyncio.get_running_loop(), batch.answers.futures.values()
        self._under_way += 1
        self._metrics.batch_rows.observe(len(rows))
        place = loop.call_later(_PLACE_SECONDS, self._leave_place)
        # One that never answers is not waited for for ever.
        longest = max(one.request.deadline_seconds for one in members) if futures else 0.0
        self._running[batch] = _Running(members, place, loop.call_later(longest, self._finish, batch))
        for one in members:
            one.batch = batch

        def look(_: object) -> None:
            """In the thread that reads; the loop wakes once, for the last of them."""
            if all(one.done() for one in futures):
                with suppress(RuntimeError):  # the server has ended
                    loop.call_soon_threadsafe(self._finish, batch)

        for waiting in futures:
            waiting.add_done_callback(look)

    def _finish(self, batch: ScoringBatch) -> None:
        """Every party has answered, or is lost or late."""
        running = self._running.get(batch)
        if running is None or running.is_finishing:
            return  # two parties answered in the same moment
        running.is_finishing = True
        running.deadline.cancel()
        members = [one for one in running.members if not one.answer.done()]
        rows = _join_rows(members) if members else np.empty(0, np.int64)
        if members and not self._is_quick(len(rows)):
            task = asyncio.get_running_loop().create_task(self._finish_in_thread(batch, members))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        try:
            if members:
                _give(members, self._time_scores(batch, rows, _own_features(batch, members)))
        except Exception as error:  # noqa: BLE001  whoever asked must hear of it
            _fail(members, error)
        self._end(batch)

    async def _finish_in_thread(self, batch: ScoringBatch, members: list[_Waiting]) -> None:
        try:
            _give(members, await self._compute(batch, members))
        except Exception as error:  # noqa: BLE001  whoever asked must hear of it
            _fail(members, error)
        finally:
            self._end(batch)

    def _end(self, batch: ScoringBatch) -> None:
        running = self._running.pop(batch)
        self._scorer.cancel(batch)
        self._answered_at, self._answered_rows = monotonic(), len(batch.rows) + self._rows_waiting
        if running.place.when() > asyncio.get_running_loop().time():
            running.place.cancel()
            self._leave_place()

    def _is_quick(self, rows: int) -> bool:
        """A thread takes longer to wake than a small model to score a few rows; the last batch tells."""
        return not self._in_thread and rows <= _MOST_IN_LOOP and self._last_seconds < _QUICK_SECONDS

    async def _compute(self, batch: ScoringBatch, members: list[_Waiting]) -> ScoredRows:
        self._in_thread += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._computing, self._time_scores, batch, _join_rows(members), _own_features(batch, members)
            )
        finally:
            self._in_thread -= 1

    def _time_scores(self, batch: ScoringBatch, rows: RowNumbers, own: Tensor | None) -> ScoredRows:
        began = monotonic()
        try:
            return self._scorer.compute_scores(batch, rows, own)
        finally:
            self._last_seconds = monotonic() - began

    def _leave_place(self) -> None:
        """After a while, or at its end: a party that hangs must not hold up those who can do without it."""
        self._under_way -= 1
        self._look()


def _give(members: list[_Waiting], scored: ScoredRows) -> None:
    """Everybody's own rows of what was scored together."""
    start = 0
    for one in members:
        end = start + len(one.request.rows)
        if not one.answer.done():
            one.answer.set_result(scored if len(members) == 1 else replace(scored, table=scored.table[start:end]))
        start = end


def _fail(members: list[_Waiting], error: Exception) -> None:
    for one in members:
        if not one.answer.done():
            one.answer.set_exception(error)


def _give_up(answer: asyncio.Future[Any]) -> None:
    """Whoever waits for it goes on, without one where there is none."""
    if not answer.done():
        answer.set_result(None)


def _join_rows(members: list[_Waiting]) -> RowNumbers:
    rows = [one.request.rows for one in members]
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _own_features(batch: ScoringBatch, members: list[_Waiting]) -> Tensor | None:
    """The label party's own features where a request brings them; otherwise the table's."""
    if all(one.request.features is None for one in members):
        return None
    table = batch.ready.model.rows.features
    if table is None:
        return None
    parts = [
        table[torch.from_numpy(one.request.rows)] if one.request.features is None else one.request.features
        for one in members
    ]
    return torch.cat(parts)
