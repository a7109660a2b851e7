"""The label party's doctor at its desk."""

from __future__ import annotations

from threading import Lock
from time import time
from typing import Any

from thinwire.network.handshake import ProbeHello, answer_probe
from thinwire.transport.peer_link import PeerLink
from thinwire.transport.records import printable
from thinwire.transport.service import NotYet, Refused, Rpc
from thinwire.types import PartyName

__all__ = ["Reception"]


class Reception:
    """A desk that answers doctors, and asks everybody else to come later; implements `Desk` for the listener."""

    _NOT_THE_RUN = "this is the doctor, not the run; that begins with the label party's `thinwire party`"

    def __init__(self, ours: ProbeHello) -> None:
        self._ours = ours
        self._lock = Lock()
        self._seen: dict[PartyName, ProbeHello] = {}
        self._done: dict[PartyName, ProbeHello] = {}
        self._refusals: dict[str, None] = {}

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
            with self._lock:
                self._seen[caller] = theirs
                if request.get("done") is True:
                    self._done[caller] = theirs
        return found

    def heard(self, event: str, peer: PartyName | None, **facts: Any) -> None:
        """What the listener reports; refused callers are worth knowing."""
        if event in ("denied", "refused", "certificate_problem"):
            with self._lock:
                self._refusals[printable(facts.get("why", event))] = None

    def seen(self) -> dict[PartyName, ProbeHello]:
        """Who has probed, as it said last."""
        with self._lock:
            return dict(self._seen)

    def done(self) -> dict[PartyName, ProbeHello]:
        """Whose measurements are over."""
        with self._lock:
            return dict(self._done)

    def refusals(self) -> list[str]:
        with self._lock:
            return list(self._refusals)
