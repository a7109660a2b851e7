"""Bar charts as SVG text: bars of parts that add up, and lanes of what parties did when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thinwire.base.format import short
from thinwire.report.svg.drawing import GREY, axis_over, box, cut, heading, legend, picture, rule, text

_LEFT, _RIGHT, _TOP, _BAR, _GAP, _BOTTOM = 112, 70, 40, 18, 10, 40
_LANE, _LANE_RIGHT, _LANE_GAP = 22, 18, 8


@dataclass(frozen=True)
class Bar:
    """A row: its parts by name, each at least 0."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Bars:
    """Bars over one axis, and a legend of their parts below; what is below the axis's start has no length."""

    title: str
    x_name: str
    bars: Sequence[Bar]
    shown: Callable[[float], str] = short  # a bar's total, at its end
    quiet: Sequence[str] = ()  # parts that are there to compare with: grey
    width: int = 440
    left: int = _LEFT  # pixels for the names
    low: float = 0.0  # where the axis begins

    def svg(self) -> str:
        names = self.part_names()
        bottom = _TOP + len(self.bars) * (_BAR + _GAP)
        axis = axis_over([self.low, *(max(self.low, bar.total) for bar in self.bars)], wanted=3)
        scale = (self.width - self.left - _RIGHT) / (axis.high - self.low)
        parts = [heading(8, cut(self.title, (self.width - 8) / 1.2))]
        for mark in axis.marks:
            if mark >= self.low:
                place = self.left + (mark - self.low) * scale
                parts.append(rule(place, _TOP - 6, place, bottom, "grid"))
                parts.append(text(place, bottom + 16, short(mark), "middle"))
        for number, bar in enumerate(self.bars):
            parts += self._bar(bar, names, _TOP + number * (_BAR + _GAP), scale)
        parts.append(rule(self.left, _TOP - 6, self.left, bottom))
        parts.append(text((self.left + self.width - _RIGHT) / 2, bottom + 34, self.x_name, "middle", strong=True))
        entries = [(name, self._style(name, names)) for name in names]
        below, height = (
            legend(entries, 8, bottom + _BOTTOM + 8, self.width, mark="box") if len(names) > 1 else ([], 0)
        )
        return picture(self.title, self.width, bottom + _BOTTOM + 8 + height, [*parts, *below], self._says())

    def _style(self, name: str, names: Sequence[str]) -> int:
        loud = [one for one in names if one not in self.quiet]
        return loud.index(name) if name in loud else GREY

    def part_names(self) -> list[str]:
        """In the order in which they first stand somewhere."""
        return list(dict.fromkeys(name for bar in self.bars for name in bar.parts))

    def _bar(self, bar: Bar, names: Sequence[str], top: float, scale: float) -> list[str]:
        middle, place, below = top + _BAR - 5, float(self.left), self.low
        parts = [text(self.left - 8, middle, cut(bar.name, self.left - 12), "end", strong=True)]
        for name in names:
            value = bar.parts.get(name, 0.0)
            length = (value - below) * scale
            if length > 0:
                said = f"{bar.name}, {name}: {self.shown(value)}"
                parts.append(box(place, top, length, _BAR, self._style(name, names), said))
                place += length
            below = max(0.0, below - value)
        return [*parts, text(place + 6, middle, self.shown(bar.total), strong=True)]

    def _says(self) -> str:
        return f"{self.x_name}: " + "; ".join(f"{bar.name} {self.shown(bar.total)}" for bar in self.bars[:12])


_MOST = 300  # stretches of a lane


@dataclass(frozen=True)
class Stretch:
    """From `start` to `end` somebody did `what`."""

    what: str
    start: float
    end: float


@dataclass(frozen=True)
class Lanes:
    """Lanes over one axis of time, each from the moment at which the first of them begins."""

    title: str
    lanes: Mapping[str, Sequence[Stretch]]
    whats: Sequence[str]  # what there is to do, in the legend's order
    quiet: Sequence[str] = ()  # of them, those that are grey
    below: Sequence[str] = ()  # of them, what goes on beside the rest: drawn thin, at the lane's foot
    unit: str = "ms"
    per_second: float = 1000.0
    width: int = 440

    def svg(self) -> str:
        first = min((one.start for lane in self.lanes.values() for one in lane), default=0.0)
        last = max((one.end for lane in self.lanes.values() for one in lane), default=1.0)
        axis = axis_over([0.0, max(last - first, 1e-9) * self.per_second], wanted=4)
        scale = (self.width - _LEFT - _LANE_RIGHT) / axis.high
        bottom = _TOP + len(self.lanes) * (_LANE + _LANE_GAP)
        parts = [heading(8, cut(self.title, (self.width - 8) / 1.2))]
        for mark in axis.marks:
            place = _LEFT + mark * scale
            parts += [rule(place, _TOP - 6, place, bottom, "grid"), text(place, bottom + 16, short(mark), "middle")]
        for number, (name, lane) in enumerate(self.lanes.items()):
            top = _TOP + number * (_LANE + _LANE_GAP)
            parts.append(text(_LEFT - 8, top + 15, cut(name, _LEFT - 12), "end", strong=True))
            for one in lane[:_MOST]:
                thin = one.what in self.below
                start, end = ((moment - first) * self.per_second for moment in (one.start, one.end))
                said = f"{name}, {one.what}: {short(end - start)} {self.unit}"
                height = 5 if thin else _LANE - 6
                place = top + _LANE - 5 if thin else top
                width = max((end - start) * scale, 0.6)
                parts.append(box(_LEFT + start * scale, place, width, height, self._style(one.what), said))
        parts.append(text((_LEFT + self.width - _LANE_RIGHT) / 2, bottom + 34, self.unit, "middle", strong=True))
        entries = [(what, self._style(what)) for what in self.whats]
        legends, more = legend(entries, 8, bottom + _BOTTOM + 8, self.width, mark="box")
        return picture(self.title, self.width, bottom + _BOTTOM + 8 + more, [*parts, *legends], self._says())

    def _style(self, what: str) -> int:
        loud = [one for one in self.whats if one not in self.quiet]
        return loud.index(what) if what in loud else GREY

    def _says(self) -> str:
        said = []
        for name, lane in self.lanes.items():
            sums = {what: sum(one.end - one.start for one in lane if one.what == what) for what in self.whats}
            parts = ", ".join(f"{what} {short(sums[what] * self.per_second)}" for what in self.whats if sums[what])
            said.append(f"{name}: {parts}")
        return f"In {self.unit}. " + "; ".join(said[:12])
