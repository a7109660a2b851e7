"""How each party is, from the log of a run over the network; in one process all are as the process is."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.report.live.live_run import LiveRun, LiveState
from thinwire.report.record import RunRecord
from thinwire.storage.events import sentence

_LINES = 40
_HERE = {
    "connected": "connected",
    "left": "finished",
    "paused": "stopped",
    "disconnected": "away",
    "unreached": "does not answer",
}
_GONE = ("disconnected", "unreached")
_TROUBLE = frozenset(("waiting", "disk_full", "checkpoint_failed", "refused", "denied", "damaged", "replay_differs"))


@dataclass(frozen=True)
class Health:
    """One party as this folder knows it."""

    party: str
    state: str
    since: str  # time of day, UTC
    good: bool
    more: str = ""


def health(run: LiveRun, record: RunRecord | None, state: LiveState) -> list[Health]:
    """Peers by their last word; the folder's own party, or all simulated ones, by the run's state."""
    me = record.about.me if record is not None else next((str(line.get("party")) for line in run.log), None)
    last: dict[str, Health] = {}
    starts: dict[str, int] = {}
    for line in run.log:
        peer, event = line.get("peer"), str(line.get("event"))
        if not isinstance(peer, str):
            continue
        if event in _GONE and peer in last and last[peer].state == "stopped":
            continue  # as it said
        if event in _HERE:
            starts[peer] = starts.get(peer, 0) + (event == "connected")
            last[peer] = Health(peer, _HERE[event], _clock(line), event in ("connected", "left"))
        elif event in _TROUBLE and peer in last:
            last[peer] = Health(peer, last[peer].state, last[peer].since, False, event.replace("_", " "))
    own = "finished" if state == "finished" else state
    good = state in ("running", "finished")
    if record is None or me is not None:
        mine = [] if me is None else [Health(me, own, "", good, "this folder's own")]
        return mine + [_with_starts(one, starts.get(peer, 0)) for peer, one in sorted(last.items())]
    return [Health(party.name, own, "", good) for party in record.about.parties]


def log_lines(run: LiveRun, record: RunRecord | None) -> list[tuple[str, str]]:
    """(time, sentence), the newest last; a simulated run has its evaluations."""
    lines = [(_clock(line), said) for line in run.log if (said := sentence(line)) is not None]
    if not lines and record is not None:
        place = record.metric_place
        for event in record.events[-_LINES:]:
            value = event.value_at(place)
            said = "" if value is None else f"{place.replace('.', ' ')} {value:.4g}"
            lines.append((f"round {event.round}", said))
    return lines[-_LINES:]


def _with_starts(one: Health, connections: int) -> Health:
    more = f"connected {connections} times" if connections > 1 else one.more
    return Health(one.party, one.state, one.since, one.good, more)


def _clock(line: dict[str, object]) -> str:
    return str(line.get("time", ""))[11:19]
