"""A report's figures: curves, time and traffic."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.base.format import (
    format_bytes,
    format_count,
    format_number,
    format_seconds,
    name_place,
    name_score,
    short,
)
from thinwire.report.record import EVALUATION_KINDS, Evaluation, LedgerEntry, RunRecord
from thinwire.report.summary import RunGroup
from thinwire.report.svg.bar_chart import Bar, Bars, Lanes, Stretch
from thinwire.report.svg.line_chart import HALF, Chart, Line, Point

_ROWS = 12  # of a line, in the table


@dataclass(frozen=True)
class Figure:
    """`key` is its place in a page; `svg` is markup already, all else is text."""

    key: str
    title: str
    svg: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def of_lines(key: str, chart: Chart, note: str = "") -> Figure:
    """Evenly chosen points of every line, its last one among them."""
    rows = []
    for line in chart.lines:
        for place in _chosen(len(line.points)):
            point = line.points[place]
            spread = f" ± {format_number(point.deviation)}" if point.deviation else ""
            rows.append((line.name, short(point.x), format_number(point.y) + spread))
    return Figure(key, chart.title, chart.svg(), ("", chart.x_name, chart.y_name), tuple(rows), note)


def of_bars(key: str, bars: Bars, note: str = "") -> Figure:
    names = bars.part_names()
    rows = tuple(
        (bar.name, *(bars.shown(bar.parts.get(name, 0.0)) for name in names), bars.shown(bar.total))
        for bar in bars.bars
    )
    return Figure(key, bars.title, bars.svg(), ("", *names, "in all"), rows, note)


def _chosen(count: int) -> Sequence[int]:
    if count <= _ROWS:
        return range(count)
    return sorted({round(place * (count - 1) / (_ROWS - 1)) for place in range(_ROWS)})


_X = {
    "epoch": ("epoch", "epochs"),
    "bytes.total": ("bytes", "bytes sent, both directions"),
    "seconds": ("time", "seconds here"),
    "link_seconds": ("link time", "seconds on the link"),
}
_QUANTILES = ("5 %", "25 %", "half", "75 %", "95 %")


def curve_figures(groups: Sequence[RunGroup], loss_too: bool = True) -> list[Figure]:
    """Those that have points; the same line has the same colour in each."""
    if not groups:
        return []
    places = list(dict.fromkeys(run.metric_place for group in groups for run in group.runs if run.events))
    targets = dict(run.about.target for group in groups for run in group.runs if run.about.target)
    wanted = [
        (f"{_capitalize(name_place(place))} by {word}", x, place, targets.get(_metric(place)))
        for place in places
        for x, (word, _) in _X.items()
    ]
    if loss_too and not any(_metric(place) == "loss" for place in places):
        wanted.insert(1, ("Training loss by epoch", "epoch", "train.loss", None))
    found = []
    for title, x, y, line_across in wanted:
        lines = [Line(group.name, group.points(x, y), style) for style, group in enumerate(groups)]
        if any(line.points for line in lines):
            chart = Chart(title, _X[x][1], name_score(_metric(y)), lines, across=line_across, size=HALF)
            found.append(of_lines(f"{y}-by-{x}".replace(".", "-"), chart))
    return found


def cosine_figure(run: RunRecord) -> Figure | None:
    """How alike cached and present values were when a cached exchange was used, since the evaluation before."""
    by_party: dict[str, list[tuple[int, list[float]]]] = {}
    for event in run.events:
        for party, quantiles in _quantiles(event, run.about.label_party).items():
            by_party.setdefault(party, []).append((event.round, quantiles))
    lines = []
    for style, (party, found) in enumerate(sorted(by_party.items())):
        lines.append(Line(f"{party}, half", [Point(round, values[2]) for round, values in found], style))
        lines.append(Line(f"{party}, 5 %", [Point(round, values[0]) for round, values in found], style + 7))
    if not lines:
        return None
    note = (
        "1: a cached value points where the present one does. Half of the rows are above the solid line, 95 % above "
        "the dashed one."
    )
    return of_lines("cosines", Chart("Cosine of cached values", "round", "cosine", lines, size=HALF), note)


def _quantiles(event: Evaluation, label_party: str) -> dict[str, list[float]]:
    """By party; over the network the label party knows its own alone."""
    found = {}
    told = event.diagnostics
    own = {label_party: told} if "cosine_quantiles" in told else {}
    for party, mine in (own or told).items():
        values = mine.get("cosine_quantiles") if isinstance(mine, dict) else None
        if isinstance(values, list) and len(values) == len(_QUANTILES):
            found[str(party)] = [float(value) for value in values]
    return found


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _metric(place: str) -> str:
    return place.split(".", 1)[1]


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
    chart = Bars("Where the time went", "seconds", bars, format_seconds, quiet=("wait",))
    lanes = _lanes(run) if clock == "link" or run.about.me is not None else None
    return [of_bars("time-by-party", chart, note), *([] if lanes is None else [lanes])]


def _each(seconds: dict[str, float]) -> str:
    """A few by name; many by their longest."""
    if len(seconds) > _FEW:
        return f"{format_seconds(max(seconds.values()))} at most"
    return ", ".join(f"{format_seconds(value)} ({party})" for party, value in seconds.items())


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


# Rounds as they are counted, on one line of text.
_BESIDE = "svfl: what plain split learning sends in as many rounds of the same batches, headers included."


def traffic_figures(run: RunRecord) -> list[Figure]:
    """By direction and kind against svfl's; by party."""
    training = [entry for entry in run.ledger if entry.kind not in EVALUATION_KINDS]
    if not training:
        return []
    ways = [
        Bar("up", _by_kind(training, run, "up")),
        Bar("svfl, up", {"svfl": run.svfl("up")}),
        Bar("down", _by_kind(training, run, "down")),
        Bar("svfl, down", {"svfl": run.svfl("down")}),
    ]
    shown = [bar for bar in ways if bar.total or not bar.name.startswith("svfl")]
    bars = Bars("Bytes by direction and kind", "bytes", shown, format_bytes, quiet=("svfl",))
    figures = [of_bars("bytes-by-kind", bars, _BESIDE)]
    each: dict[str, dict[str, float]] = {party.name: {"sent": 0, "received": 0} for party in run.about.parties}
    for entry in training:
        for name, way in ((entry.sender, "sent"), (entry.receiver, "received")):
            if name in each:
                each[name][way] += entry.bytes
    both = [bar for bar in itertools.starmap(Bar, each.items()) if bar.total]
    return [*figures, of_bars("bytes-by-party", Bars("Bytes by party", "bytes", both, format_bytes))]


def totals_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Several runs beside each other, at their ends."""
    bars = []
    for group in groups:
        up = group.number(lambda run: run.last("bytes.up"))
        down = group.number(lambda run: run.last("bytes.down"))
        if up is not None and down is not None:
            bars.append(Bar(group.name, {"up": up.mean, "down": down.mean}))
    return of_bars("bytes-of-runs", Bars("Bytes sent in all", "bytes", bars, format_bytes)) if bars else None


def format_kinds(run: RunRecord) -> list[tuple[str, str, str, str, str]]:
    """Every sort of message: from, to, kind, messages, bytes."""
    return [
        (one.sender, one.receiver, format_kind(one.kind), format_count(one.messages), format_bytes(one.bytes))
        for one in sorted(run.ledger, key=lambda one: -one.bytes)
    ]


def format_kind(kind: str) -> str:
    return kind.lower().replace("_", " ")


def _by_kind(entries: Sequence[LedgerEntry], run: RunRecord, way: str) -> dict[str, float]:
    found: dict[str, float] = {}
    label = run.about.label_party
    for entry in sorted(entries, key=lambda entry: entry.kind):
        if (entry.receiver == label) if way == "up" else (entry.sender == label):
            kind = format_kind(entry.kind)
            found[kind] = found.get(kind, 0.0) + entry.bytes
    return found
