"""How it went: the metric and the loss by epoch, by bytes and by time."""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.charts.lines import HALF, Chart, Line, Point
from thinwire.report.figures import Figure, of_lines
from thinwire.report.groups import Group
from thinwire.report.record import Evaluation, RunRecord

__all__ = ["cosine_figure", "curve_figures"]

_X = {
    "epoch": ("epoch", "epochs"),
    "bytes.total": ("bytes", "bytes sent, both directions"),
    "seconds": ("time", "seconds here"),
    "link_seconds": ("link time", "seconds on the link"),
}
_QUANTILES = ("5 %", "25 %", "half", "75 %", "95 %")


def curve_figures(groups: Sequence[Group], loss_too: bool = True) -> list[Figure]:
    """Those that have points; the same line has the same colour in each."""
    if not groups:
        return []
    places = list(dict.fromkeys(run.metric_place for group in groups for run in group.runs if run.events))
    targets = dict(run.about.target for group in groups for run in group.runs if run.about.target)
    wanted = [
        (f"{_part(place)} {_metric(place)} by {word}", x, place, targets.get(_metric(place)))
        for place in places
        for x, (word, _) in _X.items()
    ]
    if loss_too and not any(_metric(place) == "loss" for place in places):
        wanted.insert(1, ("Training loss by epoch", "epoch", "train.loss", None))
    found = []
    for title, x, y, line_across in wanted:
        lines = [Line(group.name, group.points(x, y), style) for style, group in enumerate(groups)]
        if any(line.points for line in lines):
            chart = Chart(title, _X[x][1], _metric(y), lines, across=line_across, size=HALF)
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


def _part(place: str) -> str:
    return "Test" if place.startswith("test.") else "Training"


def _metric(place: str) -> str:
    return place.split(".", 1)[1]
