"""Connections of HTTP clients: silent or slow ones are closed, more than there can be are refused."""

from __future__ import annotations

import asyncio
import json
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from thinwire.serve.errors import Busy, described

__all__ = ["HEAD_SECONDS", "Connection", "most_connections"]

HEAD_SECONDS = 10.0  # until a request's head is whole; its body has a time of its own
_OTHER_FILES = 256  # that this process may have open beside them
_FEWEST = 64


def most_connections() -> int:
    """As many as this process may have files open, less those that it needs for other things."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if allowed == resource.RLIM_INFINITY else max(_FEWEST, min(allowed, 1 << 16) - _OTHER_FILES)


class Connection(H11Protocol):
    """One client's."""

    most = most_connections()

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(_refusal(f"{self.most} connections are open already; try again later"))
            transport.close()
        else:
            self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._watch_head()

    def _watch_head(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget_head()
        elif self._head is None:
            self._head = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.transport.close)

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def _refusal(why: str) -> bytes:
    body = json.dumps(described(Busy(why))).encode()
    head = (
        f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Retry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
