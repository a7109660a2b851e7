"""How a run stands, as its label party says it, and how to ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from thinwire.base.errors import BadInput, Malformed
from thinwire.base.format import printable
from thinwire.job.party_view import PartyView
from thinwire.net.grpc.client import DialTarget, ask
from thinwire.net.grpc.service import RPCS, Denied, Refused
from thinwire.net.links.records import Count, Text
from thinwire.training.program_factory import derive_run_number

Answer = TypeVar("Answer", bound=BaseModel)


def ask_label_party(
    own: PartyView, rpc: str, more: Mapping[str, Any] | None = None
) -> tuple[DialTarget, dict[str, Any]]:
    """Asks the label party about the run of this job file; whom was asked, and the answer."""
    target = own.network_party.target()
    try:
        return target, ask(target, RPCS[rpc], {"run": format_run_number(own), **(more or {})})
    except (Denied, Refused) as error:
        raise BadInput(f"{target.address} refuses to answer {own.me!r}: {printable(error)}") from None


def format_run_number(own: PartyView) -> str:
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


# How a run stands, as its label party tells it --------------------------------------------------------------------


class Told(BaseModel):
    """What another party says: known fields alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PartyStatus(Told):
    """A feature party as the label party sees it."""

    connected: bool = False
    away_seconds: float = 0.0
    starts: Count = 0
    finished: bool = False
    stopped: bool = False  # by its own people


class TrafficBytes(Told):
    up: Count = 0
    down: Count = 0
    retransmitted: Count = 0


class LastEvaluation(Told):
    round: Count
    train: dict[str, float] = {}
    validation: dict[str, float] = {}
    test: dict[str, float] = {}


class RunStatus(Told):
    """The answer to Status; a doctor says no more than that it is one."""

    label_party: Text
    state: Text
    method: Text = ""
    round: Count = 0
    rounds: Count = 0
    waiting_for: Text | None = None
    parties: dict[str, PartyStatus] = {}
    bytes: TrafficBytes = TrafficBytes()
    last_event: LastEvaluation | None = None


def read_status(answer: Mapping[str, Any]) -> RunStatus:
    return read_answer(RunStatus, answer)


def read_answer(kind: type[Answer], answer: Mapping[str, Any]) -> Answer:
    """What the label party said, as much of it as is believed."""
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = printable(".".join(map(str, first["loc"])))
        raise Malformed(f"the label party's answer cannot be read: {place}: {first['msg']}") from None
