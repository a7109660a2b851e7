"""Line charts as SVG text: lines with a band of one standard deviation; no scripts, no fonts of their own.

Each line carries its values, so that charts.js can show them under the pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import dropwhile

from thinwire.base.format import format_number, short
from thinwire.report.svg.drawing import Axis, axis_over, cut, fill_style, heading, legend, picture, rule, stroke, text

_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 18, 34, 52
_FAR = 20  # lines that end this many times further than others need a logarithmic x axis
_FEW = 4
_MOST_POINTS = 400  # of a line as it is drawn


@dataclass(frozen=True)
class Point:
    """Where something stands on the x axis, and its values' mean and deviation over seeds."""

    x: float
    y: float
    deviation: float = 0.0


@dataclass(frozen=True)
class Line:
    """A named line of points."""

    name: str
    points: Sequence[Point]
    style: int  # which colour and dash; the same name has the same in every chart of a report


@dataclass(frozen=True)
class Size:
    """In pixels, without the legend."""

    width: int
    height: int


FULL = Size(620, 350)
HALF = Size(440, 280)  # two beside each other on a wide screen, one on a phone


@dataclass(frozen=True)
class Chart:
    """Lines over one x axis, and a legend below."""

    title: str
    x_name: str
    y_name: str
    lines: Sequence[Line]
    log: bool = False
    across: float | None = None  # a target, as a thin line
    size: Size = FULL
    log_x: bool = False  # whatever the lines; those that end far apart have a logarithmic x axis in any case
    warm_up: int = 1  # first points of a long line that the y axis need not hold: a start before any training

    def svg(self) -> str:
        """The whole chart as one element."""
        lines = [Line(line.name, _thinned(line.points), line.style) for line in self.lines if line.points]
        x, y = self._axes(lines)
        if x.log:  # before the first byte there is no place on it
            lines = [Line(line.name, [point for point in line.points if point.x > 0], line.style) for line in lines]
        entries = [(line.name, line.style) for line in lines if len(self.lines) > 1]
        below, height = legend(entries, _LEFT, self.size.height, self.size.width)
        title = cut(self.title, (self.size.width - _LEFT) / 1.2)
        parts = [
            heading(_LEFT, title),
            *self._grid(x, y),
            *(self._series(line, x, y) for line in lines),
            *self._target(y),
            *below,
        ]
        return picture(self.title, self.size.width, self.size.height + height, parts, self._says(), self.x_name)

    def _says(self) -> str:
        """For those who hear it: where each line ends."""
        ends = [f"{line.name} ends at {line.points[-1].y:.4g}" for line in self.lines if line.points]
        return f"{self.y_name} by {self.x_name}. " + "; ".join(ends[:8])

    def _axes(self, lines: Sequence[Line]) -> tuple[Axis, Axis]:
        xs = [point.x for line in lines for point in line.points]
        spread = self._spread([self._shown(line) for line in lines])
        if len(set(spread)) == 1:  # a start that is left out would leave a level line on an axis of its own
            spread = self._spread([line.points for line in lines])
        across = [] if self.across is None else [self.across]
        ends = [line.points[-1].x for line in lines]
        far_apart = bool(ends) and max(ends) > _FAR * min(ends) > 0
        x = axis_over(xs, log=True) if self.log_x or far_apart else axis_over([0.0, *xs])
        return x, axis_over([*spread, *across], log=self.log)

    def _spread(self, lines: Sequence[Sequence[Point]]) -> list[float]:
        """What a y axis must hold."""
        return [
            value
            for points in lines
            for point in points
            for value in ((point.y,) if self.log else (point.y - point.deviation, point.y + point.deviation))
        ]

    def _shown(self, line: Line) -> Sequence[Point]:
        """What the y axis must hold: a start before any training would flatten all that follows."""
        return line.points if self.log or len(line.points) < _FEW else line.points[self.warm_up :]

    def _grid(self, x: Axis, y: Axis) -> list[str]:
        right, bottom = self.size.width - _RIGHT, self.size.height - _BOTTOM
        parts = []
        for mark in y.marks:
            place = self._down(y, mark)
            parts.append(rule(_LEFT, place, right, place, "grid"))
            parts.append(text(_LEFT - 8, place + 4, short(mark), "end"))
        for mark in x.marks:
            place = self._along(x, mark)
            parts.append(rule(place, bottom, place, bottom + 5))
            parts.append(text(place, bottom + 19, short(mark), "middle"))
        parts += [rule(_LEFT, bottom, right, bottom), rule(_LEFT, _TOP, _LEFT, bottom)]
        parts.append(text((_LEFT + right) / 2, bottom + 40, self.x_name, "middle", strong=True))
        middle = (_TOP + bottom) / 2
        parts.append(
            f'<text class="ink" transform="translate(16 {middle:.1f}) rotate(-90)" text-anchor="middle" '
            f'fill="#1a1a1a">{escape(self.y_name)}</text>'
        )
        return parts

    def _target(self, y: Axis) -> list[str]:
        if self.across is None:
            return []
        right, place = self.size.width - _RIGHT, self._down(y, self.across)
        return [
            f'<line class="target" x1="{_LEFT}" y1="{place:.1f}" x2="{right}" y2="{place:.1f}" stroke="#1a1a1a" '
            'stroke-width="1" stroke-dasharray="1 4"/>',
            f'<text class="ink halo" x="{right}" y="{place + 15:.1f}" text-anchor="end" fill="#1a1a1a" '
            f'stroke="#ffffff" stroke-width="3" paint-order="stroke">target {self.across:.4g}</text>',
        ]

    def _band(self, line: Line, x: Axis, y: Axis) -> list[str]:
        """One standard deviation up and down, where there are several seeds."""
        # A start outside the axes has no band: it would be a wedge along the edge.
        points = list(dropwhile(lambda point: not 0 <= y.place(point.y) <= 1, line.points))
        if not any(point.deviation for point in points):
            return []
        upper = [(self._along(x, p.x), self._down(y, p.y + p.deviation)) for p in points]
        lower = [(self._along(x, p.x), self._down(y, p.y - p.deviation)) for p in points]
        outline = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
        return [f'<polygon points="{outline}" {fill_style(line.style)} fill-opacity="0.13"/>']

    def _series(self, line: Line, x: Axis, y: Axis) -> str:
        """A line with its band and its values: pixels from the left and the top, x, y."""
        values = ";".join(
            f"{self._along(x, p.x):.0f},{self._down(y, p.y):.0f},{short(p.x)},{_format_value(p)}" for p in line.points
        )
        drawn = "".join([*self._band(line, x, y), self._path(line, x, y)])
        return f'<g data-series="{escape(line.name)}" data-values="{escape(values)}">{drawn}</g>'

    def _path(self, line: Line, x: Axis, y: Axis) -> str:
        places = self._places(line, x, y)
        name = f"<title>{escape(line.name)}</title>"
        if len(places) == 1:  # a line of one point would not be seen
            (across, down) = places[0]
            return f'<circle cx="{across:.1f}" cy="{down:.1f}" r="3" {fill_style(line.style)}>{name}</circle>'
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        return f'<polyline points="{drawn}" fill="none" {stroke(line.style)}>{name}</polyline>'

    def _places(self, line: Line, x: Axis, y: Axis) -> list[tuple[float, float]]:
        """Where the y axis does not hold the start, the line comes in over the edge, and does not begin on it."""
        places = [(self._along(x, p.x), self._down(y, p.y)) for p in line.points]
        if len(places) > 1:
            start, then = (y.place(point.y) for point in line.points[:2])
            edge = min(1.0, max(0.0, start))
            if start not in (edge, then):
                come = (edge - start) / (then - start)
                places[0] = (places[0][0] + come * (places[1][0] - places[0][0]), places[0][1])
        return places

    def _along(self, axis: Axis, value: float) -> float:
        return _LEFT + axis.place(value) * (self.size.width - _LEFT - _RIGHT)

    def _down(self, axis: Axis, value: float) -> float:
        place = min(1.0, max(0.0, axis.place(value)))
        return self.size.height - _BOTTOM - place * (self.size.height - _TOP - _BOTTOM)


def _format_value(point: Point) -> str:
    return format_number(point.y) + (f" ± {format_number(point.deviation)}" if point.deviation else "")


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Of many points the lowest and the highest of each stretch: what the eye would see of all."""
    if len(points) <= _MOST_POINTS:
        return points
    inner = points[1:-1]
    stretches = (_MOST_POINTS - 2) // 2
    kept = [points[0]]
    for number in range(stretches):
        part = range(number * len(inner) // stretches, (number + 1) * len(inner) // stretches)
        ends = {min(part, key=lambda at: inner[at].y), max(part, key=lambda at: inner[at].y)}
        kept += [inner[at] for at in sorted(ends)]
    return [*kept, points[-1]]
