"""`thinwire compressors`: what there is, with parameters, one line each."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import typer

__all__ = ["compressors"]


def compressors(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List the compressors with their parameters."""
    from thinwire.compress import COMPRESSORS

    found: list[dict[str, Any]] = [
        {
            "name": kind.__name__,
            "parameters": {
                name: None if parameter.default is parameter.empty else repr(parameter.default)
                for name, parameter in inspect.signature(kind).parameters.items()
            },
            "summary": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        }
        for kind in COMPRESSORS
    ]
    if as_json:
        typer.echo(json.dumps({"compressors": found}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("compressor", "what it keeps")
    for entry in found:
        arguments = ", ".join(
            name if default is None else f"{name}={default}" for name, default in entry["parameters"].items()
        )
        table.add_row(f"{entry['name']}({arguments})", entry["summary"])
    Console().print(table)
