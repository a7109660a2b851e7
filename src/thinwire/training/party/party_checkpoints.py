"""What a party's run starts from, when it makes a checkpoint, and what is on disk before anybody relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

from torch import Tensor, nn

from thinwire.base.types import PartyName
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.job.init_from import InitFrom
from thinwire.storage import layout
from thinwire.storage.atomic_file import WriteFailed
from thinwire.storage.checkpoints import CheckpointFailed, Checkpoints, LoadedCheckpoint
from thinwire.storage.run_facts import RunFacts, write_facts
from thinwire.training.party.session import PartySession
from thinwire.training.program_factory import ProgramFactory

_SHARE = 20  # a checkpoint may cost a twentieth of the time


class PartyCheckpoints:
    """The private state knows the newest checkpoint before a peer forgets what the one before it needs."""

    def __init__(self, session: PartySession) -> None:
        owner = {"party": session.own.me, "run": f"{session.run:016x}"}
        self._checkpoints = Checkpoints(
            session.folder / layout.CHECKPOINTS,
            session.private.mac_key,
            owner,
            session.incarnation,
            session.directory.files,
        )
        self._private = session.private
        self._channel = session.channel
        self._events = session.events
        self._every_seconds = session.own.network.checkpoint_seconds
        self._generation = 0  # of the newest checkpoint that holds
        self._saved_at = monotonic()
        self._cost = 0.0  # seconds, of the last one
        self.loaded = self._load()
        if self.loaded is not None:
            session.start_clock(self.loaded.data["seconds"])

    def _load(self) -> LoadedCheckpoint | None:
        """The newest checkpoint that holds; the links stand where it stood before anybody connects."""
        loaded = self._checkpoints.load(self._private.generation, lambda _: None)
        if loaded is None:
            return None
        self._generation = loaded.generation
        self._is_recorded()  # the process before may have been killed before it was
        for warning in loaded.warnings:
            self._events("fell_back", why=warning)
        self._channel.load(loaded.data["channel"])
        return loaded

    def is_due(self) -> bool:
        due = max(self._every_seconds, _SHARE * self._cost)
        return self._generation == 0 or monotonic() - self._saved_at >= due

    def save(self, data: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """A disk that is full costs a checkpoint, not the run."""
        began = monotonic()
        if not self._is_recorded():
            return
        self._channel.sync()  # a checkpoint must not know of frames that a power cut could take
        state = self._channel.state()
        generation = self._generation + 1
        try:
            self._checkpoints.save({**data, "channel": state}, tensors, generation)
            self._generation = generation
            self._private.set_generation(generation)
        except (CheckpointFailed, WriteFailed) as error:
            self._failed(error)
            return
        self._channel.on_checkpoint(state)
        self._saved_at = monotonic()
        self._cost = self._saved_at - began
        self._events("checkpoint", generation=generation, seconds=round(self._cost, 4))

    def _is_recorded(self) -> bool:
        """Is the newest checkpoint known to the private state? Another one must wait until it is."""
        if self._generation > self._private.generation:
            try:
                self._private.set_generation(self._generation)
            except WriteFailed as error:
                self._failed(error)
                return False
        return True

    def _failed(self, error: CheckpointFailed | WriteFailed) -> None:
        self._events("checkpoint_failed", why=str(error))
        self._saved_at = monotonic()


class InitialWeights:
    """Where a run's first weights come from: fresh, from an earlier run, or from its own checkpoint."""

    def __init__(self, session: PartySession, loaded: LoadedCheckpoint | None, beginning: InitFrom | None) -> None:
        self.from_checkpoint = loaded is not None
        self._session = session
        self._beginning = beginning

    def apply(
        self,
        factory: ProgramFactory,
        party: FeatureParty | LabelParty,
        modules: Mapping[str, nn.Module],
        widths: dict[PartyName, int],
        fusion: str | None,
    ) -> ProgramFactory:
        """Weights from an earlier run, where this one begins from it; what this run is, on disk."""
        if self.from_checkpoint:
            return factory
        session, record, memories = self._session, {}, factory.memories
        if self._beginning is not None:
            inherited = self._beginning.take_over(modules, widths, fusion, {party.name: party.preparation})
            record, memories = inherited.to_record(), inherited.memories
            for sentence in inherited.describe():
                session.events("inherited", what=sentence)
        own = session.own
        facts = RunFacts(own.feature_parties, own.label_party, widths, fusion, own.me, record)
        session.write_persistently(lambda: write_facts(session.folder, facts))
        return replace(factory, memories=memories)
