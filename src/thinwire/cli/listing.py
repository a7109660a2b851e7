"""Things with parameters, one line each."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

import typer

__all__ = ["print_listing"]


def print_listing(kind: str, things: Iterable[Callable[..., Any]], as_json: bool) -> None:
    """A table, or JSON under the plural of `kind`."""
    found: list[dict[str, Any]] = [
        {
            "name": thing.__name__,
            "parameters": {
                name: None if parameter.default is parameter.empty else repr(parameter.default)
                for name, parameter in inspect.signature(thing).parameters.items()
            },
            "summary": (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " "),
        }
        for thing in things
    ]
    if as_json:
        typer.echo(json.dumps({f"{kind}s": found}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(kind, "what it does")
    for entry in found:
        arguments = ", ".join(
            name if default is None else f"{name}={default}" for name, default in entry["parameters"].items()
        )
        table.add_row(f"{entry['name']}({arguments})", entry["summary"])
    Console().print(table)
