"""The service over HTTP and JSON."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from math import inf
from time import monotonic
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from thinwire.base.format import printable
from thinwire.net.links.endpoint import Endpoint, is_own_host
from thinwire.predict.errors import BadRequest, describe_error
from thinwire.predict.online.api_schema import parse_body
from thinwire.predict.online.service import ScoreService

DEADLINE_HEADER = "x-deadline-ms"
HEAD_SECONDS = 10.0  # until a request's head is whole; its body has a time of its own
_MOST_HOSTS = 256  # Host headers that are remembered
BODY_SECONDS = 10.0  # from a request's head to the end of its body


def make_app(service: ScoreService, say: Any = lambda _: None) -> Starlette:
    """POST /v1/predict, GET /v1/model, /healthz, /metrics, /openapi.json."""
    cap = int(service.settings.max_body_mb * 1e6)

    async def predict(request: Request) -> Response:
        try:
            with service.metrics.count_request():
                _require_json(request)
                value = parse_body(await _body(request, cap))
                return _json(await service.score(value, request.headers.get(DEADLINE_HEADER)))
        except Exception as error:  # noqa: BLE001  the end of a request: it gets an answer whatever happens
            status, body = describe_error(error)
            if status == 500:
                say(f"a request failed: {type(error).__name__}: {error}")
            return _json(body, status, retry=status in (429, 503))

    async def model(_: Request) -> Response:
        return _json(service.model())

    async def healthz(_: Request) -> Response:
        able, told = service.health()
        return _json(told, 200 if able else 503)

    async def metrics(request: Request) -> Response:
        page, kind = service.metrics.page(request.headers.get("accept", ""))
        return Response(page, headers={"Content-Type": kind})

    async def document(_: Request) -> Response:
        return _json(service.schema.openapi())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.begin()
        yield

    async def lost(_: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        kind, message = ("not_found", "not found") if status == 404 else ("wrong_method", "method not allowed")
        return _json({"error": {"type": kind, "message": f"{message}; see /openapi.json"}}, status)

    made = Starlette(
        routes=[
            Route("/v1/predict", predict, methods=["POST"]),
            Route("/v1/model", model),
            Route("/healthz", healthz),
            Route("/metrics", metrics),
            Route("/openapi.json", document),
        ],
        middleware=[Middleware(OwnHosts, [Endpoint.parse(service.settings.http).host, *service.settings.hosts])],
        lifespan=lifespan,
        exception_handlers={404: lost, 405: lost},
    )
    made.router.redirect_slashes = False
    return made


def find_most_connections() -> int:
    """As many as this process may have files open, less those that it needs for other things."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 16 if allowed == resource.RLIM_INFINITY else max(64, min(allowed, 1 << 16) - 256)


class OwnHosts:
    """Refuses requests that call this server by another name than its own."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = names
        self._accepted: set[str] = set()  # headers that were looked at before: clients send the same one each time

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Request(scope).headers.get("host", "") if scope["type"] == "http" else "localhost"
        if host in self._accepted or is_own_host(host, self._names):
            if len(self._accepted) < _MOST_HOSTS:
                self._accepted.add(host)
            await self._app(scope, receive, send)
        else:
            told = (
                f"{printable(host)[:80]!r} is not a name of this server: call its address, or list it in serve.hosts"
            )
            await _json({"error": {"type": "wrong_host", "message": told}}, 421)(scope, receive, send)


class IdleConnections:
    """Closes connections that hold no request: uvicorn waits for a request's head for ever.

    An ASGI application around another one: it sees requests begin and end, by the client's address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._idle_since: dict[Any, float] = {}  # by client; infinite while it has a request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        self._idle_since[client] = inf
        try:
            await self._app(scope, receive, send)
        finally:
            self._idle_since[client] = monotonic()

    def close_idle(self, connections: Collection[Any], most: int) -> None:
        """Those without a request for too long; where more than `most` are open, those that are idle longest."""
        now, excess = monotonic(), len(connections) - most
        transports = {one.transport.get_extra_info("peername")[:2]: one.transport for one in connections}
        self._idle_since = {client: self._idle_since.get(client, now) for client in transports}
        for place, (client, since) in enumerate(sorted(self._idle_since.items(), key=lambda one: one[1])):
            if now - since > HEAD_SECONDS or (place < excess and since <= now):
                transports[client].close()


def _require_json(request: Request) -> None:
    """Any page may have a browser send plain text here; JSON needs a permission that nobody gives."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        told = f"Content-Type is {printable(kind)[:80]!r}; send application/json"
        raise BadRequest("wrong_content_type", told, 415)


async def _body(request: Request, cap: int) -> bytes:
    """Refused as soon as it is too large or too slow, not after it was read."""
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told) > cap:
        raise _too_large(cap)
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > cap:
                    raise _too_large(cap)
                parts.append(part)
    except TimeoutError:
        raise BadRequest("slow", f"the body did not arrive within {BODY_SECONDS:g} s; send it at once", 408) from None
    except ClientDisconnect:
        raise BadRequest("disconnected", "the client disconnected before its request was complete") from None
    return b"".join(parts)


def _too_large(cap: int) -> BadRequest:
    return BadRequest("too_large", f"the body is over {cap} bytes; ask in several requests", 413)


def _json(value: dict[str, Any], status: int = 200, retry: bool = False) -> Response:
    headers = {"Retry-After": "1"} if retry else {}
    if status == 408:
        headers["Connection"] = "close"  # what still comes would be taken for the next request
    body = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(body, status, headers, media_type="application/json")
