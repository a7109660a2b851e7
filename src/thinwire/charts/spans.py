"""What several did at the same time: a lane each, a box for every stretch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from thinwire.charts.axes import axis_over
from thinwire.charts.drawing import GREY, box, cut, heading, picture, rule, text
from thinwire.charts.legend import legend
from thinwire.charts.numbers import short

__all__ = ["Lanes", "Stretch"]

_LEFT, _RIGHT, _TOP, _LANE, _GAP, _BOTTOM = 112, 18, 40, 22, 8, 40
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
        scale = (self.width - _LEFT - _RIGHT) / axis.high
        bottom = _TOP + len(self.lanes) * (_LANE + _GAP)
        parts = [heading(8, cut(self.title, (self.width - 8) / 1.2))]
        for mark in axis.marks:
            place = _LEFT + mark * scale
            parts += [rule(place, _TOP - 6, place, bottom, "grid"), text(place, bottom + 16, short(mark), "middle")]
        for number, (name, lane) in enumerate(self.lanes.items()):
            top = _TOP + number * (_LANE + _GAP)
            parts.append(text(_LEFT - 8, top + 15, cut(name, _LEFT - 12), "end", strong=True))
            for one in lane[:_MOST]:
                thin = one.what in self.below
                start, end = ((moment - first) * self.per_second for moment in (one.start, one.end))
                said = f"{name}, {one.what}: {short(end - start)} {self.unit}"
                height = 5 if thin else _LANE - 6
                place = top + _LANE - 5 if thin else top
                width = max((end - start) * scale, 0.6)
                parts.append(box(_LEFT + start * scale, place, width, height, self._style(one.what), said))
        parts.append(text((_LEFT + self.width - _RIGHT) / 2, bottom + 34, self.unit, "middle", strong=True))
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
