"""Bars from 1, where both sides of a ratio are equal: to the left less, to the right more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.base.format import short
from thinwire.report.svg.drawing import Axis, axis_over, box, cut, heading, picture, rule, text

__all__ = ["Ratio", "ratio_bars"]

_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 760, 210, 90, 40, 16, 8
_BELOW, _ABOVE = 0, 1


@dataclass(frozen=True)
class Ratio:
    """A row of the chart: its ratio now, and the last one."""

    name: str
    ratio: float
    last: float | None = None


def ratio_bars(title: str, rows: Sequence[Ratio]) -> str:
    height = _TOP + len(rows) * (_BAR + _GAP) + 30
    axis = axis_over([1.0, *(row.ratio for row in rows), *(row.last for row in rows if row.last)], log=True)
    parts = [heading(_LEFT, title)]
    for mark in axis.marks:
        place = _along(axis, mark)
        parts.append(rule(place, _TOP - 6, place, height - 26, "grid"))
        parts.append(text(place, height - 10, short(mark), "middle"))
    for number, row in enumerate(rows):
        parts += _bar(axis, row, _TOP + number * (_BAR + _GAP))
    one = _along(axis, 1.0)
    return picture(title, _WIDTH, height, [*parts, rule(one, _TOP - 6, one, height - 26)])


def _bar(axis: Axis, row: Ratio, top: float) -> list[str]:
    start, end = sorted((_along(axis, 1.0), _along(axis, row.ratio)))
    style = _BELOW if row.ratio <= 1 else _ABOVE
    middle = top + _BAR - 4
    parts = [
        text(_LEFT - 8, middle, cut(row.name, _LEFT - 10), "end", strong=True),
        box(start, top, max(end - start, 1), _BAR, style),
        text(end + 6, middle, f"{row.ratio:.3g}x", strong=True),
    ]
    if row.last:
        place = _along(axis, row.last)
        parts.append(
            f'<line class="axis" x1="{place:.1f}" y1="{top - 2}" x2="{place:.1f}" y2="{top + _BAR + 2}" '
            f'stroke="#1a1a1a" stroke-width="2"><title>last: {row.last:.3g}x</title></line>'
        )
    return parts


def _along(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)
