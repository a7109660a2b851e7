"""`thinwire explain`: what an error's code means, what usually causes it, and what to do."""

from __future__ import annotations

import json
from dataclasses import asdict
from difflib import get_close_matches
from typing import Annotated, Optional

import typer

from thinwire.cli.explanations import EXPLANATIONS
from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

__all__ = ["explain"]


def explain(
    code: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(metavar="[CODE]", help="What stands in brackets behind an error, such as bad-column."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error by its code; without one, list them all."""
    if code is None:
        if as_json:
            typer.echo(json.dumps({name: one.means for name, one in EXPLANATIONS.items()}))
            return
        longest = max(map(len, EXPLANATIONS))
        for name, one in EXPLANATIONS.items():
            typer.echo(f"{name:{longest}}  {one.means}")
        return
    name = code.strip("[]").lower().replace("_", "-")
    if name not in EXPLANATIONS:
        near = get_close_matches(name, EXPLANATIONS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise BadInput(f"there is no code {code!r}; {hint}`thinwire explain` lists them all")
    found = EXPLANATIONS[name]
    if as_json:
        typer.echo(json.dumps({"code": name, **asdict(found)}))
        return
    typer.echo(f"{name}: {found.means}")
    for title, lines in (("Usual causes", found.causes), ("What to do", found.ways_out)):
        typer.echo(f"{title}:")
        for line in lines:
            typer.echo(f"  - {line}")
