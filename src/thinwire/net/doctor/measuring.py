"""How far the label party is: round trips, clocks, and what each direction carries."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import perf_counter, time
from typing import Any

from thinwire.base.errors import Malformed
from thinwire.net.grpc.client import DialTarget, Unreached, grpc
from thinwire.net.grpc.service import RPCS
from thinwire.net.handshake import MOST_FILLER, ProbeHello, make_filler

_SIZES = (16_000, 64_000, 256_000, MOST_FILLER)
_ROUND_TRIPS = 10
_PROBE_SECONDS = 30.0
_LONG_ENOUGH = 1.0  # seconds that a probe took: a larger one would say no more


@dataclass(frozen=True)
class LinkRate:
    """How fast a direction carried the largest probe; a short transfer only bounds it from below."""

    mbit: float
    is_bound: bool


@dataclass(frozen=True)
class LinkMeasurement:
    """A link as probes see it."""

    round_trip_ms: float  # the median
    clock_seconds: float  # how far the other clock is ahead of ours
    up: LinkRate  # towards the label party
    down: LinkRate


def measure_link(target: DialTarget, brought: ProbeHello) -> LinkMeasurement:
    """About ten small probes, then growing ones; the last one says that we are done."""
    with target.open() as channel:
        call: Any = channel.unary_unary(RPCS["Probe"].path)

        def probe(request: Mapping[str, Any]) -> tuple[float, dict[str, Any]]:
            body = json.dumps(request).encode()
            began = perf_counter()
            answer = call(body, timeout=_PROBE_SECONDS, metadata=target.claim)
            took = perf_counter() - began
            return took, json.loads(answer)

        try:
            probe({})  # connects
            trips = list(_round_trips(probe))
            usual = median(took for took, _ in trips)
            up = _rate(usual, lambda size: probe({"filler": make_filler(size)})[0])
            down = _rate(usual, lambda size: probe({"want": size})[0])
            probe({"brought": brought.model_dump(), "done": True})
        except grpc.RpcError as error:
            raise Unreached(f"{target.address}: the measurement broke off: {error.code().name}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise Malformed(f"{target.address} answers probes with what cannot be read: {error}") from None
    return LinkMeasurement(1000 * usual, min(trips)[1], up, down)


def _round_trips(probe: Callable[[Mapping[str, Any]], tuple[float, dict[str, Any]]]) -> Iterator[tuple[float, float]]:
    """Seconds there and back, and how far the other clock is ahead; the fastest one tells it best."""
    for _ in range(_ROUND_TRIPS):
        began = time()
        took, answer = probe({"echo": secrets.token_hex(4)})
        yield took, float(answer["time"]) - (began + took / 2)


def _rate(round_trip: float, seconds_for: Callable[[int], float]) -> LinkRate:
    """By the largest of growing sizes, or by the first that takes long enough."""
    found = LinkRate(0.0, is_bound=True)
    for size in _SIZES:
        took = seconds_for(size)
        carried = max(took - round_trip, took / 2)
        # A connection begins slowly: within a few round trips it shows its beginning, not the link.
        found = LinkRate(8e-6 * size / carried, is_bound=carried < max(0.02, 8 * round_trip))
        if took > _LONG_ENOUGH:
            break
    return found
