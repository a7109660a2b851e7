"""What the label party offers on-line, whatever carries it: scores, the model in use, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from threading import BoundedSemaphore
from typing import Any

import torch
from prometheus_client.core import Metric
from torch import Tensor

from thinwire.base.format import printable
from thinwire.job.schema import ServeSection
from thinwire.net.links.records import MAX_JSON
from thinwire.predict.embedding_client import EmbeddingClient
from thinwire.predict.errors import BadRequest, Busy, ModelMismatch, describe_error
from thinwire.predict.online.api_schema import LONGEST_DEADLINE_MS, ScoreRequest, ScoreSchema
from thinwire.predict.online.batching import BatchScorer, RequestBatcher
from thinwire.predict.online.server_metrics import ServerMetrics
from thinwire.training.party.metrics import count_frames, counter, gauge

_MOST_OVER_GRPC = 32  # each holds a thread while it waits
_BYTES_OF_A_SCORE = 24  # as JSON
_TIDY_SECONDS = 1.0


class ScoreService:
    """Made in any thread; `score` runs in the server's event loop."""

    def __init__(self, party: EmbeddingClient, settings: ServeSection, say: Callable[[str], None]) -> None:
        self.party = party
        self._say = say
        self.settings = settings
        self.schema = ScoreSchema(settings)
        self.metrics = ServerMetrics(self._read_metrics)
        self.scorer = BatchScorer(party)
        self._batcher = RequestBatcher(self.scorer, settings, self.metrics)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over_grpc = BoundedSemaphore(_MOST_OVER_GRPC)
        party.score_handler = self.score_over_grpc

    def close(self) -> None:
        self._batcher.close()

    async def score(self, value: Any, deadline_header: str | None = None) -> dict[str, Any]:
        """The answer to one request; raises what it came to."""
        table = self._table()
        request = self.schema.read(value, table, deadline_header)
        self._require_model(request, self.version())
        scored = await self._batcher.score(request)
        if request.by_name and scored.ready.model.rows is not table:
            return await self.score(value, deadline_header)  # another model came into use, and may prepare otherwise
        self._require_model(request, scored.ready.version)  # a new one may have come into use meanwhile
        _require_finite(request, scored.table)
        for party in scored.missing:
            self.metrics.defaults.labels(party).inc()
        return {
            "model": scored.ready.version,
            "columns": list(scored.columns),
            "scores": scored.table.tolist(),
            "missing": scored.missing,
        }

    def _require_model(self, request: ScoreRequest, version: str) -> None:
        if request.model is not None and request.model != version:
            used = version or "not there yet"
            raise ModelMismatch(self.party.own.me, f"the model in use is {used}, not {printable(request.model)[:80]}")

    def score_over_grpc(self, value: dict[str, Any]) -> dict[str, Any]:
        """For another thread: waits for the event loop's answer; an error is an answer too."""
        try:
            with self.metrics.count_request():
                return self._from_loop(value)
        except Exception as error:  # noqa: BLE001  the end of a request: it gets an answer whatever happens
            status, body = describe_error(error)
            if status == 500:
                self._say(f"a request over gRPC failed: {type(error).__name__}: {error}")
            return body

    def _from_loop(self, value: dict[str, Any]) -> dict[str, Any]:
        loop = self._loop
        if loop is None:
            raise Busy("the server has not started; try again")
        if not self._over_grpc.acquire(blocking=False):
            raise Busy(f"{_MOST_OVER_GRPC} gRPC requests are already waiting; try again later")
        try:
            found = asyncio.run_coroutine_threadsafe(self.score(value), loop).result(LONGEST_DEADLINE_MS / 1000)
        finally:
            self._over_grpc.release()
        if _BYTES_OF_A_SCORE * len(found["scores"]) * len(found["columns"]) > MAX_JSON:
            raise BadRequest("too_large", f"the answer is over {MAX_JSON} bytes; ask in several requests", 413)
        return found

    def begin(self) -> None:
        """In the event loop, before the first request."""
        self._loop = asyncio.get_running_loop()
        self._tidy(self._loop)

    def _tidy(self, loop: asyncio.AbstractEventLoop) -> None:
        """What a party allowed to be kept for a while goes then, whether or not somebody asks."""
        self.scorer.cache.drop_stale()
        loop.call_later(_TIDY_SECONDS, self._tidy, loop)

    def version(self) -> str:
        ready = self.party.ready
        return "" if ready is None else ready.version

    def _table(self) -> Any:
        ready = self.party.ready
        return (next(iter(self.party.models.values())) if ready is None else ready.model).rows

    def model(self) -> dict[str, Any]:
        """The model in use."""
        table, ready = self._table(), self.party.ready
        away = set(self.party.list_absent())
        return {
            "model": self.version() or None,
            "run": None if ready is None else ready.run,
            "rows": table.count,
            "ids": table.ids is not None,
            "columns": None if table.columns is None else list(table.columns.required),
            "parties": {name: name not in away for name in self.party.own.feature_parties},
            "defaults": [] if ready is None else sorted(ready.defaults),
            "deadline_ms": self.settings.deadline_ms,
            "max_rows": self.settings.max_rows,
        }

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether a request would be answered, and who is missing."""
        ready, away = self.party.ready, self.party.list_absent()
        able = ready is not None and all(name in ready.defaults for name in away)
        return able, {"ok": able, "missing": away, "model": self.version() or None}

    def _read_metrics(self) -> Iterator[Metric]:
        away, cache, version = set(self.party.list_absent()), self.scorer.cache, self.version()
        here = {(name,): name not in away for name in self.party.own.feature_parties}
        yield gauge("peer_connected", "Whether a peer is connected.", ("peer",), here)
        cached = {(party,): count for party, count in sorted(cache.sizes().items())}
        yield gauge("cached_rows", "Embeddings that are kept.", ("party",), cached)
        lookups = {("yes",): cache.hits, ("no",): cache.misses}
        yield counter("cache_lookups", "Rows looked for in the cache.", ("found",), lookups)
        yield from count_frames(self.party.ledger.state(), ("bytes",))
        yield gauge("model_info", "The model in use.", ("version",), {(version,): 1} if version else {})


def _require_finite(request: ScoreRequest, table: Tensor) -> None:
    finite = torch.isfinite(table)
    if bool(finite.all()):
        return
    place = int(torch.nonzero(~finite)[0, 0])
    if request.features is not None:
        raise BadRequest("not_finite", f"features[{place}] lead to a score that is not finite; they are too large")
    row = int(request.rows[place])
    raise BadRequest("not_finite", f"the score of row {row} is not finite: the model overflows on its features", 500)
