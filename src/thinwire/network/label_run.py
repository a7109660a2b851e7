"""The label party's process: it listens, admits the others, trains, and keeps the run's events."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from thinwire.at_rest.atomic_file import WriteFailed
from thinwire.job.init_from import InitFrom
from thinwire.job.party_view import LabelData, PartyView
from thinwire.job.program_factory import ProgramFactory
from thinwire.job.quality import quality_of
from thinwire.job.result import Goal, Result, compute_scores, require_finite_loss
from thinwire.network.asking import require_this_run
from thinwire.network.introduction import compare, read_about
from thinwire.network.party_run import Audience, Held, PartyRun
from thinwire.network.probe import Brought, probe_answer
from thinwire.party import Control, Evaluated, LabelParty, LabelProgram
from thinwire.report.record import Quality
from thinwire.runs import FolderLock
from thinwire.transport.certificates import Revocations
from thinwire.transport.grpc_server import Listener
from thinwire.transport.peer_link import PeerLink
from thinwire.transport.records import parsed_count
from thinwire.transport.service import NotYet, Refused, Roster, Rpc, RunAborted
from thinwire.types import PartyName

__all__ = ["LabelRun"]


class LabelRun(PartyRun):
    """Implements `Desk` for the listener."""

    program: LabelProgram

    def __init__(
        self,
        own: PartyView,
        lock: FolderLock,
        folder: Path,
        held: Held,
        data: LabelData,
        audience: Audience,
        beginning: InitFrom | None = None,
    ) -> None:
        super().__init__(own, lock, folder, held, audience.say, beginning)
        if self.private.run_nonce is None:
            self.private.set_run_nonce(secrets.token_hex(16))
        self._data = data
        self._audience = audience
        self._history: list[dict[str, Any]] = []
        self._evaluated_before = 0.0  # seconds, by processes before this one
        self._told: set[PartyName] = set()  # who has heard of an abort
        self._party: LabelParty | None = None
        self._tested: Evaluated | None = None  # the last evaluation of this process
        # Of everybody's embedding, once all are here; one that finished must still let the others begin.
        self._widths = self._known_widths() if self.private.finished else None
        settings = own.settings
        target = None if settings.target is None else (settings.target.metric, settings.target.value)
        self._goal = Goal(target, settings.stop, settings.byte_budget, settings.link_seconds_budget)
        if self._loaded is None:
            self.persistently(self.directory.clear)
        self._listener = Listener(
            own.network.listen_address(),
            self.credentials,
            Roster(own.label_party, own.certificate_names, Revocations(own.revoked)),
            self,
            self.heard,
            len(own.feature_parties),
        )

    def _peer_names(self) -> tuple[PartyName, ...]:
        return self.own.feature_parties

    def _connect(self) -> None:
        self._listener.start()
        self.events("listening", address=self.own.network.listen_address(), port=self._listener.port)

    def _disconnect(self) -> None:
        self._listener.stop()

    def _ready_to_begin(self) -> PartyName | None:
        # Those that have finished may be gone for good.
        waits = (name for name, link in self.links.items() if not (link.connected or self.peers[name].finished))
        return next(waits, None)

    def _program(self, seating: ProgramFactory, control: Control) -> LabelProgram:
        widths = self._known_widths()
        party = self._party = self.own.label_party_of(self._data, widths)
        bottom = {} if party.bottom is None else {self.own.me: party.bottom}
        seating = self._inherited(seating, {**bottom, "top": party.top}, party.fusion)
        program = seating.label_program(
            party,
            seating.side(party),
            seating.seat(self.own.me, self.channel),
            widths,
            control,
            secret=self.private.noise_secret,
            at_rest=self._at_rest,
            on_round=self._audience.round,
        )
        self._widths = widths
        self.tell_all({"begin": widths})
        return program

    def _known_widths(self) -> dict[PartyName, int]:
        widths = {name: self.peers[name].width for name in self.own.feature_parties}
        return widths | {self.own.me: self._held.width} if self._held.width else widths

    # The desk: what other parties ask ---------------------------------------------------------------------------

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> PeerLink:
        """Refuses without a trace, or notes the peer's process on disk and gives its link."""
        theirs = read_about(peer, hello)
        if theirs.party != peer:
            raise Refused(f"the certificate is of {peer!r}, HELLO says {theirs.party!r}")
        if self.private.aborted is not None:
            self._told.add(peer)
            raise RunAborted(
                f"the run was aborted by {self.private.aborted!r}; begin a new one in another --out folder"
            )
        compare(self.about(), theirs)
        link = self.links[peer]
        self.peers.require_current(theirs, link)
        link.require_reachable(parsed_count(hello, "received"))
        parsed_count(hello, "kept")
        if (theirs.row_ids is None) != (self._held.row_ids is None):
            self.events("alignment_unchecked", peer)
        try:
            self.peers.admit(theirs, link)
        except WriteFailed as error:
            raise NotYet(str(error)) from error
        link.max_body = self._max_body(theirs.width)
        return link

    def welcome(self, peer: PartyName) -> dict[str, Any]:
        found = {**self.about().model_dump(), "noted": self.peers[peer].finished}
        return found if self._widths is None else {**found, "begin": self._widths}

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        if rpc.name == "Probe":
            return probe_answer(request, caller, Brought.read(self.about().model_dump()), time())
        if rpc.name == "Score":
            raise NotYet("this is a training; scores come from `thinwire serve`")
        require_this_run(request, self.run)
        if rpc.name == "Abort":
            self._told = {name for name, link in self.links.items() if link.connected}
            self.tell_all({"aborted": caller})
            self.channel.drain(1.0)
            self.abort(caller)
            return {"aborted": True}
        if rpc.name == "Logs":
            return self._logs(request)
        return self.status()

    def _logs(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self.own.network.share_log:
            raise Refused(f"{self.own.me!r} does not share its log; it may, with share_log = true in its [network]")
        lines, following = self.events.shared(parsed_count(request, "since"))
        return {"party": self.own.me, "lines": lines, "next": following}

    def status(self) -> dict[str, Any]:
        traffic = self.ledger.traffic(self.own.me)
        begun = "waiting for parties" if self._widths is None else "training"
        return {
            "label_party": self.own.me,
            "method": self.own.recipe.name,
            "state": "finished" if self.private.finished else begun,
            "round": self.events.round or 0,
            "rounds": self.batches.rounds,
            "waiting_for": self.channel.waiting_for,
            "parties": {
                name: {
                    "connected": link.connected,
                    "away_seconds": round(link.away_seconds(), 1),
                    "starts": self.peers[name].incarnation,
                    "finished": self.peers[name].finished,
                    "stopped": "paused" in link.news and not link.connected,
                }
                for name, link in self.links.items()
            },
            "bytes": {"up": traffic.up, "down": traffic.down, "retransmitted": traffic.retransmitted},
            "last_event": self._history[-1] if self._history else None,
        }

    def heard(self, event: str, peer: PartyName | None, **facts: Any) -> None:
        super().heard(event, peer, **facts)
        if event in ("connected", "disconnected"):
            away = sorted(name for name, link in self.links.items() if not link.connected)
            self.tell_all({"away": away})

    def _tell_those_away(self) -> None:
        began = monotonic()
        met = [name for name in self.own.feature_parties if self.peers[name].incarnation]
        while away := [name for name in met if name not in self._told]:
            if self.stopping.asked or monotonic() - began > self._patience_seconds():
                return
            if not self.events.count("untold", away[0]):
                self.events("untold", away[0])
            sleep(0.1)

    # Evaluations ------------------------------------------------------------------------------------------------

    def _at_rest(self, evaluated: Evaluated) -> bool:
        """The running loss of the batches, and scores on test rows; all other parties wait."""
        event = self._event(evaluated)
        self._history.append(event)
        self._tested = evaluated
        self.persistently(lambda: self.directory.append(event))
        self._audience.event(event)
        return self._goal.is_met(event)

    def _event(self, evaluated: Evaluated) -> dict[str, Any]:
        party, settings = self._party, self.own.settings
        traffic = self.ledger.traffic(self.own.me)
        train, test = {}, {}
        running = self.program.side.running_loss()
        if running is not None:
            train["loss"] = require_finite_loss(running)
        if evaluated.outputs is not None and party is not None:
            test = compute_scores(evaluated.outputs, party.test_labels, party.loss, settings.metrics)
        return {
            "round": evaluated.round,
            "epoch": self.batches.epoch(evaluated.round),
            "train": train,
            "test": test,
            "bytes": {"up": traffic.up, "down": traffic.down, "total": traffic.total},
            "seconds": self.seconds(),
            "link_seconds": None,
            "diagnostics": {
                **self.program.plan.diagnostics(),
                **self.program.end.diagnostics(),
                "evaluation_seconds": self._evaluated_before + self.channel.untimed_seconds(),
            },
        }

    def _to_save(self) -> dict[str, Any]:
        return {"events": len(self._history)}

    def _resumed(self, data: dict[str, Any]) -> None:
        self._history = self.directory.truncate(data["events"])
        if self._history:
            self._evaluated_before = self._history[-1]["diagnostics"].get("evaluation_seconds", 0.0)

    def _described(self) -> LabelParty:
        if self._party is None:
            raise RuntimeError("the label party is described before its program is built")
        return self._party

    def _spent_so_far(self) -> list[dict[str, Any]]:
        """Feature parties keep the ledger."""
        return []

    def _quality(self) -> Quality | None:
        if self._tested is None or self._tested.outputs is None:
            return None
        return quality_of(self._tested.outputs, self._described(), self._tested.round)

    # The end ----------------------------------------------------------------------------------------------------

    def _models(self) -> dict[str, Any]:
        found = {"top": self.program.side.top.module}
        return found if self.program.side.bottom is None else found | {self.own.me: self.program.side.bottom.module}

    def _results(self) -> dict[str, Any]:
        settings = self.own.settings
        result = Result(
            method=self.own.recipe.name,
            history=self._history,
            ledger=self.ledger,
            label_party=self.own.me,
            models={},
            seconds=self.seconds(),
            metric=next(iter(settings.metrics), "loss"),
            target=self._goal.target,
            run_dir=self.folder,
        )
        found = result.summary() if self._history else {}
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]
