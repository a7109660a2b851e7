"""Numbers for Prometheus: requests, times, batches, the cache, parties and bytes; never ids or rows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import monotonic

from thinwire.network.metrics import metric
from thinwire.serve.errors import described
from thinwire.transport.ledger import Ledger

__all__ = ["Metrics", "Standing"]

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Histogram:
    """Counts by upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def lines(self, name: str, help_text: str) -> Iterator[str]:
        yield f"# HELP thinwire_{name} {help_text}"
        yield f"# TYPE thinwire_{name} histogram"
        so_far = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            so_far += count
            yield f'thinwire_{name}_bucket{{le="{bound}"}} {so_far}'
        yield f"thinwire_{name}_sum {self._total}"
        yield f"thinwire_{name}_count {so_far}"


@dataclass(frozen=True)
class Standing:
    """What a page of metrics is read from at the moment it is asked for."""

    version: str  # of the model
    connected: Mapping[str, bool]  # by party
    cached: Mapping[str, int]  # rows by party
    lookups: tuple[int, int]  # found, and not
    ledger: Ledger


class Metrics:
    """Counted as requests end."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: Counter[str] = Counter()
        self._seconds = Histogram(_SECONDS)
        self._batches = Histogram(_ROWS)
        self._missing: Counter[str] = Counter()

    @contextmanager
    def counted(self) -> Iterator[None]:
        """One request: how long it takes, and what it comes to."""
        began, outcome = monotonic(), "internal"
        try:
            yield
            outcome = "ok"
        except Exception as error:
            outcome = str(described(error)["error"]["type"])
            raise
        finally:
            with self._lock:
                self._requests[outcome] += 1
                self._seconds.add(monotonic() - began)

    def batch(self, rows: int) -> None:
        with self._lock:
            self._batches.add(rows)

    def without(self, party: str) -> None:
        """An answer with a party's default embedding."""
        with self._lock:
            self._missing[party] += 1

    def text(self, now: Standing) -> str:
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(now))

    def _lines(self, now: Standing) -> Iterator[str]:
        outcomes = [(f'outcome="{name}"', count) for name, count in sorted(self._requests.items())]
        yield from metric("requests_total", "counter", "Requests, by what they came to.", outcomes)
        yield from self._seconds.lines("request_seconds", "From a request to its answer.")
        yield from self._batches.lines("batch_rows", "Rows that were asked for together.")
        missing = [(f'party="{party}"', count) for party, count in sorted(self._missing.items())]
        yield from metric("defaults_total", "counter", "Answers with a party's default embedding.", missing)
        here = [(f'peer="{party}"', int(there)) for party, there in now.connected.items()]
        yield from metric("peer_connected", "gauge", "Whether a peer is connected.", here)
        cached = [(f'party="{party}"', count) for party, count in sorted(now.cached.items())]
        yield from metric("cached_rows", "gauge", "Embeddings that are kept.", cached)
        looked = [('found="yes"', now.lookups[0]), ('found="no"', now.lookups[1])]
        yield from metric("cache_lookups_total", "counter", "Rows looked for in the cache.", looked)
        frames = [
            (f'sender="{row["sender"]}",receiver="{row["receiver"]}",kind="{row["kind"]}"', row["bytes"])
            for row in now.ledger.state()
        ]
        yield from metric("frame_bytes_total", "counter", "Bytes of frames, by direction and kind.", frames)
        used = [(f'version="{now.version}"', 1)] if now.version else []
        yield from metric("model_info", "gauge", "The model in use.", used)
