"""What every chart is drawn with: one palette, one way to open a picture and to write in it.

Colours stand as attributes, so that a chart is whole by itself, and as classes, so that a page can change
them for the dark.
"""

from __future__ import annotations

from html import escape

__all__ = ["COLOURS", "GREY", "box", "cut", "filled", "heading", "picture", "rule", "stroke", "text", "text_width"]

# Okabe and Ito's colours, which people with colour blindness can tell apart; dashes tell the next round of them.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B")
COLOURS = len(_COLOURS)
GREY = 6
_DASHES = ("", "7 4", "2 3")
_LETTER = 7.2  # pixels of a letter of size 12, on average


def picture(title: str, width: float, height: float, parts: list[str], says: str = "") -> str:
    """The whole picture as one element; `says` is read out where it cannot be seen."""
    name = escape(title)
    more = f"<desc>{escape(says)}</desc>" if says else ""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" aria-label="{name}" font-family="sans-serif" font-size="12">',
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
    return _LETTER * len(said)


def cut(said: str, width: float) -> str:
    """As much of it as fits."""
    fits = max(1, int(width / _LETTER))
    return said if len(said) <= fits else said[: fits - 1] + "…"


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
    return f"<rect {place} {filled(style)}>{said}</rect>"


def filled(style: int) -> str:
    number = style % len(_COLOURS)
    return f'class="fill c{number}" fill="{_COLOURS[number]}"'


def stroke(style: int) -> str:
    number = style % len(_COLOURS)
    dash = _DASHES[style // len(_COLOURS) % len(_DASHES)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'class="line c{number}" stroke="{_COLOURS[number]}" stroke-width="2" stroke-linejoin="round"{dashed}'
