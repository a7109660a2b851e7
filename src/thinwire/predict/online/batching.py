"""Requests become batches; what is kept of embeddings, and what Prometheus is told, never ids or rows."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from threading import Lock
from time import monotonic

import numpy as np
import numpy.typing as npt
import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from torch import Tensor

from thinwire.base.types import PartyName
from thinwire.job.schema import ServeSection
from thinwire.net.handshake import CacheTerms
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.errors import Busy, Late, NoAnswer, PartyAway, describe_error
from thinwire.predict.online.api_schema import ScoreRequest
from thinwire.predict.party_models import ReadyModel
from thinwire.predict.pending_requests import PendingAnswers

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class ServerMetrics(Collector):
    """Counted as requests end; one registry for each server. `read` gives what is read when a page is asked for."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "thinwire_requests", "Requests, by what they came to.", ["outcome"], registry=registry
        )
        self._seconds = Histogram(
            "thinwire_request_seconds", "From a request to its answer.", buckets=_SECONDS, registry=registry
        )
        self.batch_rows = Histogram(
            "thinwire_batch_rows", "Rows that were asked for together.", buckets=_ROWS, registry=registry
        )
        self.defaults = Counter(
            "thinwire_defaults", "Answers with a party's default embedding.", ["party"], registry=registry
        )
        self._read = read
        registry.register(self)
        ProcessCollector(registry=registry)

    @contextmanager
    def count_request(self) -> Iterator[None]:
        """One request: how long it takes, and what it comes to."""
        began, outcome = monotonic(), "internal"
        try:
            yield
            outcome = "ok"
        except Exception as error:
            outcome = str(describe_error(error)[1]["error"]["type"])
            raise
        finally:
            self._requests.labels(outcome).inc()
            self._seconds.observe(monotonic() - began)

    def page(self, accept: str) -> tuple[bytes, str]:
        """In the format that the Accept header asks for, and its content type."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def collect(self) -> Iterable[Metric]:
        return self._read()


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
        distinct = np.unique(rows)
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
        places = torch.from_numpy(np.searchsorted(batch.rows, rows))
        if half.uses_secure_sum:
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
    return torch.stack([found[row] for row in rows.tolist()])


_MOST_WAITING_ROWS = 1 << 18
_MOST_UNDER_WAY = 8  # batches
_PLACE_SECONDS = 0.1  # that a batch counts as one of them
_MARGIN = 0.9  # of a deadline: what is left is for the answer's way back


@dataclass(eq=False)
class _Waiting:
    request: ScoreRequest
    answer: asyncio.Future[ScoredRows]
    batch: ScoringBatch | None = None


class RequestBatcher:
    """One for a server."""

    def __init__(self, scorer: BatchScorer, settings: ServeSection, metrics: ServerMetrics) -> None:
        self._scorer = scorer
        self._settings = settings
        self._metrics = metrics
        self._queue: deque[_Waiting] = deque()
        self._rows_waiting = 0
        self._under_way = 0
        self._batches: set[ScoringBatch] = set()  # under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._computing = ThreadPoolExecutor(1, thread_name_prefix="score")

    async def score(self, request: ScoreRequest) -> ScoredRows:
        """Raises what the request came to."""
        if self._rows_waiting + len(request.rows) > _MOST_WAITING_ROWS:
            raise Busy(f"{self._rows_waiting} rows are already waiting; try again later")
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._rows_waiting += len(request.rows)
        self._look()
        await asyncio.wait([waiting.answer], timeout=_MARGIN * request.deadline_seconds)
        return waiting.answer.result() if waiting.answer.done() else await self._score_late(waiting)

    async def _score_late(self, waiting: _Waiting) -> ScoredRows:
        """At a request's own deadline: by defaults where they stand for all that is missing, otherwise an error."""
        waiting.answer.cancel()  # nobody looks for it there any more
        batch = waiting.batch
        held_up = self._batches if batch is None else [batch]
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
        if not self._queue:
            return
        loop = asyncio.get_running_loop()
        if self._timer is None and self._under_way < _MOST_UNDER_WAY:
            # Once round the loop even where nothing is under way: what has arrived by now goes along.
            wait = self._settings.max_wait_ms / 1000 if self._under_way else 0.0
            self._timer = loop.call_later(wait, self._waited)

    def _waited(self) -> None:
        self._timer = None
        if self._queue and self._under_way < _MOST_UNDER_WAY:
            self._begin()
            self._look()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        members = [self._next()]
        rows = len(members[0].request.rows)
        while self._queue and rows + len(self._queue[0].request.rows) <= self._settings.max_batch:
            members.append(self._next())
            rows += len(members[-1].request.rows)
        members = [one for one in members if not one.answer.done()]
        if members:
            self._under_way += 1
            task = asyncio.get_running_loop().create_task(self._run(members))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next(self) -> _Waiting:
        one = self._queue.popleft()
        self._rows_waiting -= len(one.request.rows)
        return one

    async def _run(self, members: list[_Waiting]) -> None:
        """One batch, from its question to everybody's answer."""
        place = asyncio.get_running_loop().call_later(_PLACE_SECONDS, self._leave_place)
        rows = np.concatenate([one.request.rows for one in members])
        self._metrics.batch_rows.observe(len(rows))
        batch = None
        try:
            batch = self._scorer.begin(rows)
            self._batches.add(batch)
            for one in members:
                one.batch = batch
            await self._await_answers(batch, members)
            await self._answer(batch, [one for one in members if not one.answer.done()])
        except Exception as error:  # noqa: BLE001  whoever asked must hear of it
            for one in members:
                if not one.answer.done():
                    one.answer.set_exception(error)
        finally:
            if batch is not None:
                self._batches.discard(batch)
                self._scorer.cancel(batch)
            if place.when() > asyncio.get_running_loop().time():
                place.cancel()
                self._leave_place()

    async def _await_answers(self, batch: ScoringBatch, members: list[_Waiting]) -> None:
        """Until every party has answered or is lost; one that never answers is not waited for for ever."""
        every = asyncio.gather(*map(asyncio.wrap_future, batch.answers.futures.values()), return_exceptions=True)
        await asyncio.wait([every], timeout=max(one.request.deadline_seconds for one in members))

    async def _answer(self, batch: ScoringBatch, members: list[_Waiting]) -> None:
        scored, start = await self._compute(batch, members) if members else None, 0
        for one in members:
            end = start + len(one.request.rows)
            if scored is not None and not one.answer.done():
                one.answer.set_result(replace(scored, table=scored.table[start:end]))
            start = end

    async def _compute(self, batch: ScoringBatch, members: list[_Waiting]) -> ScoredRows:
        rows = np.concatenate([one.request.rows for one in members])
        own = _own_features(batch, members)
        return await asyncio.get_running_loop().run_in_executor(
            self._computing, self._scorer.compute_scores, batch, rows, own
        )

    def _leave_place(self) -> None:
        """After a while, or at its end: a party that hangs must not hold up those who can do without it."""
        self._under_way -= 1
        # Whoever came meanwhile need not wait any longer.
        if self._timer is not None and not self._under_way:
            self._timer.cancel()
            self._timer = None
        self._look()


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
