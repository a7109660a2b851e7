"""What happened at a party: from its own log, or from the label party where that shares it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from thinwire.base.errors import BadInput
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.job.party_view import PartyView
from thinwire.net.links.records import Count, Text
from thinwire.report.folder import is_run, last_stop, read_run
from thinwire.report.record import RunRecord
from thinwire.storage import layout
from thinwire.storage.events import MOST_SHARED
from thinwire.storage.folder_lock import is_in_use
from thinwire.storage.json_file import LineFollower
from thinwire.training.party.status import LastEvaluation, Told, ask_label_party, read_answer

Line = dict[str, Any]


class PartyLog:
    """This party's `log.jsonl`, from its beginning; `lines` gives those that have come since the last call."""

    def __init__(self, folder: Path) -> None:
        path = folder / layout.LOG
        if not path.is_file():
            raise BadInput(f"{path} does not exist: the party has not started here; or give its folder with --out")
        self._follower = LineFollower(path)  # `thinwire clean` writes another file

    def lines(self) -> Iterator[Line]:
        while found := self._follower.look()[1]:
            yield from found


class _Line(Told):
    """A line of a peer's log."""

    time: Text
    party: Text
    event: Text
    peer: Text | None = None
    round: Count | None = None


class _Lines(Told):
    party: Text
    lines: list[_Line] = Field(max_length=MOST_SHARED)
    next: Count


class SharedLog:
    """The label party's, as far as it shares it: when, what, with whom, in which round."""

    def __init__(self, own: PartyView, party: str) -> None:
        if party != own.label_party:
            known = (*own.feature_parties, own.label_party)
            why = "it only makes calls and does not accept any" if party in known else "it is not a party of this job"
            raise BadInput(f"--party {party}: {why}; only {own.label_party!r}, the label party, can be asked")
        self._own = own
        self._since = 0

    def lines(self) -> Iterator[Line]:
        _, answer = ask_label_party(self._own, "Logs", {"since": self._since})
        told = read_answer(_Lines, answer)
        # A process that was started again counts anew.
        self._since = told.next if told.next >= self._since else 0
        for line in told.lines:
            yield {key: printable(value) if isinstance(value, str) else value for key, value in line}


# What a party's own folder knows, for when the label party does not answer ----------------------------------------


@dataclass(frozen=True)
class FolderStatus:
    """A run of which nothing runs here any more."""

    state: str  # finished, aborted or unfinished
    method: str
    round: int
    rounds: int
    last_event: LastEvaluation | None  # the label party's folder has it


def read_folder_status(folder: Path) -> FolderStatus | None:
    """None where no run has begun, or a process is still at it."""
    if not is_run(folder) or is_in_use(folder):
        return None
    record = read_run(folder)
    last = None
    if record.events:
        end = record.events[-1]
        last = LastEvaluation(round=end.round, train=_drop_missing(end.train), test=_drop_missing(end.test))
    return FolderStatus(_read_state(record, folder), record.about.method, record.rounds, record.about.rounds, last)


def _read_state(record: RunRecord, folder: Path) -> str:
    if record.state == "finished":
        return "finished"
    lines = PartyLog(folder).lines() if (folder / layout.LOG).is_file() else ()
    return "aborted" if any(line.get("event") == "aborted" for line in lines) else "unfinished"


def _drop_missing(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if value is not None}


def list_stops(folder: Path, me: PartyName) -> dict[PartyName, int]:
    """In which round, by party; without those that were started again since. Empty where there is no log."""
    if not (folder / layout.LOG).is_file():
        return {}
    lines = list(PartyLog(folder).lines())
    found: dict[PartyName, int] = {}
    for line in lines:
        peer, event, round = line.get("peer"), line.get("event"), line.get("at_round")
        if not isinstance(peer, str):
            continue
        if event == "paused" and isinstance(round, int):
            found[peer] = round
        elif event == "connected":
            found.pop(peer, None)
    own = last_stop(lines)
    return found if own is None else {me: own.round, **found}
