"""What Prometheus is told of a server: counts and times, never ids or rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from thinwire.predict.errors import describe_error

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
