"""What every chart is drawn with: one palette, one way to open a picture and to write in it.

Colours stand as attributes, so that a chart is whole by itself, and as classes, so that a page can change
them for the dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Literal

# Okabe and Ito's colours, which people with colour blindness can tell apart; dashes tell the next round of them.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
COLOURS = len(_COLOURS)
GREY = 6
_DASHES = ("", "7 4", "2 3")
_LETTER, _NARROW, _WIDE = 7.5, 4.4, 11.0  # pixels of letters of size 12, in a wide font


def picture(title: str, width: float, height: float, parts: list[str], says: str = "", x_name: str = "") -> str:
    """The whole picture as one element; `says` is read out where it cannot be seen."""
    name, axis = escape(title), f' data-x="{escape(x_name)}"' if x_name else ""
    more = f"<desc>{escape(says)}</desc>" if says else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label="{name}"{axis} font-family="sans-serif" font-size="12">',
            f"<title>{name}</title>{more}",
            f'<rect class="paper" width="{width:g}" height="{height:g}" fill="#ffffff"/>',
            *parts,
            "</svg>",
        ]
    )


def text(x: float, y: float, said: str, anchor: str = "start", strong: bool = False) -> str:
    kind, fill = ("ink", "#1a1a1a") if strong else ("soft", "#444444")
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{escape(said)}</text>'


def text_width(said: str) -> float:
    return sum(_NARROW if one in "iljtfrI.,:;'|!()[] " else _WIDE if one in "mwMW@%" else _LETTER for one in said)


def cut(said: str, width: float) -> str:
    """As much of it as fits."""
    if text_width(said) <= width:
        return said
    kept = said[:1]
    for one in said[1:]:
        if text_width(kept + one + "…") > width:
            break
        kept += one
    return kept + "…"


def heading(x: float, said: str) -> str:
    return (
        f'<text class="ink" x="{x:.1f}" y="20" font-size="14" font-weight="600" fill="#1a1a1a">{escape(said)}</text>'
    )


def rule(x1: float, y1: float, x2: float, y2: float, kind: str = "axis") -> str:
    """A thin line; `grid` is a faint one."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{kind}" {ends} stroke="{"#e3e3e3" if kind == "grid" else "#555555"}"/>'


def box(x: float, y: float, width: float, height: float, style: int, title: str = "") -> str:
    said = f"<title>{escape(title)}</title>" if title else ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f"<rect {place} {fill_style(style)}>{said}</rect>"


def fill_style(style: int) -> str:
    number = style % len(_COLOURS)
    return f'class="fill c{number}" fill="{_COLOURS[number]}"'


def stroke(style: int) -> str:
    number = style % len(_COLOURS)
    dash = _DASHES[style // len(_COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'class="line c{number}" stroke="{_COLOURS[number]}" stroke-width="2" stroke-linejoin="round"{dashed}'


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """From low to high, linear or logarithmic, with marks at round numbers."""

    low: float
    high: float
    marks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            value = min(max(value, self.low), self.high)
            return (log10(value) - log10(self.low)) / (log10(self.high) - log10(self.low))
        return (value - self.low) / (self.high - self.low)


def axis_over(values: Sequence[float], wanted: int = 5, log: bool = False) -> Axis:
    """An axis that holds all values; a logarithmic one holds those above 0."""
    shown = [value for value in values if value > 0] if log else list(values)
    if not shown:
        return Axis(1.0, 10.0, (1.0, 10.0), True) if log else Axis(0.0, 1.0, (0.0, 0.5, 1.0))
    low, high = min(shown), max(shown)
    return _log_axis(low, high, wanted) if log else _linear_axis(low, high, wanted)


def _linear_axis(low: float, high: float, wanted: int) -> Axis:
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5 * max(1.0, abs(low)), high + 0.5 * max(1.0, abs(high))
    rough = (high - low) / wanted
    power = 10.0 ** floor(log10(rough))
    step = next(step * power for step in _STEPS if step * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    marks = tuple(round(count * step, 12) for count in range(first, last + 1))
    return Axis(marks[0], marks[-1], marks)


def _log_axis(low: float, high: float, wanted: int) -> Axis:
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    if first == last:
        last += 1
    every = max(1, ceil((last - first) / wanted))
    marks = tuple(10.0**power for power in range(first, last + 1, every))
    return Axis(10.0**first, 10.0**last, marks, log=True)


_ROW = 19


def legend(
    entries: Sequence[tuple[str, int]], left: float, top: float, right: float, mark: Literal["line", "box"] = "line"
) -> tuple[list[str], float]:
    """(parts, height) of names and their styles, from `left` to `right`."""
    parts: list[str] = []
    column, row = left, 0
    sample = 28 if mark == "line" else 12
    for name, style in entries:
        shown = cut(name, right - left - sample - 12)
        width = sample + 6 + text_width(shown) + 14
        if column + width - 14 > right and column > left:
            column, row = left, row + 1
        place = top + 6 + row * _ROW
        if mark == "line":
            ends = f'x1="{column:.1f}" y1="{place:.1f}" x2="{column + sample:.1f}" y2="{place:.1f}"'
            drawn = f"<line {ends} {stroke(style)}/>"
        else:
            drawn = box(column, place - 6, 12, 12, style)
        named = text(column + sample + 6, place + 4, shown, strong=True)
        area = f'<rect x="{column:.1f}" y="{place - 9:.1f}" width="{width - 14:.1f}" height="18" fill="none"/>'
        parts.append(f'<g class="key" data-key="{escape(name)}" pointer-events="all">{area}{drawn}{named}</g>')
        column += width
    return parts, (row + 1) * _ROW if entries else 0
