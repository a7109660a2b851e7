"""`/metrics` in Prometheus' text format, on this machine only unless another address is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from thinwire.errors import BadInput
from thinwire.network.party_run import PartyRun

__all__ = ["MetricsServer", "metric", "metrics_text"]

_COUNTED = (
    ("bytes", "frame_bytes_total", "Bytes of frames, by direction and kind."),
    ("messages", "frames_total", "Frames, by direction and kind."),
    ("retransmitted", "retransmitted_bytes_total", "Bytes of frames sent once more after a failure."),
)


def metrics_text(run: PartyRun) -> str:
    """Numbers and names of parties; never data, ids or keys."""
    return "".join(f"{line}\n" for line in _lines(run))


def _lines(run: PartyRun) -> Iterator[str]:
    me = run.own.me
    yield from metric("round", "gauge", "Rounds begun.", [(f'party="{me}"', run.events.round or 0)])
    yield from metric("rounds", "gauge", "Rounds in all.", [(f'party="{me}"', run.batches.rounds)])
    for field, name, help_text in _COUNTED:
        yield from metric(name, "counter", help_text, [(_frames(row), row[field]) for row in run.ledger.state()])
    links = {f'peer="{peer}"': link for peer, link in run.links.items()}
    here = [(peer, int(link.connected)) for peer, link in links.items()]
    yield from metric("peer_connected", "gauge", "Whether a peer is connected.", here)
    away = [(peer, link.away_seconds()) for peer, link in links.items()]
    yield from metric("peer_away_seconds", "gauge", "How long a peer has been gone.", away)
    logged = [(peer, link.log.size_bytes) for peer, link in links.items()]
    yield from metric("log_bytes", "gauge", "Size of the log of sent frames.", logged)
    events = [(f'event="{event}",peer="{peer}"', count) for (event, peer), count in run.events.counted()]
    yield from metric("events_total", "counter", "What happened.", events)


def _frames(row: dict[str, Any]) -> str:
    return f'sender="{row["sender"]}",receiver="{row["receiver"]}",kind="{row["kind"]}"'


def metric(name: str, kind: str, help_text: str, samples: Sequence[tuple[str, float]]) -> Iterator[str]:
    """The lines of one metric; samples by their labels."""
    yield f"# HELP thinwire_{name} {help_text}"
    yield f"# TYPE thinwire_{name} {kind}"
    for labels, value in samples:
        yield f"thinwire_{name}{{{labels}}} {value}"


class MetricsServer:
    """Serves until closed."""

    def __init__(self, address: tuple[str, int], run: PartyRun) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/metrics"
                body = metrics_text(run).encode() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are no events."""

        try:
            self._server = ThreadingHTTPServer(address, Handler)
        except OSError as error:
            raise BadInput(f"--metrics: cannot listen at {address[0]}:{address[1]}: {error.strerror}") from None
        self.port = self._server.server_address[1]
        Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
