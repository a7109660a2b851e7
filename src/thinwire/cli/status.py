"""`thinwire status`: how a run stands, by the word of its label party."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from thinwire.cli.shown import AsJson, JobPath, PartyName, Settings, bytes_shown, metrics_shown, seconds_shown

if TYPE_CHECKING:
    from thinwire.network.standing import PartyStanding, Standing

__all__ = ["standing_shown", "status"]


def status(job: JobPath, name: PartyName, settings: Settings = [], as_json: AsJson = False) -> None:  # noqa: B006
    """Ask the label party how the run stands; any party of the job may."""
    from thinwire.job.own_part import read_own_part
    from thinwire.network.asking import question
    from thinwire.network.standing import read_standing

    own = read_own_part(job, name, settings)
    target, answer = question(own, "Status")
    if as_json:
        typer.echo(json.dumps({"address": target.address, **answer}))
        return
    for line in standing_shown(read_standing(answer)):
        typer.echo(line)


def standing_shown(standing: Standing) -> Iterator[str]:
    """For people: a line for the run, one for each party, the bytes, the last evaluation."""
    from thinwire.network.told import printable

    if standing.state == "doctor":
        yield f"{printable(standing.label_party)}: its doctor answers, not the run"
        return
    head = f"{printable(standing.label_party)}: {printable(standing.method)}, {printable(standing.state)}"
    head += f", round {standing.round} of {standing.rounds}"
    if standing.waiting_for is not None:
        head += f", waiting for {printable(standing.waiting_for)!r}"
    yield head
    width = max((len(printable(name)) for name in standing.parties), default=0)
    for name, party in standing.parties.items():
        yield f"  {printable(name):{width}}  {_presence(party)}"
    sent = standing.bytes
    yield f"  {bytes_shown(sent.up)} up, {bytes_shown(sent.down)} down, {bytes_shown(sent.retransmitted)} sent again"
    last = standing.last_event
    if last is not None:
        yield f"  evaluated after round {last.round}: {metrics_shown(last.model_dump())}"


def _presence(party: PartyStanding) -> str:
    if party.finished:
        said = "finished"
    elif party.connected:
        said = "connected"
    else:
        said = f"away for {seconds_shown(party.away_seconds)}" if party.starts else "not here yet"
    return f"{said}, started {party.starts} times" if party.starts > 1 else said
