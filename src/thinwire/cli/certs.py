"""`thinwire certs`: a private authority, one certificate per party, and requests for one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thinwire.base.errors import BadInput
from thinwire.cli.output import print_result

if TYPE_CHECKING:
    from thinwire.net.pki.authority import IssuedCertificate
    from thinwire.net.pki.certificate_request import CertificateRequest


def certs(
    folder: Path,
    *,
    parties: list[str] = [],
    hosts: list[str] = [],
    days: int = 365,
    renewed: list[str] = [],
    revoked: list[str] = [],
    request: str | None = None,
    sign: list[Path] = [],
    as_json: bool = False,
) -> None:
    """Issue, request, sign, renew or revoke the parties' certificates; without options, list them."""
    from thinwire.net.pki import authority
    from thinwire.net.pki.certificate_request import read_request, require_signable, sign_request

    if request is not None:
        if parties or renewed or revoked or sign:
            raise BadInput(
                "--request is the party's own command; --party, --renew, --revoke and --sign are the authority's"
            )
        _write_request(folder, request, hosts, as_json)
        return
    asked = [read_request(file) for file in sign]
    if not (parties or renewed or revoked or asked):
        _require_authority(folder, hosts)
        deeds = {one.name: "" for one in authority.list_certificates(folder)}
    else:
        authority.require_issuable(parties, hosts)
        for name in (*renewed, *revoked):
            authority.require_issued(folder, name)
        for one in asked:
            require_signable(folder, one, hosts, revoked)
        # Revoked before renewed: both of one party is what a stolen key asks for.
        deeds = {name: "revoked" if authority.revoke(folder, name) else "revoked before" for name in revoked}
        for name in renewed:
            authority.renew(folder, name, hosts or None, days)
            deeds[name] = f"{deeds[name]} and renewed" if name in deeds else "renewed"
        made = authority.issue(folder, parties, hosts, days) if parties else {}
        deeds |= {name: "made" if fresh else "kept" for name, fresh in made.items() if name not in deeds}
        for one in asked:
            sign_request(folder, one, hosts, days)
            deeds[one.name] = f"{deeds[one.name]} and signed" if one.name in deeds else "signed"
    there = {one.name: one for one in authority.list_certificates(folder)}
    end, certificates = authority.read_authority_end(folder), [(there[name], deed) for name, deed in deeds.items()]
    facts = {
        "folder": str(folder),
        "authority": {"certificate": str(folder / "ca.pem"), "not_after": end.isoformat()},
        "certificates": [_describe(one, deed) for one, deed in certificates],
    }
    print_result(facts, as_json, [*_format_lines(folder, end, certificates), *map(_format_fingerprint, asked)])


def _write_request(folder: Path, name: str, hosts: Sequence[str], as_json: bool) -> None:
    from thinwire.net.pki.certificate_request import write_request

    asked, is_new = write_request(folder, name, hosts)
    file, key = folder / f"{name}.csr", folder / f"{name}.key"
    facts = {
        "request": str(file),
        "key": str(key),
        "key_is_new": is_new,
        "hosts": list(asked.hosts),
        "fingerprint": asked.fingerprint,
    }
    lines = [
        f"{key}: {'made' if is_new else 'kept; for a new one, move it away first'}. It never leaves this place",
        f"{file}: send it to whoever runs the authority, who signs it with: thinwire certs DIR --sign {file.name}",
        f"what comes back goes into {folder}: {name}.pem, ca.pem and revoked.txt",
        _format_fingerprint(asked),
    ]
    print_result(facts, as_json, lines)


def _format_fingerprint(asked: CertificateRequest) -> str:
    shown = " ".join(asked.fingerprint[at : at + 8] for at in range(0, 64, 8))
    return f"compare over the telephone, the key of {asked.name}: {shown}"


def _require_authority(folder: Path, hosts: Sequence[str]) -> None:
    usage = f"create one certificate per party with: thinwire certs {folder} --party NAME --party NAME"
    if hosts:
        raise BadInput(f"--host goes with --party or --renew; {usage}")
    if not (folder / "ca.pem").exists():
        raise BadInput(f"{folder} holds no certificate authority; {usage}")


def _describe(one: IssuedCertificate, deed: str) -> dict[str, Any]:
    return {
        "name": one.name,
        "done": deed or None,
        "serial": f"{one.serial:x}",
        "not_after": one.not_after.isoformat(),
        "hosts": list(one.hosts),
        "revoked": one.revoked,
        "certificate": str(one.files.certificate),
        "key": str(one.files.key) if one.files.key.exists() else None,
    }


def _format_lines(
    folder: Path, end: datetime, certificates: Sequence[tuple[IssuedCertificate, str]]
) -> Iterator[str]:
    yield f"authority in {folder}, {_format_validity(end)}"
    for one, deed in certificates:
        done = deed or ("revoked" if one.revoked else "issued")
        yield f"  {one.name}: {done}, {_format_validity(one.not_after)}, serial {one.serial:x}"
        if one.hosts:
            yield f"    also for {', '.join(one.hosts)}"
    if not certificates:
        yield "  no certificates yet; --party NAME makes one"
    fresh = [one for one, deed in certificates if deed.endswith(("made", "renewed", "signed"))]
    if fresh:
        has_key = any(one.files.key.exists() for one in fresh)
        way = ", in a safe way" if has_key else "; none of them is secret, e-mail will do"
        yield f"send each organisation its files from {folder}{way}:"
        yield from (f"  {one.name}: {', '.join(_list_files(one))}" for one in fresh)
        yield (
            f"{folder / 'ca.key'} stays here: it is needed only to issue certificates, and whoever has it can "
            "impersonate any party"
        )
    for one, deed in certificates:
        yield from _format_advice(one, deed)
    if any("revoked" in deed for _, deed in certificates):
        yield (
            f"give {folder / 'revoked.txt'} to every organisation: each party refuses the certificates that "
            "its own copy lists"
        )


def _list_files(one: IssuedCertificate) -> list[str]:
    """What an organisation gets; a key only where it was made here."""
    key = [one.files.key.name] if one.files.key.exists() else []
    return ["ca.pem", one.files.certificate.name, *key, "revoked.txt"]


def _format_validity(end: datetime) -> str:
    from thinwire.net.pki.certificates import format_moment

    return f"{'valid until' if end > datetime.now(UTC) else 'expired on'} {format_moment(end)}"


def _format_advice(one: IssuedCertificate, deed: str) -> Iterator[str]:
    if deed == "kept":
        cause = "it is revoked" if one.revoked else "to change it"
        yield f"{one.name} already has a certificate, which was kept; {cause}: --renew {one.name}"
    elif deed == "renewed":
        yield (
            f"{one.name}'s previous certificate stays valid until it expires; for a stolen key, use --revoke "
            f"{one.name} --renew {one.name}"
        )
