"""A chart with its figures as a table, for those who cannot see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.charts.bars import Bars
from thinwire.charts.lines import Chart
from thinwire.charts.numbers import number_shown, short

__all__ = ["Figure", "of_bars", "of_lines"]

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
            spread = f" ± {number_shown(point.deviation)}" if point.deviation else ""
            rows.append((line.name, short(point.x), number_shown(point.y) + spread))
    return Figure(key, chart.title, chart.svg(), ("", chart.x_name, chart.y_name), tuple(rows), note)


def of_bars(key: str, bars: Bars, note: str = "") -> Figure:
    names = bars.part_names()
    rows = tuple(
        (bar.name, *(bars.shown(bar.parts.get(name, 0.0)) for name in names), bars.shown(bar.total))
        for bar in bars.bars
    )
    return Figure(key, bars.title, bars.svg(), ("", *names, "in all"), rows, note)


def _chosen(count: int) -> Sequence[int]:
    if count <= _ROWS:
        return range(count)
    return sorted({round(place * (count - 1) / (_ROWS - 1)) for place in range(_ROWS)})
