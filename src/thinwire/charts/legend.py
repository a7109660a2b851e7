"""Samples and names below a chart, as many in a row as fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from thinwire.charts.drawing import box, cut, stroke, text, text_width

__all__ = ["legend"]

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
            parts.append(f"<line {ends} {stroke(style)}/>")
        else:
            parts.append(box(column, place - 6, 12, 12, style))
        parts.append(text(column + sample + 6, place + 4, shown, strong=True))
        column += width
    return parts, (row + 1) * _ROW if entries else 0
