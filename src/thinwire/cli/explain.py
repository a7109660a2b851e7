"""`thinwire explain`: what an error's code means, what usually causes it, and what to do."""

from __future__ import annotations

import json
import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Annotated, Optional, TypedDict

import typer

from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

__all__ = ["Explanation", "explain", "read_explanations"]


class Explanation(TypedDict):
    """One code; causes and ways out in the order of their likelihood."""

    means: str
    causes: list[str]
    ways_out: list[str]


@cache
def read_explanations() -> dict[str, Explanation]:
    """Of every kind of error, by its code: explanations.toml beside errors.py."""
    return tomllib.loads(files("thinwire").joinpath("explanations.toml").read_text(encoding="utf-8"))


def explain(
    code: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[CODE]", help="What stands in brackets behind an error, such as bad-column."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error by its code; without one, list them all."""
    every = read_explanations()
    if code is None:
        if as_json:
            typer.echo(json.dumps({name: one["means"] for name, one in every.items()}))
            return
        longest = max(map(len, every))
        for name, one in every.items():
            typer.echo(f"{name:{longest}}  {one['means']}")
        return
    name = code.strip("[]").lower().replace("_", "-")
    if name not in every:
        near = get_close_matches(name, every, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"there is no code {code!r}; {hint}`thinwire explain` lists them all")
    found = every[name]
    if as_json:
        typer.echo(json.dumps({"code": name, **found}))
        return
    typer.echo(f"{name}: {found['means']}")
    for title, lines in (("Usual causes", found["causes"]), ("What to do", found["ways_out"])):
        typer.echo(f"{title}:")
        for line in lines:
            typer.echo(f"  - {line}")
