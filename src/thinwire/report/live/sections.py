"""The page's sections as HTML, drawn here with the report's charts: the browser only puts them in their places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import ChoiceLoader, PackageLoader

from thinwire.base.format import format_seconds, name_place
from thinwire.report.figures import cosine_figure, curve_figures, time_figures, totals_figure, traffic_figures
from thinwire.report.live.live_run import MOST_SHOWN, Board, LiveRun, LiveState
from thinwire.report.record import RunRecord
from thinwire.report.rendering import gauges, is_bounded, jinja_environment
from thinwire.report.summary import RunGroup, collect_seeds, name_group, tiles
from thinwire.report.svg.drawing import COLOURS
from thinwire.storage.events import sentence

_LINES = 40
_HERE = {
    "connected": "connected",
    "left": "finished",
    "paused": "stopped",
    "disconnected": "away",
    "unreached": "does not answer",
}
_GONE = ("disconnected", "unreached")
_TROUBLE = frozenset(
    ("waiting", "disk_full", "files_full", "checkpoint_failed", "refused", "denied", "damaged", "replay_differs")
)


@dataclass(frozen=True)
class Health:
    """One party as this folder knows it."""

    party: str
    state: str
    since: str  # time of day, UTC
    good: bool
    more: str = ""


def health(run: LiveRun, record: RunRecord | None, state: LiveState) -> list[Health]:
    """Peers by their last word; the folder's own party, or all simulated ones, by the run's state."""
    me = record.about.me if record is not None else next((str(line.get("party")) for line in run.log), None)
    last: dict[str, Health] = {}
    starts: dict[str, int] = {}
    for line in run.log:
        peer, event = line.get("peer"), str(line.get("event"))
        if not isinstance(peer, str):
            continue
        if event in _GONE and peer in last and last[peer].state == "stopped":
            continue  # as it said
        if event in _HERE:
            starts[peer] = starts.get(peer, 0) + (event == "connected")
            last[peer] = Health(peer, _HERE[event], _clock(line), event in ("connected", "left"))
        elif event in _TROUBLE and peer in last:
            last[peer] = replace(last[peer], good=False, more=event.replace("_", " "))
    good = state in ("running", "finished")
    if record is not None and me is None:
        return [Health(party.name, state, "", good) for party in record.about.parties]
    for peer, connections in starts.items():
        if connections > 1:
            last[peer] = replace(last[peer], more=f"connected {connections} times")
    mine = [] if me is None else [Health(me, state, "", good, "this folder")]
    return mine + [one for _, one in sorted(last.items())]


def log_lines(run: LiveRun, record: RunRecord | None) -> list[tuple[str, str]]:
    """(time, sentence), the newest last; a simulated run has its evaluations."""
    lines = [(_clock(line), said) for line in run.log if (said := sentence(line)) is not None]
    if not lines and record is not None:
        place = record.metric_place
        for event in record.events[-_LINES:]:
            value = event.value_at(place)
            said = "" if value is None else f"{name_place(place)} {value:.4g}"
            lines.append((f"round {event.round}", said))
    return lines[-_LINES:]


def _clock(line: dict[str, object]) -> str:
    return str(line.get("time", ""))[11:19]


# The sections -----------------------------------------------------------------------------------------------------


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
    kind: int | None  # whose line is its own in the curves; None where it has none yet

    @property
    def style(self) -> int | None:
        return None if self.kind is None else self.kind % COLOURS


def sections(board: Board, asked: Sequence[str]) -> dict[str, str]:
    """By the id of their place."""
    chosen = board.select_runs(asked)
    baseline = _find_baseline(board, [key for key, _ in chosen])
    chosen.sort(key=lambda pair: pair[0] not in baseline)
    names = _short_names([run.name for _, run in chosen])
    shown, groups = _with_kinds(chosen, names)
    figures = curve_figures(groups)
    totals = totals_figure(groups) if len(groups) > 1 else None
    choices = _list_runs(board, [one.key for one in shown], baseline)
    return {
        "live": _describe_activity(shown, len(board.runs)),
        "runs": _render("runs.html", root=board.root.resolve().name, **choices),
        "overview": _render("overview.html", rows=[_row(one) for one in _put_live_first(shown)]),
        "curves": _render("curves.html", figures=figures + ([] if totals is None else [totals])),
        "details": _render("details.html", runs=[_detail(one, shown) for one in _select_details(shown)]),
    }


def _put_live_first(shown: Sequence[_Shown]) -> list[_Shown]:
    return sorted(shown, key=lambda one: not one.run.is_live())


def _describe_activity(shown: Sequence[_Shown], runs: int) -> str:
    if any(one.run.is_live() for one in shown):
        return "Live."
    return "Nothing is running." if len(shown) == runs else "None of the runs shown is running."


def _find_baseline(board: Board, shown: Sequence[str]) -> list[str]:
    """All seeds of what the runs shown are compared with; none where there is nothing else."""
    kinds = board.list_kinds()
    found = board.find_baseline(shown[0]) if shown else None
    return next((keys for keys in kinds if found in keys), []) if len(kinds) > 1 else []


def _list_runs(board: Board, shown: Sequence[str], baseline: Sequence[str]) -> dict[str, Any]:
    """Seeds of one method together; the baseline first, which is offered where it is not shown."""
    runs, kinds = board.runs, board.list_kinds()
    kinds.sort(key=lambda keys: keys != baseline)
    asked = [*baseline, *shown][:MOST_SHOWN]
    return {
        "kinds": [list(zip(keys, _name_choices([runs[key] for key in keys]), strict=True)) for keys in kinds],
        "baseline": set(baseline),
        "shown": set(shown),
        "compare": "" if set(baseline) & set(shown) or not baseline else urlencode([("run", key) for key in asked]),
    }


def _name_choices(runs: Sequence[LiveRun]) -> list[tuple[str, str]]:
    """(name, what of it is written): one run by its name; seeds by folder and method, written once, and seed."""
    if len(runs) == 1:
        return [(runs[0].name, runs[0].name)]
    found: list[tuple[str, str]] = []
    before = ""
    for run in runs:
        about = run.about
        place, seed = "".join(run.name.rpartition("/")[:2]), ""
        if about is not None:
            place, seed = place + about.method, f"seed {about.seed}"
        name = f"{place}, {seed}"
        found.append((name, seed if place == before else name))
        before = place
    return found


def _select_details(shown: Sequence[_Shown]) -> list[_Shown]:
    """Of the seeds of one kind one that runs, or the first."""
    found: dict[str | int, _Shown] = {}
    for one in _put_live_first(shown):
        found.setdefault(one.key if one.kind is None else one.kind, one)
    return [one for one in shown if one in found.values()]


def _with_kinds(chosen: Sequence[tuple[str, LiveRun]], names: Sequence[str]) -> tuple[list[_Shown], list[RunGroup]]:
    """Curves number the groups of runs that have begun; seeds of one method have one line and one colour."""
    shown = [_Shown(key, run, name, run.record(name), None) for (key, run), name in zip(chosen, names, strict=True)]
    begun = collect_seeds((one.record for one in shown if one.record is not None), lambda record: record.about)
    kinds = {record.name: kind for kind, records in enumerate(begun) for record in records}
    return [replace(one, kind=kinds.get(one.name)) for one in shown], [name_group(records) for records in begun]


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
    state, silent = shown.run.state(), shown.run.silent_seconds()
    return {
        "name": shown.name,
        "style": shown.style,
        "state": state,
        "silent": f"no activity for {format_seconds(round(silent or 0))}" if state == "silent" else "",
        "go_on": shown.run.going_on(),
        "record": shown.record,
        "tiles": [] if shown.record is None else [one for one in tiles(shown.record) if one.name != "rounds"],
    }


def _detail(shown: _Shown, beside: Sequence[_Shown]) -> dict[str, Any]:
    run, record = shown.run, shown.record
    seeds = 1 if shown.kind is None else sum(one.kind == shown.kind for one in beside)
    found: dict[str, Any] = {
        "key": shown.key,
        "name": shown.name,
        "style": shown.style,
        "seeds": seeds,
        "health": health(run, record, run.state()),
        "log": log_lines(run, record),
        "record": record,
    }
    if record is None:
        return found
    cosines = cosine_figure(record)
    return found | {
        "figures": [*traffic_figures(record)[:1], *time_figures(record), *([cosines] if cosines else [])],
        "gauges": gauges(record.privacy),
        "spent": list(filter(is_bounded, record.privacy)),
    }
