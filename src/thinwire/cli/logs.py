"""`thinwire logs`: what happened at a party."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from time import sleep
from typing import Annotated, Any

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.options import AsJson, JobPath, OwnFolder, PartyName, Settings, complete_parties
from thinwire.cli.output import print_result

_POLL_SECONDS = 0.5


def logs(
    job: JobPath,
    name: PartyName,
    *,
    party: Annotated[
        str | None,
        typer.Option(
            "--party",
            metavar="PARTY",
            help="Show the log of the label party, if it shares it (default: this party's own log).",
            autocompletion=complete_parties,
        ),
    ] = None,
    out: OwnFolder = None,
    count: Annotated[int, typer.Option("--lines", min=1, help="Number of lines to show, counted from the end.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", help="Keep printing new lines until Ctrl-C.")] = False,
    settings: Settings = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Show what happened in a run, in words; never data, ids or keys."""
    from thinwire.job.party_view import read_party_view
    from thinwire.training.party.party_log import PartyLog, SharedLog

    if follow and as_json:
        raise BadInput("--follow and --json: one JSON object has an end; follow the file log.jsonl itself")
    own = read_party_view(job, name, settings)
    mine = party is None or party == own.me
    log = PartyLog(out or Path("runs") / job.stem / own.me) if mine else SharedLog(own, str(party))
    lines = list(deque(log.lines(), maxlen=count))
    print_result({"party": own.me if mine else party, "lines": lines}, as_json, map(_format_line, lines))
    while follow:
        sleep(_POLL_SECONDS)
        for line in log.lines():
            typer.echo(_format_line(line))


def _format_line(line: dict[str, Any]) -> str:
    from thinwire.base.format import printable
    from thinwire.storage.events import sentence

    told = sentence(line)
    where = "" if line.get("round") is None else f" round {line['round']}"
    who = "" if line.get("peer") is None or told else f" {line['peer']}"
    what = told or f"{line.get('event')}{who}"
    return printable(f"{str(line.get('time', ''))[:19]}{where}: {what}")
