"""What the label party offers on-line, whatever carries it: scores, the model in use, health and metrics."""

from __future__ import annotations

import asyncio
import hashlib
from threading import BoundedSemaphore
from time import monotonic
from typing import Any

from thinwire.errors import ThinwireError
from thinwire.job.schema import ServeSection
from thinwire.predict.asking import AskingParty, Ready
from thinwire.predict.errors import ModelMismatch
from thinwire.serve.batching import Batcher
from thinwire.serve.errors import Busy, described
from thinwire.serve.metrics import Metrics, Standing
from thinwire.serve.request import LONGEST_DEADLINE_MS, read_request
from thinwire.serve.scoring import Scorer

__all__ = ["Service", "version_of"]

_MOST_OVER_GRPC = 32  # each holds a thread while it waits


def version_of(ready: Ready) -> str:
    """One hash over all parties' models."""
    digest = hashlib.sha256(f"{ready.run} {ready.model.hash}\n".encode())
    for party, one in sorted(ready.hashes.items()):
        digest.update(f"{party} {one}\n".encode())
    return digest.hexdigest()


class Service:
    """Made in any thread; `score` runs in the server's event loop."""

    def __init__(self, party: AskingParty, settings: ServeSection) -> None:
        self.party = party
        self.settings = settings
        self.metrics = Metrics()
        self.scorer = Scorer(party)
        self._batcher = Batcher(self.scorer, settings, self.metrics)
        self._version: tuple[Ready | None, str] = (None, "")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over_grpc = BoundedSemaphore(_MOST_OVER_GRPC)
        party.on_score = self.score_over_grpc

    def close(self) -> None:
        self._batcher.close()

    async def score(self, value: Any, deadline_header: str | None = None) -> dict[str, Any]:
        """The answer to one request; raises what it came to."""
        began, outcome = monotonic(), "internal"
        self._loop = asyncio.get_running_loop()
        try:
            request = read_request(value, self._table(), self.settings, deadline_header)
            if request.model is not None and request.model != self.version():
                raise ModelMismatch(
                    self.party.own.me, f"the model in use is {self.version()}, not {request.model[:80]}"
                )
            scored = await self._batcher.score(request)
            outcome = "ok"
            for party in scored.missing:
                self.metrics.without(party)
            table = scored.table
            return {
                "model": self._of(scored.ready),
                "columns": list(scored.ready.half.outputs.columns(table.shape[1])),
                "scores": table.tolist(),
                "missing": scored.missing,
            }
        except Exception as error:
            outcome = str(described(error)["error"]["type"])
            raise
        finally:
            self.metrics.answered(outcome, monotonic() - began)

    def score_over_grpc(self, value: dict[str, Any]) -> dict[str, Any]:
        """For another thread: waits for the event loop's answer; an error is an answer too."""
        loop = self._loop
        if loop is None:
            return {"error": {"type": "busy", "message": "the server has not begun; try again"}}
        if not self._over_grpc.acquire(blocking=False):
            return described(Busy(f"{_MOST_OVER_GRPC} requests wait over gRPC already; try again later"))
        try:
            coming = asyncio.run_coroutine_threadsafe(self.score(value), loop)
            return coming.result(LONGEST_DEADLINE_MS / 1000)
        except (ThinwireError, TimeoutError) as error:
            return described(error)
        finally:
            self._over_grpc.release()

    def begin(self) -> None:
        """In the event loop, before the first request."""
        self._loop = asyncio.get_running_loop()

    def version(self) -> str:
        ready = self.party.ready()
        return "" if ready is None else self._of(ready)

    def _of(self, ready: Ready) -> str:
        known, version = self._version
        if known is not ready:
            version = version_of(ready)
            self._version = (ready, version)
        return version

    def _table(self) -> Any:
        ready = self.party.ready()
        return (next(iter(self.party.models.values())) if ready is None else ready.model).rows

    def model(self) -> dict[str, Any]:
        """What is served."""
        table, ready = self._table(), self.party.ready()
        away = set(self.party.away())
        return {
            "model": self.version() or None,
            "run": None if ready is None else ready.run,
            "rows": table.count,
            "ids": table.ids is not None,
            "parties": {name: name not in away for name in self.party.own.feature_parties},
            "defaults": [] if ready is None else sorted(ready.defaults),
            "deadline_ms": self.settings.deadline_ms,
            "max_rows": self.settings.max_rows,
        }

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Whether a request would be answered, and who is missing."""
        ready, away = self.party.ready(), self.party.away()
        able = ready is not None and all(name in ready.defaults for name in away)
        return able, {"ok": able, "missing": away, "model": self.version() or None}

    def metrics_text(self) -> str:
        away = set(self.party.away())
        return self.metrics.text(
            Standing(
                self.version(),
                {name: name not in away for name in self.party.own.feature_parties},
                self.scorer.cache.sizes(),
                (self.scorer.cache.hits, self.scorer.cache.misses),
                self.party.ledger,
            )
        )
