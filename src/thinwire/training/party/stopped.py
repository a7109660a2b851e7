"""Who was stopped by its own people, as a party's own folder knows it: for when the label party does not answer."""

from __future__ import annotations

from pathlib import Path

from thinwire.base.types import PartyName
from thinwire.report.reading import last_stop
from thinwire.storage import layout
from thinwire.training.party.logs import OwnLog


def stopped_parties(folder: Path, me: PartyName) -> dict[PartyName, int]:
    """In which round, by party; without those that were started again since. Empty where there is no log."""
    if not (folder / layout.LOG).is_file():
        return {}
    lines = list(OwnLog(folder).lines())
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
