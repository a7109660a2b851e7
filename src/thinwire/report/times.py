"""Where the time went: by party and activity, and one round in detail."""

from __future__ import annotations

from thinwire.charts.bars import Bar, Bars
from thinwire.charts.numbers import seconds_shown
from thinwire.charts.spans import Lanes, Stretch
from thinwire.report.figures import Figure, of_bars
from thinwire.report.record import RunRecord

__all__ = ["time_figures"]

_WORDS = {"compute": "compute", "local": "local steps", "wait": "wait", "send": "send"}
_LINK = "By the link's clock. Sending goes on beside the rest: its bytes are on the line, and the party may compute."
_NO_LINK = (
    "Real seconds. Parties in one process take turns, so that nobody waits; with [link] in the job file there are "
    "waits and sending times, by the link's clock."
)
_REAL = "Real seconds at this party: sending is handing over to the log and the line."


def time_figures(run: RunRecord) -> list[Figure]:
    time = run.time()
    bars = [
        Bar(party, {_WORDS.get(what, what): value for what, value in spent.items()}) for party, spent in time.items()
    ]
    if not any(bar.total for bar in bars):
        return []
    clock = run.pulses[-1].clock
    note = _LINK if clock == "link" else _NO_LINK if run.about.me is None else _REAL
    found = [of_bars("time-by-party", Bars("Where the time went", "seconds", bars, seconds_shown, ("wait",)), note)]
    lanes = _lanes(run) if clock == "link" or run.about.me is not None else None
    return [*found, *([] if lanes is None else [lanes])]


def _lanes(run: RunRecord) -> Figure | None:
    pulse = next((one for one in reversed(run.pulses) if any(p.stretches for p in one.parties.values())), None)
    if pulse is None:
        return None
    lanes = {
        name: [Stretch(_WORDS.get(what, what), start, end) for what, start, end in party.stretches if what in _WORDS]
        for name, party in pulse.parties.items()
        if party.stretches
    }
    drawn = Lanes(f"Round {pulse.round}", lanes, tuple(_WORDS.values()), ("wait",), below=("send",))
    rows = []
    for name, stretches in lanes.items():
        for what in _WORDS.values():
            seconds = sum(one.end - one.start for one in stretches if one.what == what)
            if seconds:
                rows.append((name, what, f"{1000 * seconds:.4g}"))
    return Figure("one-round", drawn.title, drawn.svg(), ("", "what", "ms"), tuple(rows))
