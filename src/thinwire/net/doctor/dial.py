"""A feature party calls the label party, or its doctor, and measures the link: round trips, clocks, bandwidth."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from time import monotonic, perf_counter, sleep, time
from typing import Any

from thinwire import __version__
from thinwire.base.errors import BadInput, Malformed, ThinwireError
from thinwire.base.format import printable
from thinwire.net.doctor.check import Check, CheckVerdict, ok, problem, skip_checks, warning
from thinwire.net.doctor.route import NetworkRoute, RouteProblem, check_tls
from thinwire.net.grpc.client import DialTarget, Unreached, ask, grpc
from thinwire.net.grpc.service import RPCS
from thinwire.net.handshake import MOST_FILLER, ProbeHello, make_filler
from thinwire.net.links.network_party import NetworkParty
from thinwire.net.pki.certificates import Credentials

_SIZES = (16_000, 64_000, 256_000, MOST_FILLER)
_ROUND_TRIPS = 10
_PROBE_SECONDS = 30.0
_LONG_ENOUGH = 1.0  # seconds that a probe took: a larger one would say no more
_CLOCK_SECONDS = 60.0
_OF_THE_CALL = ("address", "connection", "TLS", "version there", "same job", "clock", "round trip", "bandwidth")
_NEEDED = ("address", "connection", "TLS", "version there")  # by the checks of a call that follow


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
            raise Unreached(f"{target.address}: the measurement was interrupted: {error.code().name}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise Malformed(f"{target.address} answers probes with invalid data: {error}") from None
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


def check_call(
    own: NetworkParty, credentials: Credentials | None, brought: ProbeHello, wait: float
) -> Iterator[Check]:
    left, needed = list(_OF_THE_CALL), ""
    for check in _call(own, credentials, brought, wait):
        left.remove(check.name)
        yield check
        needed = check.name
        if check.verdict is CheckVerdict.PROBLEM and needed in _NEEDED:
            break
        if credentials is None:
            needed = "certificate"
    yield from skip_checks(left, f"needs the {needed}")


def _call(own: NetworkParty, credentials: Credentials | None, brought: ProbeHello, wait: float) -> Iterator[Check]:
    try:
        way = NetworkRoute.to(own.dial_address(), os.environ)
        found = way.resolve()
    except (BadInput, RouteProblem) as error:
        yield _met("address", error)
        return
    through = f", through the proxy {way.proxy} of {way.variable}" if way.proxy else ""
    known = "" if found == [way.first.host] else f": {way.first.host} is {', '.join(found[:3])}"
    yield ok("address", f"{way.address}{through}{known}", addresses=found)
    made = _connected(way, wait)
    if isinstance(made, RouteProblem):
        yield _met("connection", made)
        return
    with made:
        yield ok("connection", f"something listens on {way.address}")
        if credentials is None:
            return
        yield _hands(own, made, credentials)
    yield from _probed(own, brought)


def _met(name: str, trouble: ThinwireError) -> Check:
    return problem(name, str(trouble), *((trouble.way_out,) if isinstance(trouble, RouteProblem) else ()))


def _connected(way: NetworkRoute, wait: float) -> socket.socket | RouteProblem:
    deadline = monotonic() + wait
    while True:
        try:
            return way.connect()
        except RouteProblem as trouble:
            if monotonic() >= deadline:
                return trouble
        sleep(0.2)


def _hands(own: NetworkParty, made: socket.socket, credentials: Credentials) -> Check:
    expected = own.certificate_names[own.label_party]
    try:
        check_tls(made, credentials, own.certificate_files, expected)
    except (RouteProblem, BadInput) as error:
        return _met("TLS", error)
    return ok("TLS", f"TLS 1.3; the certificate there is for {expected!r}, and ours is accepted")


def _probed(own: NetworkParty, brought: ProbeHello) -> Iterator[Check]:
    target = own.target()
    try:
        answer = ask(target, RPCS["Probe"], {"brought": brought.model_dump()})
    except (ThinwireError, ValueError) as error:
        yield problem("version there", "the label party does not answer a probe", printable(error))
        return
    there = printable(answer.get("version"))
    if there != __version__:
        says = f"{own.label_party!r} runs thinwire {there}, this is {__version__}"
        yield problem("version there", says, "use the same version at all parties")
        return
    yield ok("version there", f"{own.label_party!r} runs thinwire {there} too", version=there)
    yield _agreed(own, brought, answer)
    try:
        link = measure_link(target, brought)
    except ThinwireError as error:
        yield problem("round trip", "could not be measured", printable(error))
        return
    yield from _link(link)


def _agreed(own: NetworkParty, brought: ProbeHello, answer: Mapping[str, Any]) -> Check:
    told = answer.get("differences")
    found = [printable(one) for one in told] if isinstance(told, list) else ["it does not say"]
    if found:
        return problem("same job", f"differs from what {own.label_party!r} has", *found, differences=found)
    compared = "recipe, settings and parties"
    if brought.rows is not None:
        compared += ", row counts"
    if brought.row_ids is not None and answer.get("names_ids") is True:
        compared += ", row ids in order"
    return ok("same job", f"the same as at {own.label_party!r}: {compared}", differences=[])


def _link(link: LinkMeasurement) -> Iterator[Check]:
    ahead = link.clock_seconds
    says = f"{abs(ahead):.0f} s {'behind' if ahead > 0 else 'ahead of'} the label party's"
    if abs(ahead) < 1:
        says = "within a second of the label party's"
    if abs(ahead) > _CLOCK_SECONDS:
        way_out = "synchronise both clocks (NTP): certificates and logs depend on them"
        yield warning("clock", says, way_out, clock_seconds=ahead)
    else:
        yield ok("clock", says, clock_seconds=ahead)
    yield ok("round trip", f"{link.round_trip_ms:.3g} ms, the median of ten", round_trip_ms=link.round_trip_ms)
    facts = {"up_mbit": link.up.mbit, "down_mbit": link.down.mbit}
    facts |= {"up_is_bound": link.up.is_bound, "down_is_bound": link.down.is_bound}
    yield ok("bandwidth", f"{_format_rate(link.up)} up, {_format_rate(link.down)} down", **facts)


def _format_rate(rate: LinkRate) -> str:
    shown = f"{rate.mbit:.3g} Mbit/s" if rate.mbit < 1000 else f"{rate.mbit / 1000:.3g} Gbit/s"
    return f"at least {shown}" if rate.is_bound else shown
