"""`thinwire logs`: what happened at a party."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from time import sleep
from typing import Annotated, Any, Optional

import typer

from thinwire.cli.shown import AsJson, JobPath, PartyName, Settings
from thinwire.errors import BadInput

__all__ = ["logs"]

_POLL_SECONDS = 0.5


def logs(
    job: JobPath,
    name: PartyName,
    *,
    party: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            "--party", metavar="PARTY", help="The label party's log instead of one's own, where it shares it."
        ),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="DIR", help="This party's folder; runs/<job>/<name> unless given."),
    ] = None,
    count: Annotated[int, typer.Option("--lines", min=1, help="So many, the last ones.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as more happens, until Ctrl-C.")] = False,
    settings: Settings = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show what happened in a run, in words; never data, ids or keys."""
    from thinwire.job.party_view import read_party_view
    from thinwire.network.logs import OwnLog, SharedLog

    if follow and as_json:
        raise BadInput("--follow and --json: one JSON object has an end; follow the file log.jsonl itself")
    own = read_party_view(job, name, settings)
    mine = party is None or party == own.me
    log = OwnLog(out or Path("runs") / job.stem / own.me) if mine else SharedLog(own, str(party))
    lines = list(deque(log.lines(), maxlen=count))
    if as_json:
        typer.echo(json.dumps({"party": own.me if mine else party, "lines": lines}))
        return
    _show(lines)
    while follow:
        sleep(_POLL_SECONDS)
        _show(list(log.lines()))


def _show(lines: list[dict[str, Any]]) -> None:
    from thinwire.network.events import sentence
    from thinwire.transport.records import printable

    for line in lines:
        told = sentence(line)
        where = "" if line.get("round") is None else f" round {line['round']}"
        who = "" if line.get("peer") is None or told else f" {line['peer']}"
        what = told or f"{line.get('event')}{who}"
        typer.echo(printable(f"{str(line.get('time', ''))[:19]}{where}: {what}"))
