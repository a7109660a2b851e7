"""Whom to ask about a run, and the question itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinwire.errors import BadInput
from thinwire.job.endpoint import Endpoint
from thinwire.job.party_view import PartyView
from thinwire.job.program_factory import derive_run_number
from thinwire.transport.certificates import Credentials, load_credentials
from thinwire.transport.grpc_channel import DialTarget, ask
from thinwire.transport.records import printable
from thinwire.transport.service import RPCS, Denied, Refused

__all__ = ["question", "require_this_run", "run_of", "target_of"]


def question(own: PartyView, rpc: str, more: Mapping[str, Any] | None = None) -> tuple[DialTarget, dict[str, Any]]:
    """Asks the label party about the run of this job file; whom was asked, and the answer."""
    target = target_of(own)
    try:
        return target, ask(target, RPCS[rpc], {"run": run_of(own), **(more or {})})
    except (Denied, Refused) as error:
        raise BadInput(f"{target.address} refuses to answer {own.me!r}: {printable(error)}") from None


def target_of(own: PartyView) -> DialTarget:
    """The label party; at the label party itself, its own process on this machine."""

    def credentials() -> Credentials:
        return load_credentials(own.certificate_files, own.certificate_names[own.me])

    address = _own_address(own) if own.is_label_party else own.network.dial_address()
    return DialTarget(address, own.certificate_names[own.label_party], own.me, credentials)


def _own_address(own: PartyView) -> str:
    place = Endpoint.parse(own.network.listen_address())
    if place.port == 0:
        return own.network.dial_address()
    if place.is_callable:
        return str(place)
    return str(Endpoint("::1" if ":" in place.host else "127.0.0.1", place.port))


def run_of(own: PartyView) -> str:
    """Which run this job file is about."""
    return f"{derive_run_number(own.recipe, own.settings.seed, own.feature_parties):016x}"


def require_this_run(request: Mapping[str, Any], run: int) -> None:
    """A question that names a run must mean this one: the same parties may have several."""
    asked = request.get("run", f"{run:016x}")
    if asked != f"{run:016x}":
        raise Refused(
            f"the run here is {run:016x}, the question is about {printable(asked)[:40]}: another recipe, seed or "
            "parties. Give the job file that the label party runs"
        )
