"""Line charts as SVG text: lines with a band of one standard deviation; no scripts, no fonts of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from thinwire.reproduce.statistics import Point
from thinwire.reproduce.ticks import Axis, axis_over, short

__all__ = ["Chart", "Line"]

# Okabe and Ito's colours, which people with colour blindness can tell apart; dashes tell the next round of them.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
_DASHES = ("", "7 4", "2 3")
_WIDTH, _HEIGHT = 620, 350
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 18, 34, 52
_FAR = 20  # lines that end this many times further than others need a logarithmic x axis
_FEW = 4
_LEGEND_ROW, _SIGN = 19, 6.6  # pixels of a legend's row, and of a letter in it


@dataclass(frozen=True)
class Line:
    """A named line of points."""

    name: str
    points: Sequence[Point]
    style: int  # which colour and dash; the same name has the same in every chart of a report


@dataclass(frozen=True)
class Chart:
    """Lines over one x axis, and a legend below."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    log: bool = False
    across: float | None = None  # a target, as a thin line

    def svg(self) -> str:
        """The whole chart as one element."""
        lines = [line for line in self.lines if line.points]
        x, y = self._axes(lines)
        if x.log:  # before the first byte there is no place on it
            lines = [Line(line.name, [point for point in line.points if point.x > 0], line.style) for line in lines]
        legend, legend_height = _legend(lines)
        height = _HEIGHT + legend_height
        name = escape(self.title)
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" aria-label="{name}" font-family="sans-serif" font-size="12">',
            f"<title>{name}</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
            f'<text x="{_LEFT}" y="20" font-size="14" font-weight="600" fill="#1a1a1a">{name}</text>',
            *self._grid(x, y),
            *(part for line in lines for part in _band(line, x, y)),
            *(_path(line, x, y) for line in lines),
            *self._target(y),
            *legend,
            "</svg>",
        ]
        return "\n".join(parts)

    def _axes(self, lines: Sequence[Line]) -> tuple[Axis, Axis]:
        xs = [point.x for line in lines for point in line.points]
        spread = [
            value
            for line in lines
            for point in _shown(line, self.log)
            for value in ((point.y,) if self.log else (point.y - point.deviation, point.y + point.deviation))
        ]
        across = [] if self.across is None else [self.across]
        ends = [line.points[-1].x for line in lines]
        far_apart = bool(ends) and max(ends) > _FAR * min(ends) > 0
        x = axis_over(xs, log=True) if far_apart else axis_over([0.0, *xs])
        return x, axis_over([*spread, *across], log=self.log)

    def _grid(self, x: Axis, y: Axis) -> list[str]:
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = []
        for mark in y.marks:
            place = _down(y, mark)
            parts.append(f'<line x1="{_LEFT}" y1="{place:.1f}" x2="{right}" y2="{place:.1f}" stroke="#e3e3e3"/>')
            parts.append(_text(_LEFT - 8, place + 4, short(mark), "end"))
        for mark in x.marks:
            place = _along(x, mark)
            parts.append(f'<line x1="{place:.1f}" y1="{bottom}" x2="{place:.1f}" y2="{bottom + 5}" stroke="#555"/>')
            parts.append(_text(place, bottom + 19, short(mark), "middle"))
        parts.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#555"/>')
        parts.append(f'<line x1="{_LEFT}" y1="{_TOP}" x2="{_LEFT}" y2="{bottom}" stroke="#555"/>')
        parts.append(_text((_LEFT + right) / 2, bottom + 40, self.x_name, "middle", "#1a1a1a"))
        middle = (_TOP + bottom) / 2
        parts.append(
            f'<text transform="translate(16 {middle:.1f}) rotate(-90)" text-anchor="middle" '
            f'fill="#1a1a1a">{escape(self.y_name)}</text>'
        )
        return parts

    def _target(self, y: Axis) -> list[str]:
        if self.across is None:
            return []
        right, place = _WIDTH - _RIGHT, _down(y, self.across)
        return [
            f'<line x1="{_LEFT}" y1="{place:.1f}" x2="{right}" y2="{place:.1f}" stroke="#1a1a1a" '
            'stroke-width="1" stroke-dasharray="1 4"/>',
            f'<text x="{right}" y="{place + 15:.1f}" text-anchor="end" fill="#1a1a1a" stroke="#ffffff" '
            f'stroke-width="3" paint-order="stroke">target {self.across:.4g}</text>',
        ]


def _shown(line: Line, log: bool) -> Sequence[Point]:
    """What the y axis must hold: a start before any training would flatten all that follows."""
    return line.points if log or len(line.points) < _FEW else line.points[1:]


def _band(line: Line, x: Axis, y: Axis) -> list[str]:
    """One standard deviation up and down, where there are several seeds."""
    if not any(point.deviation for point in line.points):
        return []
    upper = [(_along(x, p.x), _down(y, p.y + p.deviation)) for p in line.points]
    lower = [(_along(x, p.x), _down(y, p.y - p.deviation)) for p in line.points]
    outline = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
    return [f'<polygon points="{outline}" fill="{_colour(line.style)}" fill-opacity="0.13"/>']


def _path(line: Line, x: Axis, y: Axis) -> str:
    places = " ".join(f"{_along(x, p.x):.1f},{_down(y, p.y):.1f}" for p in line.points)
    name = f"<title>{escape(line.name)}</title>"
    return f'<polyline points="{places}" fill="none" {_stroke(line.style)}>{name}</polyline>'


def _legend(lines: Sequence[Line]) -> tuple[list[str], int]:
    """A sample and a name for each line, as many in a row as fit."""
    parts: list[str] = []
    column, row = float(_LEFT), 0
    for line in lines:
        width = 40 + _SIGN * len(line.name) + 14
        if column + width > _WIDTH and column > _LEFT:
            column, row = float(_LEFT), row + 1
        place = _HEIGHT + 6 + row * _LEGEND_ROW
        parts.append(
            f'<line x1="{column:.1f}" y1="{place}" x2="{column + 28:.1f}" y2="{place}" {_stroke(line.style)}/>'
        )
        parts.append(_text(column + 34, place + 4, line.name, "start", "#1a1a1a"))
        column += width
    return parts, (row + 1) * _LEGEND_ROW if lines else 0


def _stroke(style: int) -> str:
    dash = _DASHES[style // len(_COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_colour(style)}" stroke-width="2" stroke-linejoin="round"{dashed}'


def _colour(style: int) -> str:
    return _COLOURS[style % len(_COLOURS)]


def _text(x: float, y: float, said: str, anchor: str, fill: str = "#444") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(said)}</text>'


def _along(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _down(axis: Axis, value: float) -> float:
    place = min(1.0, max(0.0, axis.place(value)))
    return _HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM)
