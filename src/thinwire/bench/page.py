"""The suite's figures as one HTML file: a chart of the ratios, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from thinwire.bench.rows import Row
from thinwire.bench.saved import Saved
from thinwire.charts.numbers import short
from thinwire.charts.page import html_page as page_of
from thinwire.charts.ratios import Ratio, ratio_bars
from thinwire.environment import environment

__all__ = ["bars", "html_page", "svg"]


def bars(now: Saved, last: Saved) -> list[Ratio]:
    """All rows that were measured."""
    return [
        Ratio(f"{bench}: {row.name}", row.ratio, last.ratio(bench, row.name))
        for bench, rows in now.rows.items()
        for row in rows
        if row.ratio
    ]


def svg(chart: Sequence[Ratio]) -> str:
    """Bars from 1, where thinwire equals what it is held against: to the left less, to the right more."""
    return ratio_bars("thinwire over what it is held against; less is better", chart)


def html_page(now: Saved, last: Saved) -> str:
    """The whole page, which needs nothing else."""
    lines = "".join(
        _line(bench, row, last, now.made.get(bench, "")) for bench, rows in now.rows.items() for row in rows
    )
    heads = "".join(
        f"<th>{head}</th>" for head in ("", "what, and against what", "ours", "other", "ratio", "last", "measured")
    )
    used = ", ".join(f"{name} {value}" for name, value in environment().items())
    body = (
        f"<h1>thinwire bench</h1>\n{svg(bars(now, last))}\n"
        f'<p class="muted">Both sides of a ratio come from the same run; where time is measured they take '
        f"turns, with one thread, and the median of the ratios counts. A black mark is the last saved run.</p>\n"
        f'<div class="wide"><table><tr>{heads}</tr>{lines}</table></div>\n'
        f'<p class="muted">{escape(used)}</p>'
    )
    return page_of("thinwire bench", body)


def _line(bench: str, row: Row, last: Saved, made: str) -> str:
    before = last.ratio(bench, row.name)
    words = (f"{bench}: {row.name}", row.words)
    numbers = [_said(row.ours, row.unit), _said(row.other, row.unit), _said(row.ratio), _said(before), made[:10]]
    cells = "".join(f'<td class="number">{escape(one)}</td>' for one in numbers)
    return "<tr>" + "".join(f"<td>{escape(one)}</td>" for one in words) + cells + "</tr>"


def _said(value: float | None, unit: str = "x") -> str:
    """A number with its unit; a ratio without."""
    return "-" if value is None else f"{value:.4g}{unit}" if unit == "x" else f"{short(value)} {unit}"
