"""What happened at a party: from its own log, or from the label party where that shares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from thinwire.base.errors import BadInput
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.job.party_view import PartyView
from thinwire.net.links.records import Count, Text
from thinwire.report.folder import last_stop
from thinwire.storage import layout
from thinwire.storage.events import MOST_SHARED
from thinwire.storage.json_file import LineFollower
from thinwire.training.party.status import Told, ask_label_party, read_answer

Line = dict[str, Any]


class PartyLog:
    """This party's `log.jsonl`, from its beginning; `lines` gives those that have come since the last call."""

    def __init__(self, folder: Path) -> None:
        path = folder / layout.LOG
        if not path.is_file():
            raise BadInput(f"{path} is not there: the party has not begun here; or give its folder by --out")
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
            why = "it only calls others, and nobody can call it" if party in known else "it is no party of this job"
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


# Who was stopped by its own people, as a party's own folder knows it: for when the label party does not answer ----


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
