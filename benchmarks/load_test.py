"""Many clients at once against `thinwire serve`: how many requests per second, and how long each takes.

    python benchmarks/load_test.py http://127.0.0.1:8080 [--clients 8] [--seconds 5] [--json]

Each client asks for random rows over a connection of its own. The exit code is 1 where a request was not answered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import ssl
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from thinwire.base.errors import BadInput

__all__ = ["Load", "LoadResult", "get_json", "load_test"]

_CONNECT_SECONDS = 5.0
_MOST_HEADER = 1 << 16
_NO_ANSWER = (  # what comes of a server that is none, or has gone
    OSError,
    TimeoutError,
    ValueError,
    KeyError,
    TypeError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
)


@dataclass(frozen=True)
class Load:
    """What the clients do."""

    url: str  # of the server, without a path
    clients: int = 8
    seconds: float = 5.0
    rows: int = 1  # a request
    deadline_ms: float = 1000.0
    seed: int = 0


@dataclass
class LoadResult:
    """What came of it; seconds of single requests are kept in full."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    models: set[str] = field(default_factory=set)

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile_ms(self, share: float) -> float:
        if not self.latencies:
            return float("nan")
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def summary(self) -> dict[str, Any]:
        count = len(self.latencies)
        return {
            "requests": count + sum(self.errors.values()),
            "requests_per_second": self.requests_per_second,
            "p50_ms": self.percentile_ms(0.5) if count else None,
            "p99_ms": self.percentile_ms(0.99) if count else None,
            "errors": dict(self.errors),
            "models": sorted(self.models),
        }


def load_test(load: Load) -> LoadResult:
    """Random rows, from so many clients at once, each with a connection of its own."""
    return asyncio.run(_run(load))


def get_json(url: str, path: str) -> dict[str, Any]:
    """One GET; refuses what is no JSON object."""
    return asyncio.run(_get(url, path))


@dataclass(frozen=True)
class _Server:
    host: str
    port: int
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str) -> _Server:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise BadInput(f"URL must be http://host:port, got {url!r}")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls(host, port or (443 if tls else 80), tls)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        coming = asyncio.open_connection(self.host, self.port, ssl=self.tls, limit=_MOST_HEADER)
        try:
            return await asyncio.wait_for(coming, _CONNECT_SECONDS)
        except (OSError, TimeoutError, UnicodeError) as error:  # the last: no name of a host
            raise BadInput(f"{self.host}:{self.port} cannot be reached: {error or 'no answer'}") from None


async def _get(url: str, path: str) -> dict[str, Any]:
    server = _Server.parse(url)
    reader, writer = await server.open()
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {server.host}\r\nConnection: close\r\n\r\n".encode())
        _, body = await asyncio.wait_for(_response(reader), _CONNECT_SECONDS)
        found = json.loads(body)
    except _NO_ANSWER:
        raise BadInput(f"{url} is no thinwire server: {path} gives no answer in HTTP and JSON") from None
    finally:
        writer.close()
    if not isinstance(found, dict):
        raise BadInput(f"{url} is no thinwire server: {path} gives {body[:60]!r}")
    return found


async def _run(load: Load) -> LoadResult:
    count = (await _get(load.url, "/v1/model")).get("rows")
    if not isinstance(count, int) or count < 1:
        raise BadInput(f"{load.url} is no thinwire server: /v1/model names no rows")
    result = LoadResult()
    began = monotonic()
    end = began + load.seconds
    async with asyncio.TaskGroup() as group:
        for number in range(load.clients):
            rng = random.Random(load.seed * 100_003 + number)  # noqa: S311  which rows: no secret
            group.create_task(_client(load, count, rng, end, result))
    result.seconds = monotonic() - began
    return result


async def _client(load: Load, count: int, rng: random.Random, end: float, result: LoadResult) -> None:
    server = _Server.parse(load.url)
    connection = None
    while monotonic() < end:
        body = json.dumps({"rows": [rng.randrange(count) for _ in range(load.rows)]}).encode()
        began = monotonic()
        try:
            connection = connection or await server.open()
            reader, writer = connection
            writer.write(_request(server, load, body))
            status, answer = await asyncio.wait_for(_response(reader), load.deadline_ms / 1000 + 5)
            model = str(json.loads(answer)["model"]) if status == 200 else ""
        except (*_NO_ANSWER, BadInput) as error:
            result.errors[type(error).__name__] += 1
            if connection is not None:
                connection[1].close()
            connection = None
            await asyncio.sleep(0.05)
            continue
        if status == 200:
            result.latencies.append(monotonic() - began)
            result.models.add(model)
        else:
            result.errors[_kind(status, answer)] += 1
    if connection is not None:
        connection[1].close()


def _request(server: _Server, load: Load, body: bytes) -> bytes:
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: {server.host}\r\nContent-Type: application/json\r\n"
        f"X-Deadline-Ms: {load.deadline_ms:g}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of an answer that says how long it is."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, _, status = first.partition(" ")
    lengths = [line.partition(":")[2] for line in lines if line.lower().startswith("content-length:")]
    if not version.startswith("HTTP/") or not lengths:
        raise ValueError("no HTTP, or an answer that does not say how long it is")
    return int(status[:3]), await reader.readexactly(int(lengths[0]))


def _kind(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["type"])[:40]
    except (ValueError, KeyError, TypeError):
        return f"status {status}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", metavar="URL", help="the server's address, such as http://127.0.0.1:8080")
    parser.add_argument("--clients", type=int, default=8, help="how many connections to hold open at once (8)")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to send requests (5)")
    parser.add_argument("--rows", type=int, default=1, help="how many rows each request asks for (1)")
    parser.add_argument("--deadline", type=float, default=1000.0, help="the deadline of a request, in ms (1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the sentence")
    asked = parser.parse_args(arguments)
    for name, least in (("clients", 1), ("seconds", 0.1), ("rows", 1), ("deadline", 1)):
        if not getattr(asked, name) >= least:
            parser.error(f"--{name}: {getattr(asked, name)} must be at least {least}")
    print(f"{asked.clients} clients for {asked.seconds:g} s", file=sys.stderr)
    try:
        result = load_test(Load(asked.url, asked.clients, asked.seconds, asked.rows, asked.deadline))
    except BadInput as error:
        parser.error(str(error))
    if asked.json:
        print(json.dumps({"clients": asked.clients, "seconds": result.seconds, **result.summary()}))
    else:
        print(
            f"{result.requests_per_second:.0f} requests/s, p50 {result.percentile_ms(0.5):.2f} ms, "
            f"p99 {result.percentile_ms(0.99):.2f} ms, {sum(result.errors.values())} errors"
        )
    if result.errors:
        counts = ", ".join(f"{count} {name}" for name, count in result.errors.most_common())
        print(f"not all requests were answered: {counts}", file=sys.stderr)
    return 1 if result.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
