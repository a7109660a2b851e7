"""`thinwire status`: how a run stands, by the word of its label party."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.base.format import format_bytes, format_seconds
from thinwire.cli.output import print_result
from thinwire.report.progress import format_metrics

if TYPE_CHECKING:
    from thinwire.job.party_view import PartyView
    from thinwire.training.party.status import PartyStatus, RunStatus


def status(job: Path, name: str, settings: list[str] = [], *, out: Path | None = None, as_json: bool = False) -> None:
    """Ask the label party for the status of a run; any party may do this.

    If nobody answers, show what this party's own folder records about a finished or stopped run.
    """
    from thinwire.job.party_view import read_party_view
    from thinwire.net.grpc.client import HandshakeFailed, Unreached
    from thinwire.training.party.status import ask_label_party, read_status

    own = read_party_view(job, name, settings)
    try:
        target, answer = ask_label_party(own, "Status")
    except HandshakeFailed:
        raise
    except Unreached:
        folder = out or Path("runs") / job.stem / own.me
        facts = _read_folder(own, folder, _build_command(job, own.me, settings, out))
        if facts is None:
            raise
        lines = _format_stopped(facts, own.me) if facts["state"] == "stopped" else _format_ended(facts, folder)
        print_result(facts, as_json, lines)
        return
    print_result({"address": target.address, **answer}, as_json, format_status(read_status(answer)))


def _read_folder(own: PartyView, folder: Path, command: str) -> dict[str, Any] | None:
    """What this party's own folder knows; None where that is nothing, or its process still runs."""
    from thinwire.training.party.party_log import list_stops, read_folder_status

    known = {"address": own.network_party.target().address, "label_party": own.label_party}
    stopped = list_stops(folder, own.me)
    if stopped.keys() & {own.me, own.label_party}:
        return known | {"state": "stopped", "stopped": stopped, "go_on": command if own.me in stopped else None}
    found = read_folder_status(folder)
    if found is None:
        return None
    last = None if found.last_event is None else found.last_event.model_dump()
    go_on = command if found.state == "unfinished" else None
    return known | asdict(found) | {"running": False, "last_event": last, "folder": str(folder), "go_on": go_on}


def _format_ended(facts: dict[str, Any], folder: Path) -> Iterator[str]:
    """Nobody answers and nothing runs here: how the run ended, as the folder knows it."""
    yield f"{facts['label_party']}: does not answer at {facts['address']}; nothing is running here"
    yield f"  {facts['method']}, {facts['state']}, round {facts['round']} of {facts['rounds']} (from {folder})"
    if facts["last_event"] is not None:
        yield f"  evaluated after round {facts['last_event']['round']}: {format_metrics(facts['last_event'])}"
    if facts["go_on"] is not None:
        yield f"its process exited before the run finished; to resume: {facts['go_on']}"


def _format_stopped(facts: dict[str, Any], me: str) -> list[str]:
    """The label party does not answer, and this party's own folder knows why."""
    stopped = facts["stopped"]
    found = [f"{facts['label_party']}: does not answer at {facts['address']}; the run is stopped and can be resumed"]
    found += [f"  {name}  stopped in round {round}" for name, round in stopped.items()]
    if me in stopped:
        return [*found, f"to resume, run the same command again at each stopped party; here: {facts['go_on']}"]
    return [*found, f"it resumes once {', '.join(stopped)} is restarted; {me} need not do anything"]


def _build_command(job: Path, me: str, settings: Sequence[str], out: Path | None) -> str:
    given = [word for setting in settings for word in ("--set", setting)]
    words = ["thinwire", "party", str(job), "--name", me, *given, *([] if out is None else ["--out", str(out)])]
    return shlex.join(words)


def format_status(standing: RunStatus) -> Iterator[str]:
    """For people: a line for the run, one for each party, the bytes, the last evaluation."""
    from thinwire.base.format import printable

    if standing.state == "doctor":
        yield f"{printable(standing.label_party)}: `thinwire doctor` answers there, not the run"
        return
    head = f"{printable(standing.label_party)}: {printable(standing.method)}, {printable(standing.state)}"
    head += f", round {standing.round} of {standing.rounds}"
    if standing.waiting_for is not None:
        head += f", waiting for {printable(standing.waiting_for)!r}"
    yield head
    width = max((len(printable(name)) for name in standing.parties), default=0)
    for name, party in standing.parties.items():
        yield f"  {printable(name):{width}}  {_format_presence(party)}"
    sent = standing.bytes
    up, down, again = (format_bytes(count) for count in (sent.up, sent.down, sent.retransmitted))
    yield f"  {up} up, {down} down, {again} sent again"
    last = standing.last_event
    if last is not None:
        seen = f": {format_metrics(last.model_dump())}" if last.train or last.validation or last.test else ""
        yield f"  evaluated after round {last.round}{seen}"


def _format_presence(party: PartyStatus) -> str:
    if party.finished:
        said = "finished"
    elif party.connected:
        said = "connected"
    elif party.stopped:
        away = format_seconds(party.away_seconds)
        said = f"stopped by its operator {away} ago; the run resumes once it is restarted"
    else:
        said = f"disconnected for {format_seconds(party.away_seconds)}" if party.starts else "not connected yet"
    return f"{said}, started {party.starts} times" if party.starts > 1 else said
