"""One process of a party among the others: folder, durable links, what peers say, how it waits and why it stops."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from thinwire import __version__
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import printable
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.channel.base import Stopped
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.privacy.dp_bottom import DPBottom
from thinwire.engine.wire.frame import MAX_BODY
from thinwire.job.party_view import PartyView
from thinwire.net.grpc.service import BUDGETS, PROTOCOL, Role
from thinwire.net.handshake import TrainingHello, read_training_news
from thinwire.net.links.network_channel import NetworkChannel, Patience
from thinwire.net.links.outgoing_log import OutgoingLog
from thinwire.net.links.peer_end import LinkEnds
from thinwire.net.links.peer_link import PeerLink
from thinwire.storage import layout
from thinwire.storage.atomic_file import WriteFailed
from thinwire.storage.events import EventLog
from thinwire.storage.folder_lock import FolderLock
from thinwire.storage.private_state import PrivateState, Replaced
from thinwire.storage.retention import require_able_to_go_on
from thinwire.storage.run_directory import RunDirectory
from thinwire.training.party.peers import PeerProcesses
from thinwire.training.program_factory import derive_run_number

_NO_ROOM_SECONDS = 1.0
_LONGEST_REASON = 1000  # characters of a peer's
_MOST_BYTES = 9  # that the codec spends on a value
_MOST_SIGNED = 1 << 16  # bytes of a signed key, with its certificates
_LABEL_PARTY_FIRST = 30.0  # seconds: it stops first, and names whom all have waited for


@dataclass(frozen=True)
class PartySizes:
    """What a party brings: sizes and digests of its own tables, never the tables themselves."""

    rows: int
    validation_rows: int
    test_rows: int
    row_ids: str | None
    validation_row_ids: str | None
    test_row_ids: str | None
    width: int  # of its embedding; 0 where it has none

    @property
    def all_rows(self) -> int:
        return self.rows + self.validation_rows + self.test_rows

    @property
    def rows_per_evaluation(self) -> int:
        """Of every evaluation but the last one."""
        return self.validation_rows or self.test_rows


class PartySession:
    """Links to every peer and what is on disk for them; knows nothing of models or rounds to come."""

    def __init__(
        self, own: PartyView, lock: FolderLock, folder: Path, sizes: PartySizes, say: Callable[[str], None]
    ) -> None:
        self.own = own
        self.folder = folder
        self.sizes = sizes
        self.stopping = StopRequest()
        self.directory = RunDirectory(folder)
        require_able_to_go_on(folder)
        self._lock = lock
        self.private = PrivateState.open(folder, self.directory.files)
        if self.private.abort_reason is not None:
            raise BadInput(
                f"the run in {folder} was aborted by {self.private.abort_reason!r}; start another one in a new --out"
            )
        self.events = EventLog(folder / layout.LOG, own.me, say, BUDGETS[Role.FEATURE_PARTY].log_lines)
        self.incarnation = self.private.begin_incarnation()
        self.instance = secrets.token_hex(8)
        self.run = derive_run_number(own.recipe, own.settings.seed, own.feature_parties)
        self.network = own.network_party
        names = self.network.peers
        self.peers = PeerProcesses(folder, names)
        self.ledger = Ledger()
        self.links = {name: self._open_link(name) for name in names}
        self.is_charged = own.recipe.is_charged or isinstance(own.settings.training, DPBottom)
        self.channel = NetworkChannel(
            own.me,
            self.links,
            self.ledger,
            self._open_log(folder / layout.ANSWERS),
            Patience(self.patience_seconds, self._report_waiting, self.require_alive),
            durable=self.is_charged and not own.is_label_party,
        )
        self._began = monotonic()
        self._seconds_before = 0.0

    def _open_link(self, peer: PartyName) -> PeerLink:
        parties = (*self.own.feature_parties, self.own.label_party)
        ends = LinkEnds(self.run, self.own.me, peer, parties)
        return PeerLink(ends, self._open_log(self.folder / layout.SENT / peer), self.ledger, self.report)

    def _open_log(self, folder: Path) -> OutgoingLog:
        return OutgoingLog(folder, self.incarnation, self._await_room, self.directory.files.logs(folder))

    def close(self) -> None:
        """Leaves the folder to another process."""
        self.channel.close()
        self.events.close()
        self._lock.release()

    # What links report and peers say --------------------------------------------------------------------------

    def report(self, event: str, peer: PartyName | None, **facts: Any) -> None:
        """Everything that links and listeners report."""
        if event == "news" and peer is not None:
            news = read_training_news(facts["told"], peer == self.own.label_party)
            self.links[peer].news |= news
            self._receive_news(peer, news)
            facts = {"topics": sorted(news)}
        if event == "connected" and peer is not None:
            self.links[peer].news.pop("paused", None)
        if event == "disconnected" and peer is not None and self.peers[peer].finished:
            self.events("left", peer, **({} if self.is_over_with(peer) else facts))
        else:
            self.events(event, peer, **facts)
        if event in ("connected", "disconnected") and self.own.is_label_party:
            away = sorted(name for name, link in self.links.items() if not link.is_connected)
            self.tell_all({"away": away})

    def is_over_with(self, peer: PartyName) -> bool:
        """Both have finished: whoever hangs up now loses nothing."""
        return self.private.is_finished and self.peers[peer].finished

    def _receive_news(self, peer: PartyName, news: dict[str, Any]) -> None:
        if news.get("finished") is True:
            self.write_persistently(lambda: self.peers.mark_finished(peer))
            self.links[peer].tell({"noted": True})
        if "paused" in news:
            self.events("paused", peer, at_round=news["paused"])
            self.links[peer].tell({"noted": True})
        if "stopped" in news:
            self._fail(ToldToStop(printable(news["stopped"][:_LONGEST_REASON])))
        if "aborted" in news:
            self.abort(printable(news["aborted"]))

    def abort(self, by: str) -> None:
        """Ends this process, and the run for good."""
        self.note_abort(by)
        self._fail(Aborted(f"the run was aborted by {by!r}; start another one in a new --out folder"))

    def note_abort(self, by: str) -> None:
        """The folder remembers."""
        self.private.set_aborted(by)
        self.events("aborted", by=by)

    def _fail(self, error: ThinwireError) -> None:
        for link in self.links.values():
            link.fail(error)

    def tell_all(self, news: dict[str, Any]) -> None:
        for link in self.links.values():
            link.tell(news)

    # Waiting ----------------------------------------------------------------------------------------------------

    @property
    def patience_seconds(self) -> float:
        """How long a peer may be away."""
        return self.own.network.wait_seconds + (0.0 if self.own.is_label_party else _LABEL_PARTY_FIRST)

    def require_ours(self) -> None:
        """Raises where another process has taken over the folder."""
        if not self._lock.still_mine():
            raise Replaced(f"another process has taken over {self.own.me!r} in {self.folder}; this one exits")
        if self.stopping.is_asked and not self.events.count("stopping"):
            self.events("stopping")

    def require_links(self) -> None:
        for link in self.links.values():
            link.require_no_failure()

    def require_alive(self) -> None:
        """For whoever waits: also raises once a process that was asked to stop has had its time."""
        self.require_ours()
        self.stopping.require_patience()
        self.require_links()

    def _report_waiting(self, peer: PartyName, kind: Kind, round: Round, waited: float, left: float) -> None:
        link = self.links[peer]
        what = f"{kind.name} of round {round}, for {waited:.0f} s"
        if not link.is_connected:
            what += f", disconnected for {link.away_seconds():.0f} s"
        self.events("waiting", peer, what=what, left_seconds=left)

    def _await_room(self, failed: WriteFailed) -> None:
        """Called again and again by whoever must write, until there is room."""
        event = "files_full" if failed.is_out_of_files else "disk_full"
        self.events(event, path=str(failed.path), bytes=failed.bytes_needed)
        self.require_alive()
        sleep(_NO_ROOM_SECONDS)

    def write_persistently(self, write: Callable[[], None]) -> None:
        """Writes; waits for room where the disk is full, or too many files are open."""
        while True:
            try:
                return write()
            except WriteFailed as error:
                if not error.lacks_room:
                    raise
                self._await_room(error)

    # The clock of a run, over all its processes -----------------------------------------------------------------

    def start_clock(self, seconds_before: float | None = None) -> None:
        """Counts from now on; `seconds_before` took the processes before this one."""
        self._began = monotonic()
        if seconds_before is not None:
            self._seconds_before = seconds_before

    def seconds(self) -> float:
        return self._seconds_before + monotonic() - self._began

    # Who we are, and what we take -------------------------------------------------------------------------------

    def describe_self(self) -> TrainingHello:
        """For a peer that connects."""
        return TrainingHello(
            protocol=PROTOCOL,
            version=__version__,
            party=self.own.me,
            run=f"{self.run:016x}",
            agreement=self.own.agreement(),
            **asdict(self.sizes),
            incarnation=self.incarnation,
            instance=self.instance,
            nonce=self.private.run_nonce,
            finished=self.private.is_finished,
        )

    def max_body(self, width: int, parameters: int = 0) -> int:
        """The longest body of rows that are `width` values long, or of so many parameters."""
        cap = self.own.network.max_message_mb
        if cap is not None:
            return min(MAX_BODY, int(cap * 1e6))
        rows = max(self.sizes.rows, self.sizes.validation_rows, self.sizes.test_rows)
        signed_keys = _MOST_SIGNED * len(self.own.feature_parties)
        return min(MAX_BODY, (1 << 16) + signed_keys + _MOST_BYTES * max(rows * width, parameters))


# Why a party's process ends before its run does -------------------------------------------------------------------


_PATIENCE_TO_STOP = 3.0  # seconds that a round may take to end after SIGTERM


class Aborted(ThinwireError):
    """A party ended the run for all."""


class FailedInRun(ThinwireError):
    """What was given turned out to be wrong only after the start."""


class ToldToStop(Stopped):
    """A peer cannot go on, and nobody can without it."""


class Interrupted(Stopped):
    """SIGTERM or Ctrl-C came, and the round could not be ended in time."""


class StopRequest:
    """Whether, and since when, this process is asked to stop; set by signal handlers."""

    def __init__(self) -> None:
        self._since: float | None = None  # no lock: a signal may come while it is held

    def ask(self) -> None:
        self._since = self._since or monotonic()

    @property
    def is_asked(self) -> bool:
        return self._since is not None

    def require_patience(self) -> None:
        """For whoever waits: raises once the round has had its time to end."""
        if self._since is not None and monotonic() - self._since > _PATIENCE_TO_STOP:
            raise Interrupted("stopped; nothing is lost: run the same command again to resume")
