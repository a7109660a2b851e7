"""`thinwire dashboard`: the live page of runs that go on, or have ended."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.output import open_browser, say


def dashboard(runs: Path, port: int = 8765, host: str = "127.0.0.1", show: bool = False) -> None:
    """Serve a live page about runs: curves, bytes, time, privacy, parties and log."""
    try:
        import uvicorn

        from thinwire.report.live.app import dashboard_app
    except ModuleNotFoundError as error:
        raise BadInput(f"the live page needs {error.name}: pip install 'thinwire[dashboard]'") from None
    from thinwire.net.links.endpoint import is_loopback
    from thinwire.report.live.live_run import Board

    board = Board(runs)
    listening = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    typer.echo(f"{address} shows {runs}; press Ctrl-C to stop", err=True)
    if not is_loopback(host):
        say("anyone who can reach this address can see the runs; there is no password")
    if show:
        open_browser(address)
    app = dashboard_app(board, host, closing=lambda: server.should_exit)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5, lifespan="off")
    server = uvicorn.Server(config)
    with suppress(KeyboardInterrupt):  # which is how it ends
        server.run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Bound at once, so that what is wrong is said before anything starts."""
    found: socket.socket | None = None
    try:
        family, kind, proto, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, proto)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(place)
        found.listen(64)
    except OSError as error:
        if found is not None:
            found.close()
        raise BadInput(
            f"cannot listen on {host}:{port}: {error.strerror or error}; give another --port, or --port 0"
        ) from None
    return found
