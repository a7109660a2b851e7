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
    return Figure(key, bars.title, bars.svg(), ("", *names, "total"), rows, note)


def _chosen(count: int) -> Sequence[int]:
    if count <= _ROWS:
        return range(count)
    return sorted({round(place * (count - 1) / (_ROWS - 1)) for place in range(_ROWS)})


_X = {
    "epoch": ("epoch", "epochs"),
    "bytes.total": ("bytes", "training bytes, both directions"),
    "seconds": ("time", "seconds on this machine"),
    "link_seconds": ("link time", "seconds on the link"),
}
_QUANTILES = ("5 %", "25 %", "half", "75 %", "95 %")


def curve_figures(groups: Sequence[RunGroup]) -> list[Figure]:
    """Those that have points; the same line has the same colour in each.

    One kind of run has its training rows beside those that steer, so that overfitting shows.
    """
    places = list(dict.fromkeys(run.metric_place for group in groups for run in group.runs if run.events))
    targets = dict(run.about.target for group in groups for run in group.runs if run.about.target)
    wanted = [(place, x) for place in places for x in _X]
    if places and not any(_metric(place) == "loss" for place in places):
        steers = places[0].partition(".")[0] if len(groups) == 1 else "train"
        wanted.insert(1, (f"{steers}.loss", "epoch"))
    charts = [(place, x, _curve(groups, place, x, targets.get(_metric(place)))) for place, x in wanted]
    return [
        of_lines(f"{place}-by-{x}".replace(".", "-"), chart)
        for place, x, chart in charts
        if any(line.points for line in chart.lines)
    ]


def _curve(groups: Sequence[RunGroup], place: str, x: str, target: float | None) -> Chart:
    word, x_name = _X[x]
    lines = [Line(group.name, group.points(x, place), style) for style, group in enumerate(groups)]
    title = name_place(place)
    if len(groups) == 1 and x == "epoch":
        lines = _lines_by_rows(groups[0], place)
        title = f"training and {title}" if len(lines) > 1 else title
    y_name = name_score(_metric(place))
    return Chart(f"{_capitalize(title)} by {word}", x_name, y_name, lines, across=target, size=HALF)


def _lines_by_rows(group: RunGroup, place: str) -> list[Line]:
    """A score on the rows that steer and, where it is known, on training rows."""
    places = dict.fromkeys((place, f"train.{_metric(place)}"))
    lines = [Line(name_place(one), group.points("epoch", one), style) for style, one in enumerate(places)]
    return [line for line in lines if line.points]


def cosine_figure(run: RunRecord) -> Figure | None:
    """How alike cached and present values were when a cached exchange was used, since the evaluation before."""
    by_party: dict[str, list[tuple[int, list[float]]]] = {}
    for event in run.events:
        for party, quantiles in _quantiles(event, run.about.label_party).items():
            by_party.setdefault(party, []).append((event.round, quantiles))
    lines = []
    for style, (party, found) in enumerate(sorted(by_party.items())):
        lines.append(Line(f"{party}, median", [Point(round, values[2]) for round, values in found], style))
        lines.append(
            Line(f"{party}, 5th percentile", [Point(round, values[0]) for round, values in found], style + 7)
        )
    if not lines:
        return None
    note = (
        "1: a cached value points in the same direction as the current one. Half of the rows lie above the solid "
        "line, 95 % above the dashed one."
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
_LINK = "Seconds on the simulated link. Sending overlaps with everything else."
_FEW = 6
_NO_LINK = (
    "Wall-clock seconds. Simulated parties take turns in one process, so none of them waits; with [link] in the job "
    "file, waiting and sending are simulated too."
)
_REAL = "Wall-clock seconds at this party. Sending means passing a message to the log and the connection."


def time_figures(run: RunRecord) -> list[Figure]:
    clock = run.heartbeats[-1].clock if run.heartbeats else "real"
    time, sending = run.time(), ""
    if clock == "link":  # what is on the line is beside the rest, not after it
        on_line = {party: spent.pop("send", 0.0) for party, spent in time.items()}
        sending = " It took " + _each(on_line) + "."
    bars = [
        Bar(party, {word: spent[what] for what, word in _WORDS.items() if what in spent})
        for party, spent in time.items()
    ]
    if not any(bar.total for bar in bars):
        return []
    note = _LINK + sending if clock == "link" else _NO_LINK if run.about.me is None else _REAL
    chart = Bars("Time by party", "seconds", bars, format_seconds, quiet=("wait",))
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


_BESIDE = "svfl: what uncompressed split learning sends in the same number of rounds, headers included."


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
    bars = Bars("Training bytes by direction and kind", "bytes", shown, format_bytes, quiet=("svfl",))
    evaluation = f" Evaluation took another {format_bytes(run.evaluation_bytes)}." if run.evaluation_bytes else ""
    figures = [of_bars("bytes-by-kind", bars, _BESIDE + evaluation)]
    each: dict[str, dict[str, float]] = {party.name: {"sent": 0, "received": 0} for party in run.about.parties}
    for entry in training:
        for name, way in ((entry.sender, "sent"), (entry.receiver, "received")):
            if name in each:
                each[name][way] += entry.bytes
    both = [bar for bar in itertools.starmap(Bar, each.items()) if bar.total]
    return [*figures, of_bars("bytes-by-party", Bars("Training bytes by party", "bytes", both, format_bytes))]


def totals_figure(groups: Sequence[RunGroup]) -> Figure | None:
    """Several runs beside each other, at their ends."""
    bars = []
    for group in groups:
        up = group.number(lambda run: run.last("bytes.up"))
        down = group.number(lambda run: run.last("bytes.down"))
        if up is not None and down is not None:
            evaluation = sum(run.evaluation_bytes for run in group.runs) / len(group.runs)
            bars.append(Bar(group.name, {"up": up.mean, "down": down.mean, "evaluation": evaluation}))
    drawn = Bars("Total bytes", "bytes", bars, format_bytes, quiet=("evaluation",))
    return of_bars("bytes-of-runs", drawn) if bars else None


def format_kinds(run: RunRecord) -> list[tuple[str, str, str, str, str]]:
    """Every kind of message: from, to, kind, messages, bytes."""
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
