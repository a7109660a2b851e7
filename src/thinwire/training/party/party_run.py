"""One party's process: a session with its peers, checkpoints, a life cycle, and the role that it plays in the run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from thinwire.base.types import PartyName, Round
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.programs.program import Control, FeatureProgram, LabelProgram
from thinwire.report.record import Quality
from thinwire.storage import layout
from thinwire.storage.json_file import canonical_json
from thinwire.training.coefficients import collect_fit
from thinwire.training.party.life_cycle import LifeCycle, Meeting, PartyOutcome, digest_state
from thinwire.training.party.party_checkpoints import PartyCheckpoints
from thinwire.training.party.session import PartySession
from thinwire.training.program_factory import ProgramFactory, keep_threads
from thinwire.training.recording import RunRecorder
from thinwire.training.run_info import describe_party_run


@dataclass(frozen=True)
class Audience:
    """Who hears of a run's progress."""

    say: Callable[[str], None]  # a sentence
    event: Callable[[dict[str, Any]], None]  # an evaluation; at the label party
    round: Callable[[int], None]  # rounds done


@dataclass(frozen=True)
class PreparedProgram:
    """What a role trains with."""

    program: FeatureProgram | LabelProgram
    party: FeatureParty | LabelParty  # with its data and models
    models: Mapping[str, nn.Module]  # that it keeps, by name
    privacy_spent: Callable[[], list[dict[str, Any]]]  # what changes from round to round


class PartyRole(Meeting, Protocol):
    """What the label party and a feature party do differently."""

    def widths(self) -> dict[PartyName, int]:
        """Of every party's embedding, once all is agreed."""

    def prepare(self, factory: ProgramFactory, control: Control) -> PreparedProgram: ...

    def checkpoint(self) -> dict[str, Any]:
        """What only this role has in its checkpoints."""
        return {}

    def restore(self, data: dict[str, Any]) -> None:
        """Takes what `checkpoint` gave."""
        return

    def results(self) -> dict[str, Any]:
        """What to say at the end, beside what every party says."""

    def assess(self) -> dict[str, Any]:
        """More results, that take time: asked for once the models are saved, with the weights that are delivered."""
        return {}

    def quality(self) -> Quality | None:
        """Model quality, at the label party alone."""
        return None


class PartyRun:
    """One party's run in its folder. `execute` blocks until it is finished, stopped or failed."""

    program: FeatureProgram | LabelProgram
    _recorder: RunRecorder

    def __init__(
        self,
        session: PartySession,
        checkpoints: PartyCheckpoints,
        role: PartyRole,
        on_round: Callable[[int], None] | None = None,
    ) -> None:
        self.session = session
        self.role = role
        self.life = LifeCycle(session, role)
        self.batches = session.own.settings.divide_rows(session.sizes.rows)
        self._checkpoints = checkpoints
        self._on_round = on_round
        self._over = False  # the program has come to its end
        self._differed = False  # a replay before this process came out otherwise
        self._assessed: dict[str, Any] = {}  # results that take time

    def execute(self) -> PartyOutcome:
        loaded = self._checkpoints.loaded
        with keep_threads(None if loaded is None else loaded.data.get("threads")):
            return self.life.execute(self._run)

    def close(self) -> None:
        """Leaves the folder to another process; `execute` does it by itself."""
        self.session.close()

    def _run(self) -> PartyOutcome:
        session = self.session
        if session.private.is_finished:
            self.life.linger()
            return PartyOutcome(json.loads((session.folder / layout.RESULT).read_text()), interrupted=False)
        self.life.gather()
        self._keep_to_budget()
        self._prepared = self.role.prepare(self._program_factory(), PartyControl(self))
        program = self.program = self._prepared.program
        self._resume()
        self._begin_recording()
        session.events("begun", rounds=self.batches.rounds)
        self.life.begun = True
        session.start_clock()
        self._over = self._over or program.run()
        self._recorder.look(program.start)
        if not self._over:
            self.save()
            return PartyOutcome(self._summary(), interrupted=True)
        summary = self._finish()
        self.life.linger()
        return PartyOutcome(summary, interrupted=False)

    def _keep_to_budget(self) -> None:
        """All parties come to the same number of rounds: it follows from what they agreed on."""
        own, planned = self.session.own, self.batches.rounds
        rests = own.settings.evaluation_interval(self.batches)
        plan = own.privacy_plan(self.role.widths())
        self.batches = plan.limit_batches(self.batches, rests, self.session.sizes.rows_per_evaluation)
        if self.batches.rounds < planned:
            self.session.events("budget", rounds=self.batches.rounds, planned=planned)

    def _program_factory(self) -> ProgramFactory:
        own, settings = self.session.own, self.session.own.settings
        return ProgramFactory(
            feature_parties=own.feature_parties,
            label_party=own.label_party,
            recipe=own.recipe,
            optimizer=own.optimizer,
            settings=replace(settings, storage=self.session.directory.storage(settings.storage)),
            batches=self.batches,
            rows=self.session.sizes.rows,
        )

    def _begin_recording(self) -> None:
        session, prepared = self.session, self._prepared
        owners, rows = self.program.context.groups, session.sizes.rows
        about = describe_party_run(session.own, prepared.party, self.role.widths(), self.batches, rows, owners)
        self._recorder = RunRecorder(
            session.folder, about, {session.own.me: session.channel.stopwatch}, session.ledger, prepared.privacy_spent
        )
        self._recorder.begin(self.program.start)

    def begin_round(self, round: Round) -> bool:
        """Between two rounds: is this still our run, is a checkpoint due, may the next round begin?"""
        if self._on_round is not None:
            self._on_round(round)
        session = self.session
        session.events.round = round
        self._recorder.round(round)
        session.require_ours()
        session.require_links()
        if session.stopping.is_asked:
            return False
        if self._checkpoints.is_due():
            self.save()
        return True

    # Checkpoints ------------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        loaded, program = self._checkpoints.loaded, self.program
        if loaded is None:
            return
        data = loaded.data
        program.end.load(loaded.tensors[self.session.own.me])
        program.plan.load(data["plan"])
        program.start = data["round"]
        program.fresh = False
        self._over = data["over"]
        self._assessed = data.get("assessed", {})
        self._differed = not data["repeatable"]
        self.role.restore(data)
        self.session.events("resumed", at_round=data["round"])

    def save(self) -> None:
        """A checkpoint between two rounds."""
        data = {
            "round": self.program.start,
            "threads": torch.get_num_threads(),
            "plan": self.program.plan.state(),
            "seconds": self.session.seconds(),
            "over": self._over,
            "assessed": self._assessed,
            "repeatable": self._is_repeatable(),
            **self.role.checkpoint(),
        }
        self._checkpoints.save(data, {self.session.own.me: self.program.end.tensors()})

    # The end --------------------------------------------------------------------------------------------------

    def _finish(self) -> dict[str, Any]:
        """The results are on disk before anybody hears that this party has finished."""
        session, summary, best = self.session, self._summary(), self.program.best
        models = dict(self._prepared.models)
        if best.round is not None:
            with best.average_in():
                session.write_persistently(lambda: session.directory.keep_last(models))
        with best.swap_in():
            session.write_persistently(lambda: session.directory.finish(session.ledger.entries(), models))
            self._keep_coefficients()
            self._assessed = self._assessed or self.role.assess()
        self.save()  # a process that goes on from here has what came last in no message
        best.deliver()
        summary |= self._assessed
        session.write_persistently(lambda: session.directory.write(layout.RESULT, canonical_json(summary)))
        session.write_persistently(lambda: session.private.set_finished(True))
        self._recorder.keep(None, self.role.quality())
        return summary

    def _keep_coefficients(self) -> None:
        kept, session = collect_fit(self._prepared.party), self.session
        session.write_persistently(lambda: session.directory.keep(session.own.me, kept))

    def _is_repeatable(self) -> bool:
        session = self.session
        return session.own.recipe.repeatable and not self._differed and not session.events.count("replay_differs")

    def _summary(self) -> dict[str, Any]:
        session, me = self.session, self.session.own.me
        sent = session.ledger.total(senders={me})
        received = session.ledger.total(receivers={me})
        return {
            "party": me,
            "method": session.own.recipe.name,
            "rounds": self.program.start,
            "epochs": self.batches.epoch(self.program.start),
            "seconds": session.seconds(),
            "sent_bytes": sent.bytes,
            "received_bytes": received.bytes,
            "retransmitted_bytes": sent.retransmitted,
            "repeatable": self._is_repeatable(),
            "delivered_round": self.program.start if self.program.best.round is None else self.program.best.round,
            "digest": digest_state(self.program.end.tensors(), session.ledger.entries()),
            "run_dir": str(session.folder),
            **self.role.results(),
        }


class PartyControl(Control):
    """Asks the run between any two rounds."""

    def __init__(self, run: PartyRun) -> None:
        super().__init__()
        self._run = run

    def may_begin(self, round: Round) -> bool:
        return self._run.begin_round(round)
