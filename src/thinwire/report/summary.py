"""Runs of one kind as one group over their seeds, and a report's first lines about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TypeVar

from thinwire.base.format import (
    format_bytes,
    format_count,
    format_number,
    format_score,
    format_seconds,
    name_place,
    name_score,
)
from thinwire.report.record import CoefficientTable, RunInfo, RunRecord
from thinwire.report.svg.line_chart import Point

T = TypeVar("T")


@dataclass(frozen=True)
class MeanValue:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> MeanValue | None:
        """None where there are no values, or one of them is missing."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        mean = sum(known) / len(known)
        squares = sum((value - mean) ** 2 for value in known)
        return cls(mean, sqrt(squares / (len(known) - 1)) if len(known) > 1 else 0.0, len(known))

    def format(self, how: Callable[[float], str]) -> str:
        return how(self.mean) + (f" ± {how(self.deviation)}" if self.count > 1 else "")


@dataclass(frozen=True)
class RunGroup:
    """Runs of one kind, and what to call them."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    def number(self, of: Callable[[RunRecord], float | None]) -> MeanValue | None:
        """None where one of the runs has none."""
        return MeanValue.of([of(run) for run in self.runs])

    def points(self, x: str, y: str) -> list[Point]:
        """One for every evaluation that all runs have."""
        found = []
        for events in zip(*(run.events for run in self.runs), strict=False):
            across, up = (MeanValue.of([event.value_at(place) for event in events]) for place in (x, y))
            if across is not None and up is not None:
                found.append(Point(across.mean, up.mean, up.deviation))
        return found


def group_runs(runs: Sequence[RunRecord]) -> list[RunGroup]:
    """In the order of the first run of each kind."""
    kinds: dict[str, list[RunRecord]] = {}
    for run in runs:
        kinds.setdefault(_identify_kind(run.about), []).append(run)
    methods = [members[0].about.method for members in kinds.values()]
    groups = []
    for members in kinds.values():
        method = members[0].about.method
        name = method if methods.count(method) == 1 else f"{method}, {members[0].name}"
        groups.append(RunGroup(name, tuple(members)))
    return groups


def _identify_kind(about: RunInfo) -> str:
    """The same for runs that differ in their seed alone."""
    return about.model_copy(update={"seed": 0, "started": "", "environment": {}}).model_dump_json()


def collect_seeds(found: Iterable[T], about: Callable[[T], RunInfo | None]) -> list[list[T]]:
    """Together what differs in its seed alone, in the order of the first of each; repeats of a seed stay apart."""
    kinds: dict[str, list[T]] = {}
    for place, one in enumerate(found):
        info = about(one)
        kinds.setdefault(str(place) if info is None else _identify_kind(info), []).append(one)
    groups: list[list[T]] = []
    for members in kinds.values():
        seeds = {info.seed for one in members if (info := about(one)) is not None}
        groups += [members] if len(seeds) == len(members) else [[one] for one in members]
    return groups


def name_group(runs: Sequence[RunRecord]) -> RunGroup:
    """One run by its own name, several seeds by their method."""
    first = runs[0]
    name = first.name if len(runs) == 1 else f"{first.about.method}, {len(runs)} seeds"
    return RunGroup(name, tuple(run for run in runs if run.events) or tuple(runs))


_STATES = {"running": "still running", "finished": "finished", "stopped": "stopped early"}


@dataclass(frozen=True)
class Tile:
    """A figure to be seen first."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True)
class Comparison:
    """A row for each kind of run."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tabulate_coefficients(table: CoefficientTable) -> Comparison:
    """A party's own, with errors where they are known."""
    ratio = {"binary_cross_entropy": "odds ratio", "poisson": "rate ratio"}.get(table.loss, "")
    heads = ("column", "coefficient", "in own units", "standard error", "z", "p", "95 % from", "to", ratio, "")
    rows = []
    for row in table.rows:
        figures = (row.coefficient, row.in_units, row.error, row.z, row.p, row.low, row.high)
        shown = ("-" if one is None else format_number(one) for one in (*figures, row.ratio if ratio else None))
        rows.append((row.column, *shown, row.note))
    said = f"; {table.note}" if table.note else ""
    return Comparison(f"{table.party}, by {table.loss.replace('_', ' ')}{said}", heads, tuple(rows))


def tiles(run: RunRecord) -> list[Tile]:
    """The metric, the bytes, the rounds, the time, the target."""
    found = [_score_tile(run), _bytes_tile(run), _rounds_tile(run), _time_tile(run), _target_tile(run)]
    return [tile for tile in found if tile is not None]


def _score_tile(run: RunRecord) -> Tile | None:
    place, tested = run.metric_place, run.last(f"test.{run.about.metric}")
    last, best = run.last(place), run.best()
    if last is None or best is None:
        return None
    if place.startswith("validation.") and tested is not None:
        model = "delivered model" if run.quality is None else f"model after round {format_count(run.quality.round)}"
        name = name_place(f"test.{run.about.metric}")
        return Tile(name, format_score(tested), f"{model}; {name_place(place)} {format_score(best)}")
    return Tile(name_place(place), format_score(last), f"best {format_score(best)}")


def _bytes_tile(run: RunRecord) -> Tile:
    fewer = run.times_fewer_bytes()
    beside = "" if fewer is None else f": {format_fewer_bytes(fewer)}"
    training = f"training {format_bytes(run.training_bytes)}{beside}"
    return Tile("sent in total", format_bytes(run.total_bytes()), training)


def _rounds_tile(run: RunRecord) -> Tile:
    about = run.about
    epochs, planned = (f"{rounds / about.rounds_per_epoch:.4g}" for rounds in (run.rounds, about.rounds))
    whole = f"{epochs} epochs of" if epochs == planned else f"{epochs} of {planned} epochs of"
    return Tile("rounds", format_count(run.rounds), f"{whole} {format_count(about.rows)} rows")


def _time_tile(run: RunRecord) -> Tile | None:
    if not run.events:
        return None
    link, here = run.events[-1].link_seconds, format_seconds(run.events[-1].seconds)
    if link is None:
        return Tile("time", here, "on this machine")
    return Tile("link time", format_seconds(link), f"{here} on this machine")


def _target_tile(run: RunRecord) -> Tile | None:
    if run.about.target is None:
        return None
    name, value = run.about.target
    reached = run.find_target()
    missed = "not yet" if run.state == "running" else "not reached"
    said = missed if reached is None else f"round {format_count(reached.round)}"
    after = "" if reached is None else f", after {format_bytes(reached.bytes.total)}"
    return Tile("target", said, f"{name_score(name)} {value:g}{after}")


def sentence(run: RunRecord) -> str:
    """The run in one sentence."""
    where = "" if run.about.me is None else f" This report shows what {run.about.me} knows about the run."
    return f"{run.about.method} on {on_what(run)}; {_STATES[run.state]}.{where}"


def on_what(run: RunRecord) -> str:
    """Rows and parties."""
    about = run.about
    features = sum(party.role == "feature" for party in about.parties)
    parties = f"{features} feature part{'ies' if features != 1 else 'y'} and the label party {about.label_party}"
    validation = f", {format_count(about.validation_rows)} validation" if about.validation_rows else ""
    return f"{format_count(about.rows)} training{validation} and {format_count(about.test_rows)} test rows, {parties}"


def comparison(groups: Sequence[RunGroup]) -> Comparison:
    """To the target where there is one, else to the end."""
    target = next((run.about.target for group in groups for run in group.runs if run.about.target), None)
    heads = ["", *_name_scores(groups[0].first)]
    heads += ["reached"] if target else []
    heads += ["rounds", "total bytes", "training up", "training down", "times fewer than svfl", "time", "link time"]
    rows = [_row(group, target is not None) for group in groups]
    where = "over the whole run" if target is None else f"to {name_score(target[0])} {target[1]:g}, or to the end"
    seeds = "; means and standard deviations over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    return Comparison(f"Costs {where}{seeds}", tuple(heads), tuple(rows))


def _name_scores(run: RunRecord) -> tuple[str, str]:
    steers, tested = name_place(run.metric_place), name_place(f"test.{run.about.metric}")
    return (tested if run.metric_place.startswith("validation.") else f"last {steers}"), f"best {steers}"


def _find_final_score(run: RunRecord) -> float | None:
    """On test rows; where there are none, on those that steer."""
    tested = run.last(f"test.{run.about.metric}")
    return run.last(run.metric_place) if tested is None else tested


def _row(group: RunGroup, to_target: bool) -> tuple[str, ...]:
    def cell(of: Callable[[RunRecord], float | None], how: Callable[[float], str]) -> str:
        number = group.number(of)
        return "-" if number is None else number.format(how)

    def cost(place: str) -> str:
        return cell(lambda run: run.last(place, to_target), _HOW[place])

    reached = sum(run.find_target() is not None for run in group.runs)
    return (
        group.name,
        cell(_find_final_score, format_score),
        cell(RunRecord.best, format_score),
        *([f"{reached} of {len(group.runs)}"] if to_target else []),
        cost("round"),
        cell(lambda run: run.total_bytes(to_target), format_bytes),
        *map(cost, ("bytes.up", "bytes.down")),
        cell(RunRecord.times_fewer_bytes, lambda value: f"{value:.3g}"),
        *map(cost, ("seconds", "link_seconds")),
    )


_HOW = {
    "round": format_count,
    "bytes.up": format_bytes,
    "bytes.down": format_bytes,
    "seconds": format_seconds,
    "link_seconds": format_seconds,
}


def format_fewer_bytes(times: float) -> str:
    """Against what svfl sends in as many rounds."""
    if 0.99 <= times <= 1.01:
        return "as many as svfl"
    return f"{times:.3g} times fewer than svfl" if times > 1 else f"{1 / times:.3g} times as many as svfl"
