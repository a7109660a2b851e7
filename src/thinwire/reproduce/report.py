"""The experiment's report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isinf
from typing import Any

from thinwire.charts.lines import Chart, Line
from thinwire.charts.numbers import bytes_shown, number_shown
from thinwire.charts.page import html_page
from thinwire.environment import environment
from thinwire.reproduce.expecting import Verdict
from thinwire.reproduce.experiment import Experiment
from thinwire.reproduce.schema import PlotSection
from thinwire.reproduce.statistics import CurveResult, Number

__all__ = ["Words", "html_report"]

_X_NAMES = {
    "epoch": "epochs",
    "round": "rounds",
    "bytes.total": "bytes sent, both directions",
    "bytes.up": "bytes sent to the label party",
    "paper_bytes": "bytes by the paper's formula",
    "link_seconds": "seconds on the link",
}
_Y_NAMES = {
    "diagnostics.relative_gradient_norm": "squared gradient norm, relative to the start",
    "gradient_norm_since_first_step": "squared gradient norm, relative to after one step",
}


@dataclass(frozen=True)
class Words:
    """What a report says of the data, and the experiment's file as it stands."""

    data: str
    file: str


def html_report(
    experiment: Experiment,
    results: Sequence[CurveResult],
    verdicts: Sequence[Verdict],
    words: Words,
    real: Sequence[Mapping[str, Any]],
) -> str:
    """The report of an experiment; `real` are runs over a real link beside those on the link's clock."""
    about = experiment.about
    met = sum(verdict.met for verdict in verdicts)
    size = f"{experiment.size} size" + (f": {experiment.says}" if experiment.says else "")
    body = [
        f"<h1>{escape(experiment.name)}: {escape(about.title)}</h1>",
        f'<p class="muted">{escape(about.paper)}, {escape(about.figure)}</p>',
        f"<p>{escape(about.claim)}</p>",
        f"<p><b>{met} of {len(verdicts)} expectations met</b>, {_seeds(experiment)}; {escape(size)}</p>",
        "<h2>What the paper says, and what was measured</h2>",
        _expectations(verdicts),
        "<h2>Curves</h2>",
        f'<div class="plots">{"".join(chart.svg() for chart in charts(experiment, results))}</div>',
        '<p class="muted">Lines are means over seeds, bands one standard deviation. Bytes are those of every frame '
        "that was sent, indices and headers included, evaluation apart.</p>",
        "<h2>Figures</h2>",
        _figures(experiment, results),
        *(["<h2>Over a real link</h2>", _real_link(real)] if real else []),
        "<h2>Settings</h2>",
        f"<p>{escape(words.data)}</p>",
        f"<p>Embeddings: {about.width} values a feature party"
        + (f", {about.label_width} the label party's own" if about.label_width else "")
        + "</p>",
        *(f"<p>{escape(note)}</p>" for note in about.notes),
        f"<pre>{escape(words.file)}</pre>",
        f'<p class="muted">{escape(", ".join(f"{key} {value}" for key, value in environment().items()))}</p>',
    ]
    return html_page(experiment.name, "\n".join(body))


def charts(experiment: Experiment, results: Sequence[CurveResult]) -> list[Chart]:
    """The file's plots, of the curves that were run; without any, the metrics by epoch, bytes and link time."""
    styles = {result.name: number for number, result in enumerate(results)}
    found = []
    for plot in experiment.file.plot or _usual_plots(experiment, results):
        lines = [
            Line(result.name, result.points(plot.x, plot.y), styles[result.name])
            for result in results
            if plot.curves is None or result.name in plot.curves
        ]
        if not any(line.points for line in lines):
            continue
        target = results[0].target
        across = target[1] if target is not None and plot.y == f"test.{target[0]}" else None
        name = _Y_NAMES.get(plot.y, plot.y.replace(".", " ").replace("_", " "))
        found.append(Chart(plot.title, _X_NAMES[plot.x], name, lines, plot.log, across))
    return found


def _usual_plots(experiment: Experiment, results: Sequence[CurveResult]) -> list[PlotSection]:
    metric = (experiment.curves[0].settings.metrics or ["accuracy"])[0]
    plots = [
        PlotSection(title=f"Test {metric} by epoch", x="epoch", y=f"test.{metric}"),
        PlotSection(title="Training loss by epoch", x="epoch", y="train.loss"),
        PlotSection(title=f"Test {metric} by bytes", x="bytes.total", y=f"test.{metric}"),
    ]
    if any(run.history[-1]["link_seconds"] is not None for result in results for run in result.runs):
        plots.append(PlotSection(title=f"Test {metric} by link time", x="link_seconds", y=f"test.{metric}"))
    return plots


def _seeds(experiment: Experiment) -> str:
    count = len(experiment.seeds)
    return f"{count} seed{'s' if count > 1 else ''} ({', '.join(map(str, experiment.seeds))})"


def _expectations(verdicts: Sequence[Verdict]) -> str:
    rows = []
    for one in verdicts:
        word = '<td class="met">met</td>' if one.met else '<td class="not">not met</td>'
        cells = (one.claim, one.paper or "", one.checked, one.limit)
        found = "" if one.found is None else number_shown(one.found)
        rows.append(
            "<tr>"
            + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            + f'<td class="number">{found}</td>{word}<td>{escape(one.why)}</td></tr>'
        )
    heads = ("the paper says", "its figure", "compared", "limit", "found", "", "from")
    return _table(heads, rows)


def _figures(experiment: Experiment, results: Sequence[CurveResult]) -> str:
    """A line a curve."""
    metric = (experiment.curves[0].settings.metrics or ["accuracy"])[0]
    target = results[0].target
    aim = "" if target is None else f" to {target[0]} {target[1]:.4g}"
    heads = ["curve", f"best test {metric}", f"last test {metric}", "last training loss", "up", "down"]
    heads += ["by the paper's formula", "link time", f"rounds{aim}", f"bytes{aim}", "epsilon"]
    rows = []
    for result in results:
        numbers: list[tuple[Number | None, Any]] = [
            (result.best(f"test.{metric}"), number_shown),
            (result.final(f"test.{metric}"), number_shown),
            (result.final("train.loss"), number_shown),
            (result.final("bytes.up"), bytes_shown),
            (result.final("bytes.down"), bytes_shown),
            (result.final("paper_bytes"), bytes_shown),
            (result.final("link_seconds"), lambda value: f"{value:.4g} s"),
            (result.cost("round"), lambda value: f"{value:.0f}"),
            (result.cost("bytes.total"), bytes_shown),
        ]
        cells = "".join(f'<td class="number">{_said(number, how)}</td>' for number, how in numbers)
        rows.append(f"<tr><td>{escape(result.name)}</td>{cells}<td>{escape(epsilon_said(result))}</td></tr>")
    return _table(heads, rows)


def _real_link(real: Sequence[Mapping[str, Any]]) -> str:
    keys = ("seconds", "link_seconds", "target_seconds", "target_link_seconds")
    rows = []
    for one in real:
        cells = "".join(f'<td class="number">{"-" if one[key] is None else f"{one[key]:.2f}"}</td>' for key in keys)
        same = "the same" if one["same_scores"] else "other"
        rows.append(f"<tr><td>{escape(one['curve'])}, seed {one['seed']}</td>{cells}<td>{same}</td></tr>")
    heads = ("curve", "real seconds", "link clock", "real seconds to the target", "link clock to it", "scores")
    return _table(heads, rows)


def _said(number: Number | None, how: Any) -> str:
    if number is None:
        return "-"
    if isinf(number.mean):
        return "never"
    return str(how(number.mean)) + (f" ± {how(number.deviation)}" if number.seeds > 1 else "")


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def epsilon_said(result: CurveResult) -> str:
    """The releases' epsilon against the label party, and from end to end; empty where nothing is noisy."""
    for ledger in result.runs[0].summary.get("privacy", []):
        rows = {row["observer"]: row for row in ledger["observers"]}
        row = rows["label_party"]
        if row["releases_epsilon"] != "infinity":
            ends = row["end_to_end_epsilon"]
            whole = "infinite" if isinstance(ends, str) else f"{ends:.3g}"
            return f"{row['releases_epsilon']:.3g} of the releases, {whole} end to end (delta {ledger['delta']:g})"
    return ""
