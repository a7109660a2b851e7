"""The page's server in this process, on a port of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import sleep

import uvicorn

from thinwire.report.live.app import dashboard_app
from thinwire.report.live.live_run import Board


@contextmanager
def served(root: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Its address, until the block ends; it listens at loopback, whatever `host` it believes to be at."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(16)
    app = dashboard_app(Board(root), host, closing=lambda: server.should_exit)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5, lifespan="off"))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(300)
        listening.close()
