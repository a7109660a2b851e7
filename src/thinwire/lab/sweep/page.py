"""What a sweep leaves beside its runs: settings best first as one JSON file, and a page about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from thinwire.base.format import format_bytes, format_count, format_number, format_seconds, name_score
from thinwire.job.job_file import inline
from thinwire.report.figures import curve_figures, totals_figure
from thinwire.report.folder import is_run, read_run, write_page
from thinwire.report.rendering import render_page
from thinwire.report.summary import MeanValue, RunGroup, Tile, on_what
from thinwire.storage import layout
from thinwire.storage.json_file import dump_indented_json
from thinwire.storage.run_directory import RunDirectory
from thinwire.training.result import better

COSTS = ("rounds", "bytes_all", "bytes_training", "bytes_up", "bytes_down", "link_seconds")
FIGURES = (*COSTS, "best", "delivered", "test")


def average_runs(outcomes: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(mean, standard deviation) of every figure; None where no run has it."""
    mean: dict[str, Any] = dict.fromkeys(FIGURES)
    deviation: dict[str, Any] = dict.fromkeys(FIGURES)
    for name in FIGURES:
        found = MeanValue.of([outcome[name] for outcome in outcomes if outcome[name] is not None])
        if found is not None:
            mean[name], deviation[name] = found.mean, found.deviation
    return mean, deviation


def pool_runs(runs: Sequence[Mapping[str, Any]], errors: Sequence[str] = ()) -> dict[str, Any]:
    """Runs of one kind together: means and standard deviations, for a table or for --json."""
    mean, deviation = average_runs(runs)
    reached = sum(bool(run["reached"]) for run in runs)
    return {"runs": runs, "errors": errors, "reached": reached, "mean": mean, "std": deviation}


# Which settings did best ------------------------------------------------------------------------------------------


def rank_points(points: Sequence[dict[str, Any]], metric: str, has_target: bool) -> list[dict[str, Any]]:
    """Best first; then those of which runs were pruned, and last those without a run, in the order asked for.

    To a target: what reached it with most seeds, then with fewest bytes. Without one: the delivered model's score on
    the rows that steer, then the bytes.
    """

    def key(point: dict[str, Any]) -> tuple[float, ...]:
        mean, pruned = point["mean"], len(point.get("pruned", ()))
        if mean["rounds"] is None:
            return (inf, -pruned, inf, inf)
        value = inf if mean["delivered"] is None else -better(metric) * mean["delivered"]
        sent = mean["bytes_all"]
        best = (-point["reached"] / len(point["runs"]), sent, value) if has_target else (value, sent, 0.0)
        return (pruned, *best)  # the mean of the seeds that were left is no fair one

    return sorted(points, key=key)


def describe_pruning(point: Mapping[str, Any]) -> str:
    """Which of its runs were ended early, and at which epoch; empty where none was."""
    found = [("" if one["seed"] is None else f"seed {one['seed']} ", one["epoch"]) for one in point.get("pruned", ())]
    return ", ".join(f"{seed}at epoch {epoch:.3g}" for seed, epoch in found)


def describe_ranking(metric: str, target: dict[str, Any] | None) -> str:
    """What best first means here."""
    if target is not None:
        aim = f"{name_score(target['metric'])} {target['value']:g}"
        return f"best first: reached {aim} with most seeds, then fewest bytes"
    which = "highest" if better(metric) > 0 else "lowest"
    return f"best first: {which} {name_score(metric)} of the delivered model"


# A sweep as one self-contained HTML page: the settings best first, what each value did, the curves ----------------


_MOST_DRAWN = 8  # settings with a line of their own
_COSTS: dict[str, Callable[[float], str]] = {
    "rounds": format_count,
    "bytes_all": format_bytes,
    "bytes_up": format_bytes,
    "bytes_down": format_bytes,
    "link_seconds": format_seconds,
}
_HEADS = ("rounds", "total bytes", "training up", "training down", "link time")


def render_sweep(found: Mapping[str, Any]) -> str:
    """Of what `sweep.json` holds; evaluations come from the runs' folders."""
    points: list[dict[str, Any]] = found["points"]
    metric, target = found["metric"], found["target"]
    score = name_score(metric)
    groups = [group for point in points[:_MOST_DRAWN] if (group := _group(point)) is not None]
    totals = totals_figure(groups)
    values = {
        "on_what": "" if not groups else on_what(groups[0].first),
        "tiles": _tiles(points, metric, target),
        "ranking": describe_ranking(metric, target),
        "heads": ("", f"delivered {score}", f"test {score}", *(["reached"] if target else []), *_HEADS),
        "rows": [(_name_row(point), *_cells(point, target)) for point in points],
        "axes": _axes(points, target),
        "figures": [*curve_figures(groups), *([] if totals is None else [totals])],
        "left_out": max(0, len(points) - _MOST_DRAWN),
        "errors": [error for point in points for error in point["errors"]],
        "folders": [Path(run["run_dir"]).name for point in points for run in point["runs"]],
    }
    return render_page("sweep.html", f"Sweep of {Path(found['job']).name}", values)


def format_point_name(point: Mapping[str, Any]) -> str:
    """Its settings, as people say them."""
    said = [f"{key} {format_setting(value)}" for key, value in point["settings"].items()]
    return ", ".join(said) or "the job unchanged"


def _name_row(point: Mapping[str, Any]) -> str:
    pruned = describe_pruning(point)
    return f"{format_point_name(point)} (pruned: {pruned})" if pruned else format_point_name(point)


def format_setting(value: Any) -> str:
    """As people say it: words without quotes."""
    return value if isinstance(value, str) else inline(value)


def _group(point: Mapping[str, Any]) -> RunGroup | None:
    """Runs whose folders hold what a report needs."""
    folders = [Path(run["run_dir"]) for run in point["runs"]]
    runs = tuple(read_run(folder) for folder in folders if is_run(folder))
    return RunGroup(format_point_name(point), runs) if runs else None


def _tiles(points: Sequence[Mapping[str, Any]], metric: str, target: Mapping[str, Any] | None) -> list[Tile]:
    runs = sum(len(point["runs"]) for point in points)
    found = [Tile("runs", format_count(runs), f"{len(points)} settings")]
    best = points[0]
    if not best["runs"]:
        return found
    if best["mean"]["delivered"] is not None:
        score = _shown(best, "delivered", format_number)
        found.insert(0, Tile(f"best delivered {name_score(metric)}", score, format_point_name(best)))
    sent = best["mean"]["bytes_all"]
    found.append(Tile("sent by the best", format_bytes(sent), "training and evaluation, mean over seeds"))
    if target is not None:
        reached = sum(point["reached"] for point in points)
        found.append(
            Tile("target", f"{reached} of {runs}", f"reached {name_score(target['metric'])} {target['value']:g}")
        )
    return found


def _cells(point: Mapping[str, Any], target: Mapping[str, Any] | None) -> list[str]:
    if not point["runs"]:
        return ["pruned" if point.get("pruned") else "failed"]
    reached = [f"{point['reached']} of {len(point['runs'])}"] if target else []
    costs = [_shown(point, name, how) for name, how in _COSTS.items()]
    return [_shown(point, "delivered", format_number), _shown(point, "test", format_number), *reached, *costs]


def _shown(point: Mapping[str, Any], name: str, how: Callable[[float], str]) -> str:
    mean, deviation = point["mean"][name], point["std"][name]
    return "-" if mean is None else MeanValue(mean, deviation, len(point["runs"])).format(how)


def _axes(points: Sequence[Mapping[str, Any]], target: Mapping[str, Any] | None) -> dict[str, list[tuple[str, ...]]]:
    """What each value of a key did, over all that it was combined with; only where that says more than the table."""
    keys = list(points[0]["settings"])
    return {key: _values(points, key, target) for key in keys} if len(keys) > 1 else {}


def _values(points: Sequence[Mapping[str, Any]], key: str, target: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    by_value: dict[str, list[Mapping[str, Any]]] = {}  # runs
    for point in points:
        by_value.setdefault(format_setting(point["settings"][key]), []).extend(point["runs"])
    return [(value, *_cells(pool_runs(by_value[value]), target)) for value in sorted(by_value, key=_order)]


def _order(word: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word


# What a sweep leaves beside its runs: its figures as one JSON file, and a page about them -------------------------


TABLE = "sweep.json"


def keep_sweep(
    folder: Path, job: Path, points: Sequence[dict[str, Any]], metric: str, target: dict[str, Any] | None
) -> dict[str, Any]:
    """Writes both, and returns what the JSON file holds: settings best first."""
    found = {
        "job": str(job),
        "out": str(folder),
        "metric": metric,
        "target": target,
        "report": str(folder / layout.REPORT),
        "points": rank_points(points, metric, target is not None),
    }
    write_page(render_sweep(found), folder / layout.REPORT)
    RunDirectory(folder).write(TABLE, dump_indented_json(found))
    return found
