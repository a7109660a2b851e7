"""Whom to ask about a run, and the question itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.format import printable
from thinwire.job.party_view import PartyView
from thinwire.net.grpc.client import DialTarget, ask
from thinwire.net.grpc.service import RPCS, Denied, Refused
from thinwire.training.program_factory import derive_run_number


def question(own: PartyView, rpc: str, more: Mapping[str, Any] | None = None) -> tuple[DialTarget, dict[str, Any]]:
    """Asks the label party about the run of this job file; whom was asked, and the answer."""
    target = own.network_party.target()
    try:
        return target, ask(target, RPCS[rpc], {"run": run_of(own), **(more or {})})
    except (Denied, Refused) as error:
        raise BadInput(f"{target.address} refuses to answer {own.me!r}: {printable(error)}") from None


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
