"""What an experiment leaves: results.csv, a line an evaluation; summary.json; report.html; page.md and its panels."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isinf
from pathlib import Path
from typing import Any

from thinwire.base.format import format_bytes, format_number
from thinwire.base.process import environment
from thinwire.lab.papers.experiment import Experiment, PlotSection, file_name
from thinwire.lab.papers.markdown_page import render_markdown
from thinwire.lab.papers.real_link import RealRun
from thinwire.lab.papers.results import ClaimVerdict, CurveResult, check_claims, collect_results
from thinwire.lab.papers.runs import ExperimentRun, value_at
from thinwire.report.rendering import render_page
from thinwire.report.summary import MeanValue
from thinwire.report.svg.line_chart import Chart, Line
from thinwire.storage import layout
from thinwire.storage.json_file import dump_indented_json
from thinwire.storage.run_directory import RunDirectory

_PANELS = "panels"  # the figure's plots, an SVG file each
_COSTS = ("round", "epoch", "bytes.total", "bytes.up", "link_seconds")
_COLUMNS = ("round", "epoch", "train.loss", "test.loss")
_MORE = (
    "bytes.up",
    "bytes.down",
    "bytes.total",
    "paper_bytes",
    "link_seconds",
    "seconds",
    "diagnostics.squared_gradient_norm",
    "diagnostics.relative_gradient_norm",
    "gradient_norm_since_first_step",
)


def write_results(
    experiment: Experiment,
    outcomes: Sequence[ExperimentRun],
    words: ReportTexts,
    out: Path,
    real: Sequence[RealRun] = (),
) -> dict[str, Any]:
    """Writes the files; gives the summary."""
    results = collect_results(experiment, outcomes)
    verdicts = check_claims(experiment.expectations, results)
    panels = name_panels(draw_charts(experiment, results))
    summary = {
        **_summary(experiment, results, verdicts, words.data),
        "real_link": [_real(run, results) for run in real],
        "panels": [{"file": f"{_PANELS}/{file}", **_axes(chart)} for file, chart in panels.items()],
    }
    folder = RunDirectory(out)
    for file, chart in panels.items():
        RunDirectory(out / _PANELS).write(file, f"{chart.svg()}\n".encode())
    folder.write("page.md", render_markdown(summary, experiment.about.notes).encode())
    folder.write("results.csv", _csv(experiment, results).encode())
    folder.write("summary.json", dump_indented_json(summary))
    folder.write(layout.REPORT, render_report(experiment, results, verdicts, words, summary["real_link"]).encode())
    return {**summary, "out": str(out)}


def name_panels(charts: Sequence[Chart]) -> dict[str, Chart]:
    """Every plot by its file, numbered as the paper's figure has them."""
    return {f"{number:02}-{file_name(chart.title)}.svg": chart for number, chart in enumerate(charts, 1)}


def _axes(chart: Chart) -> dict[str, Any]:
    return {
        "title": chart.title,
        "x": chart.x_name,
        "y": chart.y_name,
        "log_x": chart.log_x,
        "log_y": chart.log,
        "curves": [line.name for line in chart.lines if line.points],
    }


def _csv(experiment: Experiment, results: Sequence[CurveResult]) -> str:
    metrics = experiment.curves[0].settings.metrics or []
    places = [*_COLUMNS, *(f"{part}.{name}" for name in metrics for part in ("train", "test")), *_MORE]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["curve", "seed", *places])
    for result in results:
        for run in result.runs:
            for event in run.history:
                values = (value_at(event, place) for place in places)
                table.writerow([result.name, run.seed, *("" if value is None else value for value in values)])
    return text.getvalue()


def _summary(
    experiment: Experiment, results: Sequence[CurveResult], verdicts: Sequence[ClaimVerdict], about_data: str
) -> dict[str, Any]:
    target = results[0].target
    return {
        "experiment": experiment.name,
        "paper": experiment.about.paper,
        "figure": experiment.about.figure,
        "claim": experiment.about.claim,
        "size": experiment.size,
        "says": experiment.says,
        "title": experiment.about.title,
        "data": about_data,
        "seeds": list(experiment.seeds),
        "run": _describe_run(experiment),
        "width": experiment.about.width,
        "target": None if target is None else {"metric": target[0], "value": target[1]},
        "expectations": [_plain({**asdict(verdict), "verdict": verdict.word}) for verdict in verdicts],
        "met": sum(verdict.met for verdict in verdicts),
        "curves": [_curve(experiment, result) for result in results],
        "environment": environment(),
    }


def _describe_run(experiment: Experiment) -> dict[str, Any]:
    """How much of the paper's experiment this is; rows None are all that the data set has."""
    settings, file = experiment.curves[0].settings, experiment.file
    return {
        "rows": experiment.rows,
        "test_rows": experiment.test_rows,
        "epochs": settings.epochs,
        "batch_size": settings.batch_size,
        "curves": len(experiment.curves),
        "curves_of_the_file": len(file.curve),
        "seeds_of_the_file": list(file.experiment.seeds),
    }


def _real(run: RealRun, results: Sequence[CurveResult]) -> dict[str, Any]:
    """A run over the real link beside the same run on the link's clock."""
    result = next(result for result in results if result.name == run.curve)
    twin = next(one for one in result.runs if one.seed == run.seed)
    clock = CurveResult(run.curve, (twin,), result.target).cost("link_seconds")
    return {
        "curve": run.curve,
        "seed": run.seed,
        "seconds": run.seconds(),
        "link_seconds": twin.history[-1]["link_seconds"],
        "target_seconds": None if result.target is None else run.seconds_to(*result.target),
        "target_link_seconds": None if clock is None or not isfinite(clock.mean) else clock.mean,
        "same_scores": run.same_scores,
    }


def _curve(experiment: Experiment, result: CurveResult) -> dict[str, Any]:
    metrics = experiment.curves[0].settings.metrics or []
    finals = ["train.loss", *(f"test.{name}" for name in metrics), *_MORE]
    return {
        "name": result.name,
        "seeds": [run.seed for run in result.runs],
        "diverged": {str(run.seed): run.diverged for run in result.runs if run.diverged},
        "final": {place: _number(result.final(place)) for place in finals},
        "best": {f"test.{name}": _number(result.best(f"test.{name}")) for name in metrics},
        "to_target": {place: _number(result.cost(place)) for place in _COSTS},
        "reached": _number(result.success_rate()),
        "privacy": result.runs[0].summary.get("privacy", []),
    }


def _number(number: MeanValue | None) -> dict[str, Any] | None:
    return None if number is None else _plain({"mean": number.mean, "std": number.deviation})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for infinity."""
    return {
        key: "infinity" if isinstance(value, float) and not isfinite(value) else value
        for key, value in values.items()
    }


# The experiment's report: one HTML file that needs nothing else ---------------------------------------------------


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
class ReportTexts:
    """What a report says of the data, and the experiment's file as it stands."""

    data: str
    file: str


def render_report(
    experiment: Experiment,
    results: Sequence[CurveResult],
    verdicts: Sequence[ClaimVerdict],
    words: ReportTexts,
    real: Sequence[Mapping[str, Any]],
) -> str:
    """The report of an experiment; `real` are runs over a real link beside those on the link's clock."""
    values = {
        "experiment": experiment,
        "about": experiment.about,
        "verdicts": verdicts,
        "charts": draw_charts(experiment, results),
        "heads": _heads(experiment, results),
        "figures": [_figures(result, _metric(experiment)) for result in results],
        "real": [_real_link(one) for one in real],
        "words": words,
        "environment": environment(),
    }
    return render_page("experiment.html", experiment.name, values)


def draw_charts(experiment: Experiment, results: Sequence[CurveResult]) -> list[Chart]:
    """The file's plots, of the curves that were run; without any, the metrics by epoch, bytes and link time."""
    styles = {result.name: number for number, result in enumerate(results)}
    found = []
    for plot in experiment.file.plot or _usual_plots(experiment, results):
        lines = [
            Line(result.name, result.points(plot.x, plot.y), styles[result.name])
            for result in _in_order(results, plot.curves)
        ]
        if not _is_worth_drawing(plot, lines):
            continue
        target = results[0].target
        across = target[1] if target is not None and plot.y == f"test.{target[0]}" else None
        name = _Y_NAMES.get(plot.y, plot.y.replace(".", " ").replace("_", " "))
        found.append(Chart(plot.title, _X_NAMES[plot.x], name, lines, plot.log, across, log_x=plot.log_x))
    return found


def _is_worth_drawing(plot: PlotSection, lines: Sequence[Line]) -> bool:
    """A plot that compares curves needs two of them; a quick size may run one."""
    return sum(bool(line.points) for line in lines) >= min(2, len(plot.curves or "1"))


def _in_order(results: Sequence[CurveResult], names: Sequence[str] | None) -> list[CurveResult]:
    """The plot's curves that were run, in the plot's order; without names all, in the file's."""
    if names is None:
        return list(results)
    return [result for name in names for result in results if result.name == name]


def _usual_plots(experiment: Experiment, results: Sequence[CurveResult]) -> list[PlotSection]:
    metric = _metric(experiment)
    plots = [
        PlotSection(title=f"Test {metric} by epoch", x="epoch", y=f"test.{metric}"),
        PlotSection(title="Training loss by epoch", x="epoch", y="train.loss"),
        PlotSection(title=f"Test {metric} by bytes", x="bytes.total", y=f"test.{metric}"),
    ]
    if any(run.history[-1]["link_seconds"] is not None for result in results for run in result.runs):
        plots.append(PlotSection(title=f"Test {metric} by link time", x="link_seconds", y=f"test.{metric}"))
    return plots


def _metric(experiment: Experiment) -> str:
    return (experiment.curves[0].settings.metrics or ["accuracy"])[0]


def _heads(experiment: Experiment, results: Sequence[CurveResult]) -> list[str]:
    metric, target = _metric(experiment), results[0].target
    aim = "" if target is None else f" to {target[0]} {target[1]:.4g}"
    heads = ["curve", f"best test {metric}", f"last test {metric}", "last training loss", "up", "down"]
    return [*heads, "by the paper's formula", "link time", f"rounds{aim}", f"bytes{aim}", "epsilon"]


def _figures(result: CurveResult, metric: str) -> list[str]:
    """A curve's line of the table."""
    numbers: list[tuple[MeanValue | None, Callable[[float], str]]] = [
        (result.best(f"test.{metric}"), format_number),
        (result.final(f"test.{metric}"), format_number),
        (result.final("train.loss"), format_number),
        (result.final("bytes.up"), format_bytes),
        (result.final("bytes.down"), format_bytes),
        (result.final("paper_bytes"), format_bytes),
        (result.final("link_seconds"), lambda value: f"{value:.4g} s"),
        (result.cost("round"), lambda value: f"{value:.0f}"),
        (result.cost("bytes.total"), format_bytes),
    ]
    return [result.name, *(_format(number, how) for number, how in numbers), _format_epsilon(result)]


def _real_link(one: Mapping[str, Any]) -> list[str]:
    keys = ("seconds", "link_seconds", "target_seconds", "target_link_seconds")
    seconds = ("-" if one[key] is None else f"{one[key]:.2f}" for key in keys)
    return [f"{one['curve']}, seed {one['seed']}", *seconds, "the same" if one["same_scores"] else "other"]


def _format(number: MeanValue | None, how: Callable[[float], str]) -> str:
    if number is None:
        return "-"
    return "never" if isinf(number.mean) else number.format(how)


def _format_epsilon(result: CurveResult) -> str:
    """The releases' epsilon against the label party, and end to end; empty where nothing is noisy."""
    for ledger in result.runs[0].summary.get("privacy", []):
        rows = {row["observer"]: row for row in ledger["observers"]}
        row = rows["label_party"]
        if row["releases_epsilon"] != "infinity":
            ends = row["end_to_end_epsilon"]
            whole = "infinite" if isinstance(ends, str) else f"{ends:.3g}"
            return f"{row['releases_epsilon']:.3g} of the releases, {whole} end to end (delta {ledger['delta']:g})"
    return ""
