"""The suite's figures as one HTML file: a chart of the ratios, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from thinwire.bench.rows import Row
from thinwire.bench.saved import Saved, environment
from thinwire.reproduce.ticks import Axis, axis_over, short

__all__ = ["Bar", "bars", "html_page", "svg"]

_WIDTH, _LEFT, _RIGHT, _TOP, _BAR, _GAP = 760, 210, 90, 40, 16, 8
_BELOW, _ABOVE, _LAST = "#0072B2", "#D55E00", "#1a1a1a"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; } th, td { padding: .3rem .7rem; border-bottom: 1px solid #ddd; }
th, td { text-align: left; vertical-align: top; } td.number { text-align: right; white-space: nowrap; }
svg { max-width: 100%; height: auto; } .muted { color: #555; }
"""


@dataclass(frozen=True)
class Bar:
    """A row of the chart: its ratio now, and the last one."""

    name: str
    ratio: float
    last: float | None = None


def bars(now: Saved, last: Saved) -> list[Bar]:
    """All rows that were measured."""
    return [
        Bar(f"{bench}: {row.name}", row.ratio, last.ratio(bench, row.name))
        for bench, rows in now.rows.items()
        for row in rows
        if row.ratio
    ]


def svg(chart: Sequence[Bar]) -> str:
    """Bars from 1, where thinwire equals what it is held against: to the left less, to the right more."""
    height = _TOP + len(chart) * (_BAR + _GAP) + 30
    axis = axis_over([1.0, *(bar.ratio for bar in chart), *(bar.last for bar in chart if bar.last)], log=True)
    title = "thinwire over what it is held against; less is better"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{title}" font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" font-weight="600">{title}</text>',
    ]
    for mark in axis.marks:
        place = _along(axis, mark)
        parts.append(f'<line x1="{place:.1f}" y1="{_TOP - 6}" x2="{place:.1f}" y2="{height - 26}" stroke="#e3e3e3"/>')
        parts.append(f'<text x="{place:.1f}" y="{height - 10}" text-anchor="middle" fill="#444">{short(mark)}</text>')
    for number, bar in enumerate(chart):
        parts += _bar(axis, bar, _TOP + number * (_BAR + _GAP))
    one = _along(axis, 1.0)
    parts.append(f'<line x1="{one:.1f}" y1="{_TOP - 6}" x2="{one:.1f}" y2="{height - 26}" stroke="#1a1a1a"/>')
    return "\n".join([*parts, "</svg>"])


def _bar(axis: Axis, bar: Bar, top: float) -> list[str]:
    start, end = sorted((_along(axis, 1.0), _along(axis, bar.ratio)))
    colour = _BELOW if bar.ratio <= 1 else _ABOVE
    middle = top + _BAR - 4
    parts = [
        f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{escape(bar.name)}</text>',
        f'<rect x="{start:.1f}" y="{top}" width="{max(end - start, 1):.1f}" height="{_BAR}" fill="{colour}"/>',
        f'<text x="{end + 6:.1f}" y="{middle}">{bar.ratio:.3g}x</text>',
    ]
    if bar.last:
        place = _along(axis, bar.last)
        parts.append(
            f'<line x1="{place:.1f}" y1="{top - 2}" x2="{place:.1f}" y2="{top + _BAR + 2}" stroke="{_LAST}" '
            f'stroke-width="2"><title>last: {bar.last:.3g}x</title></line>'
        )
    return parts


def _along(axis: Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def html_page(now: Saved, last: Saved) -> str:
    """The whole page, which needs nothing else."""
    lines = "".join(
        _line(bench, row, last, now.made.get(bench, "")) for bench, rows in now.rows.items() for row in rows
    )
    heads = "".join(
        f"<th>{head}</th>" for head in ("", "what, and against what", "ours", "other", "ratio", "last", "measured")
    )
    used = ", ".join(f"{name} {value}" for name, value in environment().items())
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>thinwire bench</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>thinwire bench</h1>\n{svg(bars(now, last))}\n"
        f'<p class="muted">Both sides of a ratio come from the same run; where time is measured they take '
        f"turns, with one thread, and the median of the ratios counts. A black mark is the last saved run.</p>\n"
        f"<table><tr>{heads}</tr>{lines}</table>\n"
        f'<p class="muted">{escape(used)}</p>\n</body></html>\n'
    )


def _line(bench: str, row: Row, last: Saved, made: str) -> str:
    before = last.ratio(bench, row.name)
    words = (f"{bench}: {row.name}", row.words)
    numbers = [_said(row.ours, row.unit), _said(row.other, row.unit), _said(row.ratio), _said(before), made[:10]]
    cells = "".join(f'<td class="number">{escape(one)}</td>' for one in numbers)
    return "<tr>" + "".join(f"<td>{escape(one)}</td>" for one in words) + cells + "</tr>"


def _said(value: float | None, unit: str = "x") -> str:
    """A number with its unit; a ratio without."""
    return "-" if value is None else f"{value:.4g}{unit}" if unit == "x" else f"{short(value)} {unit}"
