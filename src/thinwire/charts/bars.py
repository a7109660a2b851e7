"""Bars that lie beside each other by name, each of parts that add up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from thinwire.charts.axes import axis_over
from thinwire.charts.drawing import GREY, box, cut, heading, picture, rule, text
from thinwire.charts.legend import legend
from thinwire.charts.numbers import short

__all__ = ["Bar", "Bars"]

_LEFT, _RIGHT, _TOP, _BAR, _GAP, _BOTTOM = 112, 70, 40, 18, 10, 40


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
    """Bars over one axis from 0, and a legend of their parts below."""

    title: str
    x_name: str
    bars: Sequence[Bar]
    shown: Callable[[float], str] = short  # a bar's total, at its end
    quiet: Sequence[str] = ()  # parts that are there to compare with: grey
    width: int = 440

    def svg(self) -> str:
        names = self.part_names()
        bottom = _TOP + len(self.bars) * (_BAR + _GAP)
        axis = axis_over([0.0, *(bar.total for bar in self.bars)], wanted=3)
        scale = (self.width - _LEFT - _RIGHT) / axis.high
        parts = [heading(8, cut(self.title, (self.width - 8) / 1.2))]
        for mark in axis.marks:
            place = _LEFT + mark * scale
            parts += [rule(place, _TOP - 6, place, bottom, "grid"), text(place, bottom + 16, short(mark), "middle")]
        for number, bar in enumerate(self.bars):
            parts += self._bar(bar, names, _TOP + number * (_BAR + _GAP), scale)
        parts.append(rule(_LEFT, _TOP - 6, _LEFT, bottom))
        parts.append(text((_LEFT + self.width - _RIGHT) / 2, bottom + 34, self.x_name, "middle", strong=True))
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
        middle, place = top + _BAR - 5, float(_LEFT)
        parts = [text(_LEFT - 8, middle, cut(bar.name, _LEFT - 12), "end", strong=True)]
        for name in names:
            value = bar.parts.get(name, 0.0)
            if value > 0:
                said = f"{bar.name}, {name}: {self.shown(value)}"
                parts.append(box(place, top, value * scale, _BAR, self._style(name, names), said))
                place += value * scale
        return [*parts, text(place + 6, middle, self.shown(bar.total), strong=True)]

    def _says(self) -> str:
        return f"{self.x_name}: " + "; ".join(f"{bar.name} {self.shown(bar.total)}" for bar in self.bars[:12])
