"""`thinwire abort`: ends a run at every party, for good."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from thinwire.base.errors import BadInput
from thinwire.cli.status import format_status


def abort(job: Path, name: str, settings: list[str] = [], yes: bool = False) -> None:
    """Abort a run at every party, permanently; any party may do this. To pause a run, press Ctrl-C instead."""
    from thinwire.job.party_view import read_party_view
    from thinwire.net.grpc.client import Unreached
    from thinwire.training.party.status import ask_label_party, read_status

    own = read_party_view(job, name, settings)
    if not (yes or sys.stdin.isatty()):
        raise BadInput(
            "this aborts the run at every party permanently, and there is no terminal to confirm it; use --yes"
        )
    try:
        _, answer = ask_label_party(own, "Status")
        standing = read_status(answer)
        for line in format_status(standing):
            typer.echo(line)
        if not (yes or typer.confirm("Abort? This ends the run at every party and cannot be undone.")):
            typer.echo("nothing was done")
            return
        ask_label_party(own, "Abort")
    except Unreached as error:
        raise Unreached(
            f"{error}; nothing was aborted. This party's own process can be stopped with Ctrl-C"
        ) from None
    here = [own.label_party, *(party for party, one in standing.parties.items() if one.connected)]
    away = [party for party, one in standing.parties.items() if not (one.connected or one.finished)]
    names = ", ".join(party for party in (*own.feature_parties, own.label_party) if party in here)
    typer.echo(f"aborted by {own.me!r}: {names} exit with code 1 and cannot resume in their folders")
    for party in own.feature_parties:
        if party in away:
            typer.echo(
                f"{party} is not connected: if it took part, {own.label_party} keeps running until it has been "
                "notified"
            )
