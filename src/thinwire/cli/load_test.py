"""`thinwire load-test`: what a server takes."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from thinwire.cli.shown import AsJson
from thinwire.errors import ThinwireError

__all__ = ["load_test"]


class RequestsFailed(ThinwireError):
    """Some requests were not answered."""


def load_test(
    url: Annotated[str, typer.Argument(metavar="URL", help="Of `thinwire serve`, such as http://127.0.0.1:8080.")],
    clients: Annotated[int, typer.Option("--clients", min=1, max=10_000, help="Connections at the same time.")] = 8,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="How long.")] = 5.0,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Rows of one request.")] = 1,
    deadline: Annotated[float, typer.Option("--deadline", min=1, help="Of one request, in ms.")] = 1000.0,
    as_json: AsJson = False,
) -> None:
    """Ask for random rows from many clients; exit code 1 where a request was not answered."""
    from thinwire.serve import load

    typer.echo(f"{clients} clients for {seconds:g} s", err=True)
    result = load.load_test(load.Load(url, clients, seconds, rows, deadline))
    found = {"clients": clients, "seconds": result.seconds, **result.summary()}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(
            f"{result.requests_per_second:.0f} requests/s, p50 {result.percentile_ms(0.5):.2f} ms, "
            f"p99 {result.percentile_ms(0.99):.2f} ms, {sum(result.errors.values())} errors"
        )
    if result.errors:
        said = ", ".join(f"{count} {name}" for name, count in result.errors.most_common())
        raise RequestsFailed(f"not all requests were answered: {said}")
