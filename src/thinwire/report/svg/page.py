"""The frame of every page: one HTML file with its style in it, light, dark and in print."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files

GENERATOR = '<meta name="generator" content="thinwire">'


@cache
def page_style() -> str:
    return files("thinwire.report.svg").joinpath("page.css").read_text(encoding="utf-8")


def html_page(title: str, body: str, style: str = "") -> str:
    """`body` is HTML already; the title is not."""
    head = (
        f'<meta charset="utf-8">\n{GENERATOR}\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{page_style()}{style}</style>"
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'
