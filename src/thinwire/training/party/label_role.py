"""The label party's role: it listens, admits the others, trains the top model, and keeps the run's events."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from functools import cached_property
from time import monotonic, sleep, time
from typing import Any

from torch import Tensor

from thinwire.base.types import PartyName
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.programs.parties import LabelParty
from thinwire.engine.programs.program import Control, EvaluationOutputs, LabelProgram, Observers
from thinwire.engine.protocols.evaluation import ColumnAnswers, EvaluationVerdict, HeldOut
from thinwire.job.checks import keeps_best
from thinwire.job.job_loader import LabelData
from thinwire.net.grpc.service import NotYet, Refused, Rpc, RunAborted
from thinwire.net.handshake import ProbeHello, answer_probe, check_training_hello, read_training_hello
from thinwire.net.links.peer_link import PeerLink
from thinwire.net.links.records import parse_count
from thinwire.report.record import Evaluation, Importance, Quality
from thinwire.storage import layout
from thinwire.storage.atomic_file import WriteFailed
from thinwire.training.baselines import BaselineTask, score_label_party
from thinwire.training.importance import Ablation, FusedModel, describe_unmeasured, measure_columns, rank_gains
from thinwire.training.party.party_checkpoints import InitialWeights
from thinwire.training.party.party_run import Audience, PreparedProgram
from thinwire.training.party.session import PartySession
from thinwire.training.party.status import require_this_run
from thinwire.training.program_factory import ProgramFactory
from thinwire.training.quality import assess_held_out
from thinwire.training.ranks.rank_share import RankGroup
from thinwire.training.result import Evaluator, Result, judge, require_finite_loss


class LabelRole:
    """Implements `Desk` for the listener."""

    _program: LabelProgram
    _party: LabelParty

    def __init__(
        self,
        session: PartySession,
        weights: InitialWeights,
        data: LabelData,
        audience: Audience,
        group: RankGroup | None = None,
    ) -> None:
        own = session.own
        if session.private.run_nonce is None:
            session.private.set_run_nonce(secrets.token_hex(16))
        self._session = session
        self._own = own
        self._weights = weights
        self._data = data
        self._audience = audience
        self._group = group  # of processes, where there are several
        self._batches = own.settings.divide_rows(session.sizes.rows)
        self._history: list[Evaluation] = []
        self._evaluated_before = 0.0  # seconds, by processes before this one
        self._told: set[PartyName] = set()  # who has heard of an abort
        self._handshake_bytes = 0  # of HELLO and WELCOME, in this process
        self._outputs: dict[HeldOut, EvaluationOutputs] = {}  # of the model that is delivered
        # Of everybody's embedding, once all are here; one that finished must still let the others begin.
        self._agreed_widths = self.widths() if session.private.is_finished else None
        if not weights.from_checkpoint:
            session.write_persistently(lambda: session.directory.write(layout.EVENTS, b""))
        self._listener = session.network.listener(self, session.report)

    def connect(self) -> None:
        self._listener.start()
        address = self._session.network.listen_address()
        self._session.events("listening", address=address, port=self._listener.port)

    def disconnect(self) -> None:
        self._listener.stop()

    def missing_party(self) -> PartyName | None:
        # Those that have finished may be gone for good.
        links, peers = self._session.links, self._session.peers
        waits = (name for name, link in links.items() if not (link.is_connected or peers[name].finished))
        return next(waits, None)

    def prepare(self, factory: ProgramFactory, control: Control) -> PreparedProgram:
        session, widths, me = self._session, self.widths(), self._own.me
        self._batches = factory.batches
        factory = replace(factory, group=self._group, owners=self._data.owners)
        party = self._party = self._own.build_label_party(self._data, widths)
        bottom = {} if party.bottom is None else {me: party.bottom}
        factory = self._weights.apply(factory, party, {**bottom, "top": party.top}, widths, party.fusion)
        program = self._program = factory.label_program(
            party,
            factory.side(party),
            factory.context(me, session.channel),
            widths,
            control,
            secret=session.private.noise_secret,
            observers=Observers(self._at_rest, self._at_test, self._audience.round, self._column_answers()),
        )
        self._agreed_widths = widths
        session.tell_all({"begin": widths})
        models = {"top": program.side.top.module}
        if program.side.bottom is not None:
            models[me] = program.side.bottom.module
        return PreparedProgram(program, party, models, list)  # feature parties keep the privacy ledger

    def widths(self) -> dict[PartyName, int]:
        own, width = self._own, self._session.sizes.width
        widths = {name: self._session.peers[name].width for name in own.feature_parties}
        return widths | {own.me: width} if width else widths

    # The desk: what other parties ask ---------------------------------------------------------------------------

    def admit(self, peer: PartyName, hello: dict[str, Any]) -> PeerLink:
        """Refuses without a trace, or notes the peer's process on disk and gives its link."""
        theirs = read_training_hello(peer, self._own.me, hello)
        if theirs.party != peer:
            raise Refused(f"the certificate is of {peer!r}, HELLO says {theirs.party!r}")
        if self._session.private.abort_reason is not None:
            self._told.add(peer)
            reason = self._session.private.abort_reason
            raise RunAborted(f"the run was aborted by {reason!r}; start a new one in a new --out folder")
        check_training_hello(self._session.describe_self(), theirs)
        self._handshake_bytes += len(json.dumps(hello))
        link = self._session.links[peer]
        self._session.peers.require_current(theirs, link)
        self._require_whole(peer, parse_count(hello, "logged"))
        link.require_reachable(parse_count(hello, "received"))
        parse_count(hello, "kept")
        if (theirs.row_ids is None) != (self._session.sizes.row_ids is None):
            self._session.events("alignment_unchecked", peer)
        try:
            self._session.peers.admit(theirs, link)
        except WriteFailed as error:
            raise NotYet(str(error)) from error
        link.max_body = self._session.max_body(theirs.width)
        return link

    def _require_whole(self, peer: PartyName, logged: int) -> None:
        """What costs privacy is on a party's disk before it travels: one that lacks it would send other messages."""
        had = self._session.links[peer].describe_state()["received"]
        if self._session.is_charged and logged < had:
            raise Refused(
                f"{peer!r} was started from an outdated copy of its folder: {had} of its messages have come here, "
                f"it knows of {logged}, and charges are missing from its privacy ledger. Restore the newest copy, "
                "or start a new run at every party in new folders"
            )

    def welcome(self, peer: PartyName) -> dict[str, Any]:
        found = {**self._session.describe_self().model_dump(), "noted": self._session.peers[peer].finished}
        found |= {} if self._agreed_widths is None else {"begin": self._agreed_widths}
        self._handshake_bytes += len(json.dumps(found))
        return found

    def answer(self, rpc: Rpc, caller: PartyName, request: dict[str, Any]) -> dict[str, Any]:
        if rpc.name == "Probe":
            return answer_probe(request, caller, ProbeHello.read(self._session.describe_self().model_dump()), time())
        if rpc.name == "Score":
            raise NotYet("this party is training; `thinwire serve` answers with scores")
        require_this_run(request, self._session.run)
        if rpc.name == "Abort":
            self._told = {name for name, link in self._session.links.items() if link.is_connected}
            self._session.tell_all({"aborted": caller})
            self._session.channel.drain(1.0)
            self._session.abort(caller)
            return {"aborted": True}
        if rpc.name == "Logs":
            return self._logs(request)
        return self.status(caller)

    def _logs(self, request: dict[str, Any]) -> dict[str, Any]:
        if not self._own.network.share_log:
            raise Refused(
                f"{self._own.me!r} does not share its log; it can allow this with share_log = true in its [network]"
            )
        lines, following = self._session.events.read_shared(parse_count(request, "since"))
        return {"party": self._own.me, "lines": lines, "next": following}

    def status(self, caller: PartyName) -> dict[str, Any]:
        traffic = self._session.ledger.traffic(self._own.me)
        begun = "waiting for parties" if self._agreed_widths is None else "training"
        return {
            "label_party": self._own.me,
            "method": self._own.recipe.name,
            "state": "finished" if self._session.private.is_finished else begun,
            "round": self._session.events.round or 0,
            "rounds": self._batches.rounds,
            "waiting_for": self._session.channel.waiting_for,
            "parties": {
                name: {
                    "connected": link.is_connected,
                    "away_seconds": round(link.away_seconds(), 1),
                    "starts": self._session.peers[name].incarnation,
                    "finished": self._session.peers[name].finished,
                    "stopped": "paused" in link.news and not link.is_connected,
                }
                for name, link in self._session.links.items()
            },
            "bytes": {"up": traffic.up, "down": traffic.down, "retransmitted": traffic.retransmitted},
            "last_event": self._describe_last(caller),
        }

    def _describe_last(self, caller: PartyName) -> dict[str, Any] | None:
        """The last evaluation; to others its round, and the loss where the training labels are theirs too."""
        if not self._history:
            return None
        last = self._history[-1].to_dict()
        if caller == self._own.me:
            return last
        train = last["train"] if self._own.recipe.labels is Labels.SHARED else {}
        return {"round": last["round"], "train": train, "validation": {}, "test": {}}

    def tell_absent(self) -> None:
        began = monotonic()
        met = [name for name in self._own.feature_parties if self._session.peers[name].incarnation]
        while away := [name for name in met if name not in self._told]:
            if self._session.stopping.is_asked or monotonic() - began > self._session.patience_seconds:
                return
            if not self._session.events.count("untold", away[0]):
                self._session.events("untold", away[0])
            sleep(0.1)

    # Evaluations ------------------------------------------------------------------------------------------------

    def _at_rest(self, evaluated: EvaluationOutputs) -> EvaluationVerdict:
        """The running loss of the batches, and scores on held-out rows; all other parties wait."""
        evaluation = self._evaluate(evaluated)
        event = evaluation.to_dict()
        self._history.append(evaluation)
        self._session.write_persistently(lambda: self._session.directory.append(event))
        self._audience.event(event)
        settings = self._own.settings
        kept = keeps_best(self._own.recipe, settings, self._session.sizes.validation_rows)
        verdict = judge(settings, self._history, kept)
        if verdict.best or not kept:
            self._outputs[evaluated.rows] = evaluated
        return verdict

    def _at_test(self, tested: EvaluationOutputs) -> None:
        """The test rows, once, with the weights that are delivered."""
        directory = self._session.directory
        self._outputs[HeldOut.TEST] = replace(tested, round=self._delivered_round())
        self._history[-1] = self._evaluator().add_test(self._history[-1], tested)
        self._session.write_persistently(lambda: directory.replace_last(self._history[-1].to_dict()))

    def _delivered_round(self) -> int:
        best = self._program.best.round
        return self._program.start if best is None else best

    def _evaluator(self) -> Evaluator:
        return Evaluator(self._party, self._own.settings.metrics, self._batches, self._session.ledger)

    def _evaluate(self, evaluated: EvaluationOutputs) -> Evaluation:
        session, running = self._session, self._program.side.running_loss()
        diagnostics = {
            **self._program.plan.diagnostics(),
            **self._program.end.diagnostics(),
            "evaluation_seconds": self._evaluated_before + session.channel.pause_seconds(),
        }
        train = {} if running is None else {"loss": require_finite_loss(running)}
        return self._evaluator().evaluate(evaluated, train, session.seconds(), None, diagnostics)

    def checkpoint(self) -> dict[str, Any]:
        return {"events": len(self._history)}

    def restore(self, data: dict[str, Any]) -> None:
        kept = self._session.directory.truncate(data["events"])
        self._history = [Evaluation.model_validate(event) for event in kept]
        if self._history:
            self._evaluated_before = self._history[-1].diagnostics.get("evaluation_seconds", 0.0)

    def quality(self) -> Quality | None:
        return assess_held_out(self._outputs, self._party)

    def assess(self) -> dict[str, Any]:
        """What this party would reach alone, with its own columns, and what each party's data is worth."""
        quality, settings, tested = self.quality(), self._own.settings, self._outputs.get(HeldOut.TEST)
        if quality is None or tested is None or tested.outputs is None:
            return {}
        found: dict[str, Any] = {}
        if settings.baselines:
            task = BaselineTask.of(quality.task, tested.outputs, self._party, settings.metrics)
            found["baselines"] = [one.model_dump() for one in score_label_party(task, self._party)]
        if settings.measures_importance:
            found["importance"] = self._measure_importance().model_dump(mode="json")
        return found

    # What the score hangs on, by the embeddings that came for the test --------------------------------------------

    def _measure_importance(self) -> Importance:
        """By party, and by column of its own: those of the others are theirs to know."""
        party, recipe = self._party, self._own.recipe
        columns = measure_columns(party, self._ablation, recipe, self._own.settings.device)
        summed = (
            "Under a secure sum only the sum of the other parties' embeddings is visible, so they are "
            "measured together."
        )
        notes = [summed if isinstance(recipe.aggregation, SecureSum) else "", describe_unmeasured([party])]
        found = self._ablation.measure({party.name: columns}, " ".join(filter(None, notes)))
        return found.model_copy(update={"gains": rank_gains([party])})

    @cached_property
    def _ablation(self) -> Ablation:
        names = self._own.feature_parties
        summed = isinstance(self._own.recipe.aggregation, SecureSum)
        senders = (" + ".join(names),) if summed else names
        received = self._outputs[HeldOut.TEST].embeddings
        model = FusedModel.of(self._party, self._own.settings.metrics)
        return Ablation(model, dict(zip([*senders, self._own.me], received, strict=False)))

    def _column_answers(self) -> ColumnAnswers | None:
        settings = self._own.settings
        metric = next(iter(settings.metrics), "loss")
        return ColumnAnswers(metric, self._lose) if settings.column_importance else None

    def _lose(self, party: PartyName, h: Tensor) -> float:
        return self._ablation.lose(party, h)

    # The end ----------------------------------------------------------------------------------------------------

    def results(self) -> dict[str, Any]:
        settings = self._own.settings
        result = Result(
            method=self._own.recipe.name,
            evaluations=self._history,
            ledger=self._session.ledger,
            label_party=self._own.me,
            models={},
            seconds=self._session.seconds(),
            metric=next(iter(settings.metrics), "loss"),
            target=settings.target,
            run_dir=self._session.folder,
            delivered_round=self._delivered_round(),
            handshake_bytes=self._handshake_bytes,
            quality=self.quality(),
        )
        found = result.summary() if self._history else {}
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]
