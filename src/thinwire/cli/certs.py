"""`thinwire certs`: a private authority, and one certificate per party."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from thinwire.cli.shown import AsJson
from thinwire.errors import BadInput

if TYPE_CHECKING:
    from thinwire.transport.authority import Issued

__all__ = ["certs"]


def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder; made if it is not there.")],
    parties: Annotated[
        list[str], typer.Option("--party", metavar="NAME", help="Make a certificate for this party; may be repeated.")
    ] = [],  # noqa: B006
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="A further name or address on every certificate that this command makes; may be repeated.",
        ),
    ] = [],  # noqa: B006
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long new certificates are valid.")] = 365,
    renewed: Annotated[
        list[str],
        typer.Option("--renew", metavar="NAME", help="Replace this party's key and certificate by new ones."),
    ] = [],  # noqa: B006
    revoked: Annotated[
        list[str],
        typer.Option("--revoke", metavar="NAME", help="Put this party's present certificate on the list of revoked."),
    ] = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Make certificates for the parties, renew or revoke them; without an option, list those there are."""
    from thinwire.transport import authority

    if not (parties or renewed or revoked):
        _require_authority(folder, hosts)
        deeds = {one.name: "" for one in authority.issued(folder)}
    else:
        authority.require_issuable(parties, hosts)
        for name in (*renewed, *revoked):
            authority.require_issued(folder, name)
        # Revoked before renewed: both of one party is what a stolen key asks for.
        deeds = {name: "revoked" if authority.revoke(folder, name) else "revoked before" for name in revoked}
        for name in renewed:
            authority.renew(folder, name, hosts or None, days)
            deeds[name] = f"{deeds[name]} and renewed" if name in deeds else "renewed"
        made = authority.issue(folder, parties, hosts, days) if parties else {}
        deeds |= {name: "made" if fresh else "kept" for name, fresh in made.items() if name not in deeds}
    there = {one.name: one for one in authority.issued(folder)}
    show = _print_json if as_json else _print
    show(folder, authority.authority_end(folder), [(there[name], deed) for name, deed in deeds.items()])


def _require_authority(folder: Path, hosts: Sequence[str]) -> None:
    usage = f"make one certificate per party with: thinwire certs {folder} --party NAME --party NAME"
    if hosts:
        raise BadInput(f"--host goes with --party or --renew; {usage}")
    if not (folder / "ca.pem").exists():
        raise BadInput(f"{folder} holds no authority; {usage}")


def _print_json(folder: Path, end: datetime, certificates: Sequence[tuple[Issued, str]]) -> None:
    shown = {
        "folder": str(folder),
        "authority": {"certificate": str(folder / "ca.pem"), "not_after": end.isoformat()},
        "certificates": [_described(one, deed) for one, deed in certificates],
    }
    typer.echo(json.dumps(shown))


def _described(one: Issued, deed: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "done": deed or None,
        "serial": f"{one.serial:x}",
        "not_after": one.not_after.isoformat(),
        "hosts": list(one.hosts),
        "revoked": one.revoked,
        "certificate": str(one.files.certificate),
        "key": str(one.files.key),
    }


def _print(folder: Path, end: datetime, certificates: Sequence[tuple[Issued, str]]) -> None:
    say = typer.echo
    say(f"authority in {folder}, {_validity(end)}")
    for one, deed in certificates:
        done = deed or ("revoked" if one.revoked else "issued")
        say(f"  {one.name}: {done}, {_validity(one.not_after)}, serial {one.serial:x}")
        if one.hosts:
            say(f"    also for {', '.join(one.hosts)}")
    if not certificates:
        say("  no certificates yet; --party NAME makes one")
    fresh = [one.name for one, deed in certificates if deed.endswith(("made", "renewed"))]
    if fresh:
        _print_where_to(folder, fresh)
    for one, deed in certificates:
        _print_advice(one, deed)
    if any("revoked" in deed for _, deed in certificates):
        say(f"give {folder / 'revoked.txt'} to every organisation: a party refuses what its own copy lists")


def _validity(end: datetime) -> str:
    from thinwire.transport.certificates import moment_shown

    return f"{'valid until' if end > datetime.now(UTC) else 'expired since'} {moment_shown(end)}"


def _print_where_to(folder: Path, names: Sequence[str]) -> None:
    say = typer.echo
    say(f"each organisation gets its files from {folder}, in a safe way:")
    for name in names:
        say(f"  {name}: ca.pem, {name}.pem, {name}.key, revoked.txt")
    say(f"{folder / 'ca.key'} stays here: it is needed only to issue, and whoever has it can be any party")


def _print_advice(one: Issued, deed: str) -> None:
    if deed == "kept":
        cause = "it is revoked" if one.revoked else "to change it"
        typer.echo(f"{one.name} has a certificate already, which was kept; {cause}: --renew {one.name}")
    elif deed == "renewed":
        typer.echo(
            f"{one.name}'s certificate before this one is good until it expires; for a stolen key, the command is "
            f"--revoke {one.name} --renew {one.name}"
        )
