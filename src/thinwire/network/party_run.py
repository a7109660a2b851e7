"""What every party's process does around its program: folder, links, checkpoints, signals, and the end."""

from __future__ import annotations

import errno
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from torch import nn

from thinwire import __version__
from thinwire.at_rest import layout
from thinwire.at_rest.atomic_file import WriteFailed
from thinwire.at_rest.json_file import canonical_json
from thinwire.errors import BadInput, Diverged, SurrogatesDiffer, ThinwireError, WireError
from thinwire.job.checks import build_storage
from thinwire.job.init_from import InitFrom
from thinwire.job.party_view import PartyView
from thinwire.job.program_factory import ProgramFactory, derive_run_number
from thinwire.network.events import EventLog
from thinwire.network.introduction import About, read_news
from thinwire.network.outcome import Outcome, state_digest
from thinwire.network.peers import Peers
from thinwire.network.recording import PartyRecording, about_part
from thinwire.network.saving import Saving
from thinwire.network.stopping import Aborted, FailedInRun, Interrupted, Stopping, ToldToStop
from thinwire.party import Batches, Control, FeatureParty, LabelParty
from thinwire.party.feature_program import FeatureProgram
from thinwire.party.label_program import LabelProgram
from thinwire.privacy import Labels, SecureSum
from thinwire.privacy.accounting import BudgetExceeded
from thinwire.report.record import Quality
from thinwire.runs import (
    Checkpoints,
    FolderLock,
    PrivateState,
    Replaced,
    RunDirectory,
    RunFacts,
    write_facts,
)
from thinwire.runs.contents import require_able_to_go_on
from thinwire.transport.certificates import Credentials, load_credentials
from thinwire.transport.grpc_channel import HandshakeFailed
from thinwire.transport.journal import Journal
from thinwire.transport.ledger import Ledger
from thinwire.transport.network_channel import NetworkChannel, PartyMissing, Patience
from thinwire.transport.outgoing_log import OutgoingLog
from thinwire.transport.peer_link import LinkEnds, PeerLink, WrongMessage
from thinwire.transport.records import printable
from thinwire.transport.service import PROTOCOL, Denied, Refused, RunAborted
from thinwire.types import Kind, PartyName, Round
from thinwire.wire.frame import MAX_BODY

__all__ = ["Audience", "Held", "PartyRun", "batches_of"]

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_DISK_SECONDS = 1.0
_LONGEST_REASON = 1000  # characters of a peer's
_MOST_BYTES = 9  # that the codec spends on a value
_MOST_SIGNED = 1 << 16  # bytes of a signed key, with its certificates
_LAST_WORD_SECONDS = 10.0  # that a finished party waits to hear that its end was noted
_STOPPED_WORD_SECONDS = 1.0  # and one whose people have stopped it: they wait too
# Starting again would only fail again: the others are told to stop too.
_TOLD = (BudgetExceeded, SurrogatesDiffer, WireError, WrongMessage)
_INCURABLE = (BadInput, BudgetExceeded, Diverged, SurrogatesDiffer, WireError, WrongMessage)


@dataclass(frozen=True)
class Audience:
    """Who hears of a run's progress."""

    say: Callable[[str], None]  # a sentence
    event: Callable[[dict[str, Any]], None]  # an evaluation; at the label party
    round: Callable[[int], None]  # rounds done


@dataclass(frozen=True)
class Held:
    """What a party brings: sizes and digests of its own tables, never the tables themselves."""

    rows: int
    test_rows: int
    row_ids: str | None
    test_row_ids: str | None
    width: int  # of its embedding; 0 where it has none


class PartyRun(ABC):
    """One party's run in its folder. `execute` blocks until it is finished, stopped or failed."""

    def __init__(
        self,
        own: PartyView,
        lock: FolderLock,
        folder: Path,
        held: Held,
        say: Callable[[str], None],
        beginning: InitFrom | None = None,
    ) -> None:
        self.own = own
        self._beginning = beginning
        self.folder = folder
        self.stopping = Stopping()
        self.directory = RunDirectory(folder)
        require_able_to_go_on(folder)
        self._lock = lock
        self.private = PrivateState.open(folder, self.directory.files)
        if self.private.aborted is not None:
            raise BadInput(
                f"the run in {folder} was aborted by {self.private.aborted!r}; begin another in a new --out"
            )
        self.events = EventLog(folder / layout.LOG, own.me, say)
        self._incarnation = self.private.begin_incarnation()
        self._instance = secrets.token_hex(8)
        self._held = held
        parties = (*own.feature_parties, own.label_party)
        self.run = derive_run_number(own.recipe, own.settings.seed, own.feature_parties)
        self.peers = Peers(folder, self._peer_names())
        self.ledger = Ledger()
        self.links = {
            peer: PeerLink(
                LinkEnds(self.run, own.me, peer, parties),
                self._log_in(folder / layout.SENT / peer),
                self.ledger,
                self.heard,
            )
            for peer in self._peer_names()
        }
        masked = isinstance(own.recipe.aggregation, SecureSum)
        self.channel = NetworkChannel(
            own.me,
            self.links,
            self.ledger,
            Journal(self._log_in(folder / layout.ANSWERS)),
            Patience(self._patience_seconds(), self._waiting, self._interrupted),
            durable={Kind.EMBEDDING, Kind.EVALUATION, Kind.WARM_START} if masked else (),
        )
        owner = {"party": own.me, "run": f"{self.run:016x}"}
        checkpoints = Checkpoints(
            folder / layout.CHECKPOINTS, self.private.mac_key, owner, self._incarnation, self.directory.files
        )
        self._saving = Saving(checkpoints, self.private, self.channel, self.events, own.network.checkpoint_seconds)
        self.batches = batches_of(own, held.rows)
        self.began = monotonic()
        self._begun = False
        self._over = False  # the program has come to its end
        self._differed = False  # a replay before this process came out otherwise
        self._loaded = self._saving.load()
        self._seconds_before = 0.0 if self._loaded is None else self._loaded.data["seconds"]

    def _log_in(self, folder: Path) -> OutgoingLog:
        return OutgoingLog(folder, self._incarnation, self._disk_is_full, self.directory.files.logs(folder))

    # What the two kinds of party do differently --------------------------------------------------------------

    @abstractmethod
    def _peer_names(self) -> tuple[PartyName, ...]: ...

    @abstractmethod
    def _connect(self) -> None:
        """Begins to listen, or to dial."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    @abstractmethod
    def _ready_to_begin(self) -> PartyName | None:
        """Whom to wait for before the first round; None once all is agreed."""

    @abstractmethod
    def _known_widths(self) -> dict[PartyName, int]:
        """Of every party's embedding, once all is agreed."""

    @abstractmethod
    def _program(self, seating: ProgramFactory, control: Control) -> FeatureProgram | LabelProgram: ...

    @abstractmethod
    def _results(self) -> dict[str, Any]:
        """What to say at the end, beside what every party says."""

    @abstractmethod
    def _described(self) -> FeatureParty | LabelParty:
        """This party with its data and models, once the program is built."""

    @abstractmethod
    def _spent_so_far(self) -> list[dict[str, Any]]:
        """Of the privacy ledger, what changes from round to round."""

    def _quality(self) -> Quality | None:
        """How good the answers are, where this party can tell."""
        return None

    @abstractmethod
    def _models(self) -> dict[str, Any]: ...

    @abstractmethod
    def _tell_those_away(self) -> None:
        """After an abort: those who were not there must hear of it too."""

    # From start to end ------------------------------------------------------------------------------------------

    def execute(self) -> Outcome:
        try:
            self._connect()
            outcome = self._execute()
            if outcome.interrupted:
                self._pause()
            return outcome
        except (Interrupted, KeyboardInterrupt):
            self._pause()
            raise
        except Aborted:
            self._tell_those_away()
            raise
        except (Refused, Denied, HandshakeFailed) as error:
            if isinstance(error, RunAborted):
                self.private.set_aborted(self.own.label_party)
            if self._begun:
                raise
            raise BadInput(str(error)) from error  # nothing was started
        except _INCURABLE as error:
            # What went wrong with one's own rows, and where, is no matter of the others.
            why = str(error) if isinstance(error, _TOLD) else f"{type(error).__name__}; its own log says more"
            self.tell_all({"stopped": f"{self.own.me!r} stopped: {why}"})
            if self._begun and isinstance(error, BadInput):
                raise FailedInRun(str(error)) from error
            raise
        except (PartyMissing, ToldToStop) as error:
            self.tell_all({"stopped": str(error)})
            raise
        finally:
            self.channel.drain(2.0)
            self._disconnect()
            self.close()

    def close(self) -> None:
        """Leaves the folder to another process; `execute` does it by itself."""
        self.channel.close()
        self.events.close()
        self._lock.release()

    def _execute(self) -> Outcome:
        if self.private.finished:
            self._linger()
            return Outcome(json.loads((self.folder / layout.RESULT).read_text()), interrupted=False)
        self._gather()
        self._keep_to_budget()
        program = self.program = self._program(self._seating(), PartyControl(self))
        self._resume(program)
        about = about_part(self.own, self._described(), self._known_widths(), self.batches, self._held.rows)
        self._recording = PartyRecording(self.folder, about, self.channel, self._spent_so_far)
        self._recording.begin(program.start)
        self.events("begun", rounds=self.batches.rounds)
        self._begun = True
        self.began = monotonic()
        self._over = self._over or program.run()
        self._recording.ended(program.start)
        if not self._over:
            self.save()
            return Outcome(self._summary(), interrupted=True)
        summary = self._finish()
        self._linger()
        return Outcome(summary, interrupted=False)

    def _pause(self) -> None:
        """Stopped by whoever runs it: those who look at the folder, and the others, need not guess."""
        if not self.private.finished:
            at_round = self.events.round or 0
            self.tell_all({"paused": at_round})
            self.events("stopped", at_round=at_round)
            with suppress(KeyboardInterrupt):  # once more: it is the wait that ends
                self._have_last_word(lambda link: link.connected, _STOPPED_WORD_SECONDS)

    def _gather(self) -> None:
        """Waits until everybody is here and agrees, with a countdown that names who is missing."""
        began, told, seconds = monotonic(), monotonic(), self._patience_seconds()
        while (missing := self._ready_to_begin()) is not None:
            self._interrupted()
            left = seconds - (monotonic() - began)
            if left <= 0:
                raise PartyMissing(missing, "the run has not begun", seconds)
            if monotonic() - told >= 10:
                told = monotonic()
                self.events("waiting", missing, what="it is not here", left_seconds=left)
            sleep(0.02)

    def _keep_to_budget(self) -> None:
        """All parties come to the same number of rounds: it follows from what they agreed on."""
        planned = self.batches.rounds
        rests = self.own.settings.eval_every or self.batches.rounds_per_epoch
        plan = self.own.privacy_plan(self._known_widths())
        self.batches = plan.limited(self.batches, rests, self._held.test_rows)
        if self.batches.rounds < planned:
            self.events("budget", rounds=self.batches.rounds, planned=planned)

    def _seating(self) -> ProgramFactory:
        own, settings = self.own, self.own.settings
        return ProgramFactory(
            feature_parties=own.feature_parties,
            label_party=own.label_party,
            recipe=own.recipe,
            optimizer=own.optimizer,
            batches=self.batches,
            rows=self._held.rows,
            seed=settings.seed,
            eval_every=settings.eval_every,
            effort=settings.effort,
            device=settings.device,
            training=own.training,
            storage=self.directory.storage(build_storage(settings, own.folder)),
        )

    def _inherited(
        self, seating: ProgramFactory, modules: Mapping[str, nn.Module], fusion: str | None
    ) -> ProgramFactory:
        """Weights from an earlier run, where this one begins from it; what this run is, on disk."""
        if self._loaded is not None:
            return seating
        widths, record, memories = self._known_widths(), {}, seating.memories
        if self._beginning is not None:
            taken = self._beginning.take_over(modules, widths, fusion)
            record, memories = taken.recorded(), taken.memories
            for sentence in taken.said():
                self.events("inherited", what=sentence)
        facts = RunFacts(self.own.feature_parties, self.own.label_party, widths, fusion, self.own.me, record)
        self.persistently(lambda: write_facts(self.folder, facts))
        return replace(seating, memories=memories)

    def _finish(self) -> dict[str, Any]:
        """The results are on disk before anybody hears that this party has finished."""
        self.save()
        summary = self._summary()
        self.persistently(lambda: self.directory.finish(self.ledger.entries(), self._models()))
        self.persistently(lambda: self.directory.write(layout.RESULT, canonical_json(summary)))
        self.persistently(lambda: self.private.set_finished(True))
        self._recording.keep(self._quality())
        return summary

    def _linger(self) -> None:
        """A peer that fails now needs our last messages again: stay until all have finished, and know of our end."""
        self.tell_all({"finished": True})
        began = told = monotonic()
        while unfinished := self.peers.unfinished():
            self._interrupted()
            if monotonic() - began > self._patience_seconds():
                self.events("unreported", unfinished[0])
                return
            if monotonic() - told >= 10:
                told = monotonic()
                self.events("lingering", unfinished[0])
            sleep(0.02)
        self._have_last_word(lambda _: not self.stopping.asked, _LAST_WORD_SECONDS)

    def _have_last_word(self, matters: Callable[[PeerLink], bool], seconds: float) -> None:
        """Until the peers say that they know of our end: what a closed connection still held may be lost."""
        began = monotonic()
        while any(matters(link) and link.news.get("noted") is not True for link in self.links.values()):
            if monotonic() - began > seconds:
                return
            sleep(0.02)

    # Checkpoints ------------------------------------------------------------------------------------------------

    def _resume(self, program: FeatureProgram | LabelProgram) -> None:
        if self._loaded is None:
            return
        data = self._loaded.data
        program.end.load(self._loaded.tensors[self.own.me])
        program.plan.load(data["plan"])
        program.start = data["round"]
        program.fresh = False
        self._over = data["over"]
        self._differed = not data["repeatable"]
        self._resumed(data)
        self.events("resumed", at_round=data["round"])

    @abstractmethod
    def _resumed(self, data: dict[str, Any]) -> None:
        """Takes what `_to_save` gave."""

    def save(self) -> None:
        """A checkpoint between two rounds."""
        data = {
            "round": self.program.start,
            "plan": self.program.plan.state(),
            "seconds": self.seconds(),
            "over": self._over,
            "repeatable": self._is_repeatable(),
            **self._to_save(),
        }
        self._saving.save(data, {self.own.me: self.program.end.tensors()})

    @abstractmethod
    def _to_save(self) -> dict[str, Any]:
        """What only one kind of party has in its checkpoints."""

    # News, failures and waits -----------------------------------------------------------------------------------

    def heard(self, event: str, peer: PartyName | None, **facts: Any) -> None:
        """Everything that links and listeners report."""
        if event == "news" and peer is not None:
            news = read_news(facts["told"], peer == self.own.label_party)
            self.links[peer].news |= news
            self._news(peer, news)
            facts = {"topics": sorted(news)}
        if event == "connected" and peer is not None:
            self.links[peer].news.pop("paused", None)
        if event == "disconnected" and peer is not None and self.peers[peer].finished:
            event = "left"
        self.events(event, peer, **facts)

    def _news(self, peer: PartyName, told: dict[str, Any]) -> None:
        if told.get("finished") is True:
            self.persistently(lambda: self.peers.finished(peer))
            self.links[peer].tell({"noted": True})
        if "paused" in told:
            self.events("paused", peer, at_round=told["paused"])
            self.links[peer].tell({"noted": True})
        if "stopped" in told:
            self.fail(ToldToStop(printable(told["stopped"][:_LONGEST_REASON])))
        if "aborted" in told:
            self.abort(printable(told["aborted"]))

    def abort(self, by: str) -> None:
        """For good: the folder remembers."""
        self.private.set_aborted(by)
        self.fail(Aborted(f"the run was aborted by {by!r}; begin another in a new --out folder"))

    def fail(self, error: ThinwireError) -> None:
        for link in self.links.values():
            link.fail(error)

    def tell_all(self, news: dict[str, Any]) -> None:
        for link in self.links.values():
            link.tell(news)

    def begin_round(self, round: Round) -> bool:
        """Between two rounds: is this still our run, is a checkpoint due, may the next round begin?"""
        self.events.round = round
        self._recording.round(round)
        self._require_lock()
        self._say_if_stopping()
        for link in self.links.values():
            link.require_no_failure()
        if self.stopping.asked:
            return False
        if self._saving.is_due():
            self.save()
        return True

    def _require_lock(self) -> None:
        if not self._lock.still_mine():
            raise Replaced(f"another process has taken over {self.own.me!r} in {self.folder}; this one ends")

    def _say_if_stopping(self) -> None:
        if self.stopping.asked and not self.events.count("stopping"):
            self.events("stopping")

    def _interrupted(self) -> None:
        self._require_lock()
        self._say_if_stopping()
        self.stopping.require_patience()
        for link in self.links.values():
            link.require_no_failure()

    def _waiting(self, peer: PartyName, kind: Kind, round: Round, waited: float, left: float) -> None:
        link = self.links[peer]
        what = f"{kind.name} of round {round}, for {waited:.0f} s"
        if not link.connected:
            what += f", gone for {link.away_seconds():.0f} s"
        self.events("waiting", peer, what=what, left_seconds=left)

    def _disk_is_full(self, path: Path, size: int) -> None:
        """Called again and again by whoever must write, until there is room."""
        self.events("disk_full", path=str(path), bytes=size)
        self._interrupted()
        sleep(_FULL_DISK_SECONDS)

    def persistently(self, write: Callable[[], None]) -> None:
        """Writes; waits for room where the disk is full."""
        while True:
            try:
                return write()
            except WriteFailed as error:
                if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _FULL:
                    raise
                self._disk_is_full(error.path, error.bytes_needed)

    def _patience_seconds(self) -> float:
        return self.own.network.wait_seconds

    def _max_body(self, width: int) -> int:
        """The longest body that a peer whose rows are `width` values long has reason to send."""
        cap = self.own.network.max_message_mb
        if cap is not None:
            return min(MAX_BODY, int(cap * 1e6))
        if self.own.recipe.labels is Labels.SHARED:
            return MAX_BODY  # everyone's embeddings and the top model
        rows = max(self._held.rows, self._held.test_rows)
        signed_keys = _MOST_SIGNED * len(self.own.feature_parties)
        return min(MAX_BODY, (1 << 16) + signed_keys + _MOST_BYTES * rows * width)

    # Saying who we are ----------------------------------------------------------------------------------------

    def about(self) -> About:
        held = self._held
        return About(
            protocol=PROTOCOL,
            version=__version__,
            party=self.own.me,
            run=f"{self.run:016x}",
            agreement=self.own.agreement(),
            rows=held.rows,
            test_rows=held.test_rows,
            row_ids=held.row_ids,
            test_row_ids=held.test_row_ids,
            width=held.width,
            incarnation=self._incarnation,
            instance=self._instance,
            nonce=self.private.run_nonce,
            finished=self.private.finished,
        )

    def credentials(self) -> Credentials:
        """Read anew each time: they may have been renewed."""
        return load_credentials(self.own.certificate_files, self.own.certificate_names[self.own.me])

    # The end --------------------------------------------------------------------------------------------------

    def seconds(self) -> float:
        return self._seconds_before + monotonic() - self.began

    def _is_repeatable(self) -> bool:
        return self.own.recipe.repeatable and not self._differed and not self.events.count("replay_differs")

    def _summary(self) -> dict[str, Any]:
        sent = self.ledger.total(senders={self.own.me})
        received = self.ledger.total(receivers={self.own.me})
        return {
            "party": self.own.me,
            "method": self.own.recipe.name,
            "rounds": self.program.start,
            "epochs": self.batches.epoch(self.program.start),
            "seconds": self.seconds(),
            "sent_bytes": sent.bytes,
            "received_bytes": received.bytes,
            "retransmitted_bytes": sent.retransmitted,
            "repeatable": self._is_repeatable(),
            "digest": state_digest(self.program.end.tensors(), self.ledger.entries()),
            "run_dir": str(self.folder),
            **self._results(),
        }


def batches_of(own: PartyView, rows: int) -> Batches:
    """The same at every party, and at every process of one."""
    settings = own.settings
    return Batches(rows, settings.batch_size, settings.epochs, settings.seed, settings.batches == "announced")


class PartyControl(Control):
    """Asks the run between any two rounds."""

    def __init__(self, run: PartyRun) -> None:
        super().__init__()
        self._run = run

    def may_begin(self, round: Round) -> bool:
        return self._run.begin_round(round)
