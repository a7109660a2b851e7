"""A sweep as one self-contained HTML page: the settings best first, what each value did, the curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire.base.format import format_bytes, format_count, format_number, format_seconds
from thinwire.job.toml_text import inline
from thinwire.lab.sweep.ranking import ranking_said
from thinwire.lab.sweep.tallying import averaged
from thinwire.report.figures import Figure, curve_figures, totals_figure
from thinwire.report.reading import is_run, read_run
from thinwire.report.rendering import render_page
from thinwire.report.summary import Group, Tile, on_what

_MOST_DRAWN = 8  # settings with a line of their own
_COSTS: dict[str, Callable[[float], str]] = {
    "rounds": format_count,
    "bytes_up": format_bytes,
    "bytes_down": format_bytes,
    "link_seconds": format_seconds,
}
_HEADS = ("rounds", "bytes up", "bytes down", "link time")


def sweep_html(found: Mapping[str, Any]) -> str:
    """Of what `sweep.json` holds; evaluations come from the runs' folders."""
    points: list[dict[str, Any]] = found["points"]
    metric, target = found["metric"], found["target"]
    groups = [group for point in points[:_MOST_DRAWN] if (group := _group(point)) is not None]
    values = {
        "on_what": "" if not groups else on_what(groups[0].first),
        "tiles": _tiles(points, metric, target),
        "ranking": ranking_said(metric, target),
        "heads": ("", *_heads(metric, target)),
        "rows": [(point_name(point), *_cells(point, target)) for point in points],
        "axes": _axes(points, metric, target),
        "figures": _figures(groups),
        "left_out": max(0, len(points) - _MOST_DRAWN),
        "errors": [error for point in points for error in point["errors"]],
        "folders": [Path(run["run_dir"]).name for point in points for run in point["runs"]],
    }
    return render_page("sweep.html", f"Sweep of {Path(found['job']).name}", values)


def point_name(point: Mapping[str, Any]) -> str:
    """Its settings, as people say them."""
    said = [f"{key} {_word(value)}" for key, value in point["settings"].items()]
    return ", ".join(said) or "the job as it is"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else inline(value)


def _group(point: Mapping[str, Any]) -> Group | None:
    """Runs whose folders hold what a report needs."""
    folders = [Path(run["run_dir"]) for run in point["runs"]]
    runs = tuple(read_run(folder) for folder in folders if is_run(folder))
    return Group(point_name(point), runs) if runs else None


def _tiles(points: Sequence[Mapping[str, Any]], metric: str, target: Mapping[str, Any] | None) -> list[Tile]:
    runs = sum(len(point["runs"]) for point in points)
    found = [Tile("runs", format_count(runs), f"{len(points)} settings")]
    best = points[0]
    if not best["runs"]:
        return found
    if best["mean"]["best"] is not None:
        found.insert(0, Tile(f"best {metric}", _shown(best, "best", format_number), point_name(best)))
    sent = best["mean"]["bytes_up"] + best["mean"]["bytes_down"]
    found.append(Tile("sent by the best", format_bytes(sent), "up and down, mean over seeds"))
    if target is not None:
        reached = sum(point["reached"] for point in points)
        found.append(Tile("target", f"{reached} of {runs}", f"reached {target['metric']} {target['value']:g}"))
    return found


def _figures(groups: Sequence[Group]) -> list[Figure]:
    totals = totals_figure(groups)
    return [*curve_figures(groups), *([] if totals is None else [totals])]


def _heads(metric: str, target: Mapping[str, Any] | None) -> list[str]:
    return [f"best {metric}", f"last {metric}", *(["reached"] if target else []), *_HEADS]


def _cells(point: Mapping[str, Any], target: Mapping[str, Any] | None) -> list[str]:
    if not point["runs"]:
        return ["failed"]
    reached = [f"{point['reached']} of {len(point['runs'])}"] if target else []
    costs = [_shown(point, name, how) for name, how in _COSTS.items()]
    return [_shown(point, "best", format_number), _shown(point, "last", format_number), *reached, *costs]


def _shown(point: Mapping[str, Any], name: str, how: Callable[[float], str]) -> str:
    mean, deviation = point["mean"][name], point["std"][name]
    if mean is None:
        return "-"
    return how(mean) + (f" ± {how(deviation)}" if len(point["runs"]) > 1 else "")


def _axes(points: Sequence[Mapping[str, Any]], metric: str, target: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What each value of a key did, over all that it was combined with; only where that says more than the table."""
    keys = list(points[0]["settings"])
    if len(keys) < 2:
        return []
    return [
        {"key": key, "heads": ("", *_heads(metric, target)), "rows": _values(points, key, target)} for key in keys
    ]


def _values(points: Sequence[Mapping[str, Any]], key: str, target: Mapping[str, Any] | None) -> list[tuple[str, ...]]:
    by_value: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        by_value.setdefault(_word(point["settings"][key]), []).append(point)
    rows = []
    for value in sorted(by_value, key=_order):
        runs = [run for point in by_value[value] for run in point["runs"]]
        mean, deviation = averaged(runs)
        reached = sum(bool(run["reached"]) for run in runs)
        pooled = {"runs": runs, "reached": reached, "mean": mean, "std": deviation}
        rows.append((value, *_cells(pooled, target)))
    return rows


def _order(word: str) -> tuple[int, float, str]:
    """Numbers by size, before words."""
    try:
        return 0, float(word), word
    except ValueError:
        return 1, 0.0, word
