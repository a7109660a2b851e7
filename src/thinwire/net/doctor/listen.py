"""The label party listens, and answers the others' doctors."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.net.doctor.check import Check, Checks, CheckVerdict, ok, problem, skip_checks, warning
from thinwire.net.grpc.client import ask
from thinwire.net.grpc.service import RPCS, NotYet, Refused, Rpc
from thinwire.net.handshake import ProbeHello, answer_probe
from thinwire.net.links.endpoint import Endpoint
from thinwire.net.links.network_party import NetworkParty
from thinwire.net.links.peer_link import PeerLink
from thinwire.net.pki.certificates import Credentials
from thinwire.storage import layout


def check_listening(
    own: NetworkParty, credentials: Credentials | None, brought: ProbeHello, wait_seconds: float, folder: Path
) -> Checks[dict[PartyName, int]]:
    """Gives the embeddings' widths of the parties that were met, and its own."""
    ours = {own.me: brought.width} if brought.width else {}
    try:
        address = own.listen_address()
    except BadInput as error:
        yield problem("listen", "the job file does not say where", str(error))
        return ours
    bound = _bound(own, credentials, address)
    yield bound
    if wait_seconds <= 0:
        return ours
    why = "needs an address to listen at, and the certificate"
    if bound.verdict is CheckVerdict.OK and credentials is not None:
        if not (folder / layout.EVENTS).exists():
            return (yield from _receive(own, brought, wait_seconds)) | ours
        why = f"a run has started in {folder}, and a doctor would turn its parties away"
    yield from skip_checks([f"party {name}" for name in own.feature_parties], why)
    return ours


def _bound(own: NetworkParty, credentials: Credentials | None, address: str) -> Check:
    place = Endpoint.parse(address)
    try:
        kind, *_, where = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(kind, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and credentials is not None:
            return _in_use(own, address)
        way_out = (
            "network.listen must be an address of this machine, 0.0.0.0 for all, and a port that is free to take"
        )
        return problem("listen", f"cannot listen on {address} ({error.strerror})", way_out)
    return ok("listen", f"{address} is free; the other parties call {_called(own)}")


def _called(own: NetworkParty) -> str:
    try:
        return own.dial_address()
    except BadInput:
        return "what their own job files give as network.address"


def _in_use(own: NetworkParty, address: str) -> Check:
    """By this party's own run, which is as it should be, or by anything else."""
    try:
        state = ask(own.target(), RPCS["Status"], {}, seconds=3.0).get("state")
    except ThinwireError:
        way_out = (
            "stop the process that listens there, or change the port in network.listen and in the others' "
            "network.address"
        )
        return problem("listen", f"{address} is in use by another process", way_out)
    what = "a doctor" if state == "doctor" else "a run"
    return warning("listen", f"{what} of {own.me!r} listens at {address} already", "`thinwire status` shows more")


def _receive(own: NetworkParty, brought: ProbeHello, seconds: float) -> Checks[dict[PartyName, int]]:
    """Answers the other parties' doctors, until all have measured and agree, or the time is over."""
    reception = ProbeDesk(brought)
    try:
        listener = own.listener(reception, reception.report)
    except BadInput as error:
        yield problem("doctors", "cannot be answered", str(error))
        return {}
    listener.start()
    try:
        yield ok("doctors", f"answering the others' `thinwire doctor` for up to {seconds:g} s; Ctrl-C ends it")
        deadline = monotonic() + seconds
        while monotonic() < deadline and not _all_well(own, reception, brought):
            sleep(0.05)
    except KeyboardInterrupt:
        pass  # enough was seen
    finally:
        listener.stop()
    seen = dict(reception.callers)
    for name in own.feature_parties:
        yield _guest(name, seen.get(name), brought)
    for why in list(reception.refusals):
        yield warning("refused", why)
    return {name: one.width for name in own.feature_parties if (one := seen.get(name)) is not None and one.width}


def _all_well(own: NetworkParty, reception: ProbeDesk, brought: ProbeHello) -> bool:
    done = dict(reception.measured)
    return set(done) == set(own.feature_parties) and not any(one.differences_to(brought) for one in done.values())


def _guest(name: PartyName, seen: ProbeHello | None, brought: ProbeHello) -> Check:
    check = f"party {name}"
    if seen is None:
        return warning(check, "not seen", f"have it run: thinwire doctor JOB.toml --name {name}")
    found = seen.differences_to(brought)
    if seen.version != brought.version:
        found.append(f"it runs thinwire {printable(seen.version)}, this is {brought.version}")
    if found:
        return problem(check, "connected, but its job differs from ours", *found)
    return ok(check, f"connected; its job matches ours, embedding of width {seen.width or 'unknown'}")


class ProbeDesk:
    """A desk that answers doctors, and asks everybody else to come later; implements `Desk` for the listener."""

    _NOT_THE_RUN = "this is the doctor, not the run; that begins with the label party's `thinwire party`"

    def __init__(self, ours: ProbeHello) -> None:
        self._ours = ours
        # Other threads add to these: copy them before going through them.
        self.callers: dict[PartyName, ProbeHello] = {}  # who has probed, as it said last
        self.measured: dict[PartyName, ProbeHello] = {}  # whose measurements are over
        self.refusals: dict[str, None] = {}

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> PeerLink:
        raise NotYet(self._NOT_THE_RUN)

    def welcome(self, peer: PartyName) -> dict[str, Any]:
        raise NotYet(self._NOT_THE_RUN)

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        if rpc.name == "Status":
            return {"label_party": self._ours.party, "state": "doctor"}
        if rpc.name != "Probe":
            raise Refused(self._NOT_THE_RUN)
        found = answer_probe(request, caller, self._ours, time())
        if "brought" in request:
            theirs = ProbeHello.read(request["brought"]).model_copy(update={"party": caller})
            self.callers[caller] = theirs
            if request.get("done") is True:
                self.measured[caller] = theirs
        return found

    def report(self, event: str, peer: PartyName | None, **facts: Any) -> None:
        """What the listener reports; refused callers are worth knowing."""
        if event in ("denied", "refused", "certificate_problem"):
            self.refusals[printable(facts.get("why", event))] = None
