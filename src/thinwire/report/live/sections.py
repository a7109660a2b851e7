"""The page's sections as HTML, drawn here with the report's charts: the browser only puts them in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, PackageLoader

from thinwire.base.format import format_bytes, format_number, format_seconds
from thinwire.report.figures import cosine_figure, curve_figures, time_figures, totals_figure, traffic_figures
from thinwire.report.live.health import health, log_lines
from thinwire.report.live.live_run import Board, LiveRun
from thinwire.report.privacy import gauges, list_spending
from thinwire.report.record import RunRecord
from thinwire.report.rendering import jinja_environment
from thinwire.report.summary import each_alone, format_fewer_bytes
from thinwire.report.svg.drawing import COLOURS


@cache
def _environment() -> Any:
    return jinja_environment().overlay(
        loader=ChoiceLoader([PackageLoader("thinwire.report.live"), PackageLoader("thinwire.report")])
    )


def page(board: Board, asked: Sequence[str]) -> str:
    """The whole page, with its sections as they are now: it is read without scripts too."""
    return str(_environment().get_template("page.html").render(sections=sections(board, asked)))


@dataclass(frozen=True)
class _Shown:
    """A run on the page: its key, a name that is short beside the others', and what is known of it."""

    key: str
    run: LiveRun
    name: str
    record: RunRecord | None
    style: int | None  # its lines' in the curves; None where it has none yet


def sections(board: Board, asked: Sequence[str]) -> dict[str, str]:
    """By the id of their place."""
    chosen = board.select_runs(asked)
    names = _short_names([run.name for _, run in chosen])
    shown = _with_styles(chosen, names)
    alone = each_alone([one.record for one in shown if one.record is not None])
    figures = curve_figures(alone)
    totals = totals_figure(alone) if len(alone) > 1 else None
    keys = {one.key for one in shown}
    return {
        "runs": _render("runs.html", runs=board.runs, shown=keys, root=board.root.resolve().name),
        "overview": _render("overview.html", rows=[_row(one) for one in shown]),
        "curves": _render("curves.html", figures=figures + ([] if totals is None else [totals])),
        "details": _render("details.html", runs=[_detail(one) for one in shown]),
    }


def _with_styles(chosen: Sequence[tuple[str, LiveRun]], names: Sequence[str]) -> list[_Shown]:
    """Curves number the runs that have begun."""
    shown: list[_Shown] = []
    begun = 0
    for (key, run), name in zip(chosen, names, strict=True):
        record = run.record(name)
        shown.append(_Shown(key, run, name, record, None if record is None else begun % COLOURS))
        begun += record is not None
    return shown


def _short_names(names: list[str]) -> list[str]:
    """Without the folders that all of them lie in."""
    parts = [name.split("/") for name in names]
    shared = 0
    while len(names) > 1 and all(len(one) > shared + 1 and one[shared] == parts[0][shared] for one in parts):
        shared += 1
    return ["/".join(one[shared:]) for one in parts]


def _render(template: str, **values: Any) -> str:
    return str(_environment().get_template(template).render(**values))


def _row(shown: _Shown) -> dict[str, Any]:
    """A line of the overview."""
    run, record = shown.run, shown.record
    state = run.state()
    row: dict[str, Any] = {
        "name": shown.name,
        "style": shown.style,
        "state": state,
        "silent": "",
        "go_on": run.going_on(),
        "record": record,
    }
    silent = run.silent_seconds()
    if state == "silent" and silent is not None:
        row["silent"] = f"no sign of life for {format_seconds(round(silent))}"
    if record is None:
        return row
    last = record.events[-1] if record.events else None
    value = None if last is None else last.value_at(record.metric_place)
    link = None if last is None else last.link_seconds
    best, fewer = record.best(), record.times_fewer_bytes()
    sent = sum(entry.bytes for entry in record.ledger if entry.kind != "EVALUATION")
    return row | {
        "method": record.about.method,
        "round": record.rounds,
        "rounds": record.about.rounds,
        "metric": record.metric_place.replace(".", " "),
        "value": "-" if value is None else format_number(value),
        "best": "-" if best is None else format_number(best),
        "sent": format_bytes(sent),
        "fewer": "" if fewer is None else format_fewer_bytes(fewer),
        "seconds": "-" if last is None else format_seconds(last.seconds),
        "link": "" if link is None else f"{format_seconds(link)} on the link",
        "target": _target(record),
    }


def _target(record: RunRecord) -> str:
    if record.about.target is None:
        return ""
    name, value = record.about.target
    reached = record.find_target()
    return f"{name} {value:g}: " + ("not yet" if reached is None else f"reached in round {reached.round}")


def _detail(shown: _Shown) -> dict[str, Any]:
    run, record = shown.run, shown.record
    found: dict[str, Any] = {
        "key": shown.key,
        "name": shown.name,
        "style": shown.style,
        "health": health(run, record, run.state()),
        "log": log_lines(run, record),
        "record": record,
        "figures": [],
        "gauges": [],
        "spent": [],
    }
    if record is not None:
        cosines = cosine_figure(record)
        found["figures"] = [*traffic_figures(record)[:1], *time_figures(record), *([cosines] if cosines else [])]
        found["gauges"] = gauges(record.privacy)
        found["spent"] = [
            one for one in list_spending(record.privacy) if any(row[1] != "infinite" for row in one.rows)
        ]
        found["protection"] = record.about.protection
    return found
