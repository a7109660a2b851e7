"""Where the time went: by party and activity, and one round in detail."""

from __future__ import annotations

from thinwire.charts.bars import Bar, Bars
from thinwire.charts.numbers import seconds_shown
from thinwire.charts.spans import Lanes, Stretch
from thinwire.report.figures import Figure, of_bars
from thinwire.report.record import RunRecord

__all__ = ["time_figures"]

_WORDS = {"compute": "compute", "local": "local steps", "wait": "wait", "send": "send"}
_LINK = "By the link's clock. Sending goes on beside the rest."
_FEW = 6
_NO_LINK = (
    "Real seconds. Parties in one process take turns, so that nobody waits; with [link] in the job file there are "
    "waits and sending times, by the link's clock."
)
_REAL = "Real seconds at this party: sending is handing over to the log and the line."


def time_figures(run: RunRecord) -> list[Figure]:
    clock = run.heartbeats[-1].clock if run.heartbeats else "real"
    time, sending = run.time(), ""
    if clock == "link":  # what is on the line is beside the rest, not after it
        on_line = {party: spent.pop("send", 0.0) for party, spent in time.items()}
        sending = " Their bytes were on the line for " + _each(on_line) + "."
    bars = [
        Bar(party, {word: spent[what] for what, word in _WORDS.items() if what in spent})
        for party, spent in time.items()
    ]
    if not any(bar.total for bar in bars):
        return []
    note = _LINK + sending if clock == "link" else _NO_LINK if run.about.me is None else _REAL
    chart = Bars("Where the time went", "seconds", bars, seconds_shown, quiet=("wait",))
    lanes = _lanes(run) if clock == "link" or run.about.me is not None else None
    return [of_bars("time-by-party", chart, note), *([] if lanes is None else [lanes])]


def _each(seconds: dict[str, float]) -> str:
    """A few by name; many by their longest."""
    if len(seconds) > _FEW:
        return f"{seconds_shown(max(seconds.values()))} at most"
    return ", ".join(f"{seconds_shown(value)} ({party})" for party, value in seconds.items())


def _lanes(run: RunRecord) -> Figure | None:
    heartbeat = next(
        (one for one in reversed(run.heartbeats) if any(p.stretches for p in one.parties.values())), None
    )
    if heartbeat is None:
        return None
    lanes = {
        name: [Stretch(_WORDS.get(what, what), start, end) for what, start, end in party.stretches if what in _WORDS]
        for name, party in heartbeat.parties.items()
        if party.stretches
    }
    drawn = Lanes(f"Round {heartbeat.round}", lanes, tuple(_WORDS.values()), ("wait",), below=("send",))
    rows = []
    for name, stretches in lanes.items():
        for what in _WORDS.values():
            seconds = sum(one.end - one.start for one in stretches if one.what == what)
            if seconds:
                rows.append((name, what, f"{1000 * seconds:.4g}"))
    return Figure("one-round", drawn.title, drawn.svg(), ("", "what", "ms"), tuple(rows))
