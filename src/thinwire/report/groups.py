"""Runs that differ in their seed alone are one line, with a band around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from thinwire.charts.lines import Point
from thinwire.report.record import Evaluation, RunRecord

__all__ = ["Group", "Number", "each_alone", "grouped"]


@dataclass(frozen=True)
class Number:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float
    count: int

    def shown(self, how: Callable[[float], str]) -> str:
        return how(self.mean) + (f" ± {how(self.deviation)}" if self.count > 1 else "")


@dataclass(frozen=True)
class Group:
    """Runs of one kind, and what to call them."""

    name: str
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        return self.runs[0]

    def number(self, of: Callable[[RunRecord], float | None]) -> Number | None:
        """None where one of the runs has none."""
        values = [of(run) for run in self.runs]
        known = [value for value in values if value is not None]
        return _number(known) if known and len(known) == len(values) else None

    def points(self, x: str, y: str) -> list[Point]:
        """One for every evaluation that all runs have."""
        found = []
        for events in zip(*(run.events for run in self.runs), strict=False):
            xs, ys = _values(events, x), _values(events, y)
            if len(xs) == len(ys) == len(events):
                mean = _number(ys)
                found.append(Point(sum(xs) / len(xs), mean.mean, mean.deviation))
        return found


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """In the order of the first run of each kind."""
    kinds: dict[str, list[RunRecord]] = {}
    for run in runs:
        alike = run.about.model_copy(update={"seed": 0, "started": "", "environment": {}})
        kinds.setdefault(alike.model_dump_json(), []).append(run)
    methods = [members[0].about.method for members in kinds.values()]
    groups = []
    for members in kinds.values():
        method = members[0].about.method
        name = method if methods.count(method) == 1 else f"{method}, {members[0].name}"
        groups.append(Group(name, tuple(members)))
    return groups


def each_alone(runs: Sequence[RunRecord]) -> list[Group]:
    """Every run by its own name."""
    return [Group(run.name, (run,)) for run in runs]


def _values(events: Sequence[Evaluation], place: str) -> list[float]:
    return [value for event in events if (value := event.value_at(place)) is not None]


def _number(values: Sequence[float]) -> Number:
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return Number(mean, sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0, len(values))
