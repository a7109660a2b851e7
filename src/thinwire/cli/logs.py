"""`thinwire logs`: what happened at a party."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from time import sleep
from typing import Any

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.output import print_result

_POLL_SECONDS = 0.5


def logs(
    job: Path,
    name: str,
    *,
    party: str | None = None,
    out: Path | None = None,
    count: int = 50,
    follow: bool = False,
    settings: list[str] = [],
    as_json: bool = False,
) -> None:
    """Show the log of a run as text; it never holds data, ids or keys."""
    from thinwire.job.party_view import read_party_view
    from thinwire.training.party.party_log import PartyLog, SharedLog

    if follow and as_json:
        raise BadInput(
            "--follow and --json: cannot be combined, because a JSON object must end; follow the file "
            "log.jsonl instead"
        )
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
