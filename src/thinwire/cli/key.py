"""`thinwire key`: a new key for encrypted run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from thinwire.cli.shown import AsJson

__all__ = ["key"]


def key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where the key goes; must not be there yet.")],
    as_json: AsJson = False,
) -> None:
    """Make a key to encrypt run folders with; name it in the job file: [encryption] key = "FILE"."""
    from thinwire.at_rest import new_key

    new_key(file)
    if as_json:
        typer.echo(json.dumps({"key": str(file)}))
        return
    typer.echo(f"{file}: a new key. Name it in your job file:")
    typer.echo(f"  [encryption]\n  key = {json.dumps(str(file))}")
    typer.echo("Keep a copy apart from the runs: without it nobody can read them, not even you.")
