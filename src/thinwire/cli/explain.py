"""`thinwire explain`: what an error's code means, what usually causes it, and what to do."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TypedDict

from thinwire.base.errors import BadInput
from thinwire.cli.output import print_result, wrap_lines


class Explanation(TypedDict):
    """One code; causes and ways out in the order of their likelihood."""

    means: str
    causes: list[str]
    ways_out: list[str]


@cache
def read_explanations() -> dict[str, Explanation]:
    """Of every kind of error, by its code: explanations.toml beside errors.py."""
    return tomllib.loads(files("thinwire.base").joinpath("explanations.toml").read_text(encoding="utf-8"))


def complete_codes(incomplete: str) -> list[str]:
    return [code for code in read_explanations() if code.startswith(incomplete.strip("[]").lower())]


def explain(code: str | None = None, as_json: bool = False) -> None:
    """Explain an error code; without one, list all codes."""
    every = read_explanations()
    if code is None:
        indent = max(map(len, every)) + 2
        lines = [
            f"{'' if place else name:{indent}}{line}"
            for name, one in every.items()
            for place, line in enumerate(wrap_lines(one["means"], indent))
        ]
        print_result({name: one["means"] for name, one in every.items()}, as_json, lines)
        return
    name = code.strip("[]").lower().replace("_", "-")
    if name not in every:
        near = get_close_matches(name, every, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"there is no code {code!r}; {hint}`thinwire explain` lists them all")
    found = every[name]
    causes, ways_out = ([f"  - {line}" for line in lines] for lines in (found["causes"], found["ways_out"]))
    lines = [f"{name}: {found['means']}", "Usual causes:", *causes, "What to do:", *ways_out]
    print_result({"code": name, **found}, as_json, lines)
