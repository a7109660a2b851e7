"""The page's server: one page, its style, its script, and a stream of what has changed. Nothing else is served."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from importlib.resources import files

from anyio import sleep, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from thinwire.net.links.endpoint import is_own_host
from thinwire.report.live.live_run import Board
from thinwire.report.live.sections import page, sections
from thinwire.report.rendering import chart_script, page_style

_SECONDS = 0.5  # between two looks
_STILL_THERE = 30  # looks without news, after which a line says that we are
_MOST_STREAMS = 32
_MOST_ASKED = 50
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_WRONG_HOST = PlainTextResponse("wrong Host: call this page by its address, or by the name in --host\n", 421)


def dashboard_app(board: Board, host: str, closing: Callable[[], bool] = lambda: False) -> Starlette:
    """For a server at `host`; it answers to its own names alone, so that no other site can ask it.

    Streams end once `closing` says so: a server waits for them.
    """
    streams = _Streams(closing)

    async def index(request: Request) -> Response:
        return HTMLResponse(await to_thread.run_sync(page, board, _asked(request)))

    async def events(request: Request) -> Response:
        if streams.open >= _MOST_STREAMS:
            return PlainTextResponse(f"{_MOST_STREAMS} pages are already open; close one", 503)
        return StreamingResponse(streams.of(board, _asked(request)), media_type="text/event-stream")

    async def style(_: Request) -> Response:
        return Response(page_style() + _file("page.css"), media_type="text/css")

    async def script(_: Request) -> Response:
        return Response(chart_script() + _file("page.js"), media_type="text/javascript")

    return Starlette(
        routes=[Route("/", index), Route("/events", events), Route("/page.css", style), Route("/page.js", script)],
        middleware=[Middleware(_OwnPage, host)],
    )


def _asked(request: Request) -> list[str]:
    return request.query_params.getlist("run")[:_MOST_ASKED]


def _file(name: str) -> str:
    return files("thinwire.report.live").joinpath("templates", name).read_text(encoding="utf-8")


class _Streams:
    """Counts the streams that are open."""

    def __init__(self, closing: Callable[[], bool]) -> None:
        self.open = 0
        self._closing = closing

    async def of(self, board: Board, asked: Sequence[str]) -> AsyncIterator[str]:
        """The sections that are others than before, as server-sent events."""
        self.open += 1
        try:
            sent: dict[str, str] = {}
            quiet = 0
            yield "retry: 1000\n\n"
            while not self._closing():
                now = await to_thread.run_sync(sections, board, asked)
                new = {place: html for place, html in now.items() if sent.get(place) != html}
                quiet = 0 if new else quiet + 1
                if new:
                    yield f"event: sections\ndata: {json.dumps(new)}\n\n"
                elif quiet % _STILL_THERE == 0:
                    yield ": still there\n\n"
                sent = now
                await sleep(_SECONDS)
        finally:
            self.open -= 1


class _OwnPage:
    """Nothing from elsewhere runs in the page, no other site may frame it, and none may have its name lead here."""

    def __init__(self, app: ASGIApp, name: str) -> None:
        self._app, self._name = app, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        own = is_own_host(Headers(scope=scope).get("host", ""), (self._name,))
        await (self._app if own else _WRONG_HOST)(scope, receive, with_headers)
