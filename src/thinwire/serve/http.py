"""The service over HTTP and JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from thinwire.serve.errors import BadRequest, described, status_of
from thinwire.serve.openapi import openapi
from thinwire.serve.request import parsed_body
from thinwire.serve.service import Service

__all__ = ["DEADLINE_HEADER", "make_app"]

DEADLINE_HEADER = "x-deadline-ms"
BODY_SECONDS = 10.0  # from a request's head to the end of its body


def make_app(service: Service, say: Any = lambda _: None) -> Starlette:
    """POST /v1/predict, GET /v1/model, /healthz, /metrics, /openapi.json."""
    cap = int(service.settings.max_body_mb * 1e6)

    async def predict(request: Request) -> Response:
        try:
            with service.metrics.count_request():
                body = await _body(request, cap)
                return _json(await service.score(parsed_body(body), request.headers.get(DEADLINE_HEADER)))
        except Exception as error:  # noqa: BLE001  the end of a request: it gets an answer whatever happens
            status = status_of(error)
            if status == 500:
                say(f"a request failed: {type(error).__name__}: {error}")
            return _json(described(error), status, retry=status in (429, 503))

    async def model(_: Request) -> Response:
        return _json(service.model())

    async def healthz(_: Request) -> Response:
        able, told = service.health()
        return _json(told, 200 if able else 503)

    async def metrics(request: Request) -> Response:
        page, kind = service.metrics.page(request.headers.get("accept", ""))
        return Response(page, headers={"Content-Type": kind})

    async def document(_: Request) -> Response:
        return _json(openapi(service.settings))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.begin()
        yield

    async def lost(_: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        kind, message = ("not_found", "no such place") if status == 404 else ("wrong_method", "not in this way")
        return _json({"error": {"type": kind, "message": f"{message}; see /openapi.json"}}, status)

    made = Starlette(
        routes=[
            Route("/v1/predict", predict, methods=["POST"]),
            Route("/v1/model", model),
            Route("/healthz", healthz),
            Route("/metrics", metrics),
            Route("/openapi.json", document),
        ],
        lifespan=lifespan,
        exception_handlers={404: lost, 405: lost},
    )
    made.router.redirect_slashes = False
    return made


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
        raise BadRequest("slow", f"the body was not here within {BODY_SECONDS:g} s; send it at once", 408) from None
    except ClientDisconnect:
        raise BadRequest("disconnected", "the client left before its request was whole") from None
    return b"".join(parts)


def _too_large(cap: int) -> BadRequest:
    return BadRequest("too_large", f"the body is over {cap} bytes; ask in several requests", 413)


def _json(value: dict[str, Any], status: int = 200, retry: bool = False) -> Response:
    headers = {"Retry-After": "1"} if retry else {}
    if status == 408:
        headers["Connection"] = "close"  # what still comes would be taken for the next request
    body = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(body, status, headers, media_type="application/json")
