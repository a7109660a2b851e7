"""Prometheus' `/metrics` of a party, on this machine only unless another address is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from thinwire.base.errors import BadInput
from thinwire.net.grpc.server import Connections
from thinwire.net.links.endpoint import is_own_host
from thinwire.training.party.party_run import PartyRun

_FRAME_COUNTS = (
    ("bytes", "frame_bytes", "Bytes of frames, by direction and kind."),
    ("messages", "frames", "Frames, by direction and kind."),
    ("retransmitted", "retransmitted_bytes", "Bytes of frames sent once more after a failure."),
)
_ENDS = ("sender", "receiver", "kind")

Samples = Mapping[Any, float]  # by the tuple of the labels' values


def gauge(name: str, help_text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return _fill(GaugeMetricFamily(f"thinwire_{name}", help_text, labels=labels), samples)


def counter(name: str, help_text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """`_total` is added to the name."""
    return _fill(CounterMetricFamily(f"thinwire_{name}", help_text, labels=labels), samples)


def _fill(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Metric:
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def count_frames(ledger: Iterable[Mapping[str, Any]], fields: Iterable[str]) -> Iterator[Metric]:
    """These fields of a ledger's rows, each as one counter."""
    rows = {tuple(str(row[end]) for end in _ENDS): row for row in ledger}
    for field, name, help_text in _FRAME_COUNTS:
        if field in fields:
            yield counter(name, help_text, _ENDS, {ends: row[field] for ends, row in rows.items()})


class PartyMetrics(Collector):
    """Numbers and names of parties, read when they are asked for; never data, ids or keys."""

    def __init__(self, run: PartyRun) -> None:
        self._run = run

    def collect(self) -> Iterator[Metric]:
        run = self._run
        session = run.session
        me = (session.own.me,)
        yield gauge("round", "Rounds begun.", ("party",), {me: session.events.round or 0})
        yield gauge("rounds", "Rounds in all.", ("party",), {me: run.batches.rounds})
        yield from count_frames(session.ledger.state(), ("bytes", "messages", "retransmitted"))
        links = {(peer,): link for peer, link in session.links.items()}
        here = {peer: int(link.is_connected) for peer, link in links.items()}
        yield gauge("peer_connected", "Whether a peer is connected.", ("peer",), here)
        away = {peer: link.away_seconds() for peer, link in links.items()}
        yield gauge("peer_away_seconds", "How long a peer has been gone.", ("peer",), away)
        logged = {peer: link.log.size_bytes for peer, link in links.items()}
        yield gauge("log_bytes", "Size of the log of sent frames.", ("peer",), logged)
        yield counter("events", "What happened.", ("event", "peer"), dict(session.events.list_counts()))


class MetricsServer:
    """Serves until closed."""

    def __init__(self, address: tuple[str, int], run: PartyRun) -> None:
        registry = CollectorRegistry()
        registry.register(PartyMetrics(run))
        ProcessCollector(registry=registry)
        try:
            self._server, _ = start_http_server(address[1], address[0], registry)
        except OSError as error:
            raise BadInput(f"--metrics: cannot listen on {address[0]}:{address[1]}: {error.strerror}") from None
        self._server.set_app(_for_own_host(make_wsgi_app(registry), address[0]))
        self.port = self._server.server_port
        self._server.service_actions = Connections(self.port).trim  # type: ignore[method-assign]  # now and then

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _for_own_host(page: WSGIApplication, name: str) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if is_own_host(environ.get("HTTP_HOST", ""), (name,)):
            return page(environ, start)
        start("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"wrong Host: call this page by its address, or by the name in --metrics HOST:PORT\n"]

    return answer
