"""A private authority in one folder: it issues, renews and revokes the parties' certificates.

ca.pem, ca.key           the authority; ca.key is needed only to issue, and stays with whoever runs it
<name>.pem, <name>.key   one party's certificate and key
<name>.csr               instead of a key: the request of a party that made its key itself (certificate_request.py)
revoked.txt              the serials that no party is to accept any more

Keys are private from their first byte on. Every file appears whole or not at all, and one command at a time
changes a folder.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fcntl import LOCK_EX, flock
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.net.pki.certificates import (
    BadCertificate,
    CertificateFiles,
    PublicKey,
    Revocations,
    find_extension,
    find_names,
    format_moment,
    is_party_name,
    private_pem,
    public_pem,
    read_certificates,
    read_key,
    require_party_name,
)
from thinwire.storage.atomic_file import new_file, open_descriptor, stage_file, write_all

AUTHORITY_DAYS = 3653  # ten years
PARTY_DAYS = 365
_CLOCK_SKEW = timedelta(hours=1)  # a peer's clock may be behind ours
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}$)(?:{_LABEL}\.)*(?![0-9]+$){_LABEL}")  # four numbers are an address, or wrong


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A party's certificate in the authority's folder."""

    name: PartyName
    hosts: tuple[str, ...]  # further names and addresses it is valid for
    serial: int
    not_after: datetime
    revoked: bool
    files: CertificateFiles


def ensure_authority(folder: Path) -> bool:
    """Makes the folder and an authority in it, unless there is one; says whether it did."""
    with map_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone_in(folder):
        if not (folder / "revoked.txt").exists():
            replace_files((folder / "revoked.txt", b"", 0o644))
        if _holds_authority(folder):
            return False
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _authority_certificate(key)
        replace_files(
            (folder / "ca.key", private_pem(key), 0o600), (folder / "ca.pem", public_pem(certificate), 0o644)
        )
        return True


def issue(
    folder: Path, names: Sequence[PartyName], hosts: Sequence[str] = (), days: int = PARTY_DAYS
) -> dict[PartyName, bool]:
    """Makes a certificate for each party that has none; says for each whether it was made, or kept.

    `hosts` go on every certificate that is made. Without an authority in the folder, one is made first.
    """
    names = list(dict.fromkeys(names))
    require_issuable(names, hosts)
    ensure_authority(folder)
    with alone_in(folder):
        there = list_certificates(folder)
        kept = {one.name for one in there}
        made = [name for name in names if name not in kept]
        for name in made:
            _require_free(folder, name)
            require_distinct(name, hosts, there=there)
        if made:
            signer = Signer(folder)
            for name in made:
                signer.issue(name, hosts, days)
        return {name: name in made for name in names}


def require_issuable(names: Sequence[PartyName], hosts: Sequence[str] = ()) -> None:
    """Refuses bad names and hosts, and parties that could pass for each other; looks at no folder."""
    for host in hosts:
        build_general_name(host)
    for name in names:
        require_party_name(name)
        require_distinct(name, hosts, [other for other in names if other != name])


def renew(
    folder: Path, name: PartyName, hosts: Sequence[str] | None = None, days: int = PARTY_DAYS
) -> IssuedCertificate:
    """Replaces key and certificate; `hosts` None keeps those it has. The old certificate is not revoked."""
    require_issued(folder, name)
    _require_key_here(folder, name)
    with alone_in(folder):
        there = {one.name: one for one in list_certificates(folder)}
        old = there.pop(name, None)
        if hosts is None:
            hosts = () if old is None else old.hosts
        require_distinct(name, hosts, there=list(there.values()))
        Signer(folder).issue(name, hosts, days)
    return find_issued(folder, name)


def revoke(folder: Path, name: PartyName) -> bool:
    """Puts the party's present certificate on the list; False if it was there already."""
    require_issued(folder, name)
    with alone_in(folder):
        one = find_issued(folder, name)
        if one.revoked:
            return False
        file = folder / "revoked.txt"
        before = file.read_bytes() if file.exists() else b""
        if before and not before.endswith(b"\n"):
            before += b"\n"
        line = f"{one.serial:x}  {name}, revoked {format_moment(datetime.now(UTC))}\n"
        replace_files((file, before + line.encode(), 0o644))
        return True


def list_certificates(folder: Path) -> list[IssuedCertificate]:
    """The parties' certificates in the folder, by name."""
    revoked = Revocations(folder / "revoked.txt").serials()
    found = []
    for file in sorted(folder.glob("*.pem")):
        if not is_party_name(file.stem):
            continue
        certificate = read_certificates(file)[0]
        if file.stem not in find_names(certificate, file):
            continue  # something that was put here by hand
        found.append(
            IssuedCertificate(
                name=file.stem,
                hosts=tuple(host for host in _alternative_names(certificate, file) if host != file.stem),
                serial=certificate.serial_number,
                not_after=certificate.not_valid_after_utc,
                revoked=certificate.serial_number in revoked,
                files=CertificateFiles.in_folder(folder, file.stem),
            )
        )
    return found


def read_authority_end(folder: Path) -> datetime:
    """Until when the authority is valid."""
    return read_certificates(folder / "ca.pem")[0].not_valid_after_utc


def require_issued(folder: Path, name: PartyName) -> None:
    """Refuses a name that has no files here, and says which have."""
    require_party_name(name)
    if (folder / f"{name}.pem").exists() or (folder / f"{name}.key").exists():
        return
    known = [one.name for one in list_certificates(folder)]
    hint = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none'}"
    raise BadInput(f"party {name!r} has no certificate in {folder}{hint}")


def find_issued(folder: Path, name: PartyName) -> IssuedCertificate:
    """The certificate of one party; refuses where there is none."""
    for one in list_certificates(folder):
        if one.name == name:
            return one
    raise BadCertificate(
        folder / f"{name}.pem", f"it is not there, or not a certificate of {name!r}", "issue a new one with --renew"
    )


def _require_key_here(folder: Path, name: PartyName) -> None:
    if (folder / f"{name}.csr").exists() and not (folder / f"{name}.key").exists():
        raise BadCertificate(
            folder / f"{name}.csr",
            f"{name!r} made its key itself, and nobody else can renew it",
            f"let it run `thinwire certs DIR --request {name}` again and send the .csr file, then --sign that",
        )


# What may be on a certificate -----------------------------------------------------------------------------------


def _require_free(folder: Path, name: PartyName) -> None:
    for file in (folder / f"{name}.pem", folder / f"{name}.key"):
        if file.exists():
            raise BadCertificate(
                file,
                f"it already exists, but not as one of a pair for {name!r}",
                f"move it away, or replace both files with --renew {name}",
            )


def require_distinct(
    name: PartyName, hosts: Sequence[str], others: Sequence[PartyName] = (), there: Sequence[IssuedCertificate] = ()
) -> None:
    """A name on a certificate is proof of being that party, and TLS compares names without case."""
    claimed = {host.lower() for host in hosts} | {name.lower()}
    for other in (*others, *(one.name for one in there)):
        if other.lower() in claimed:
            raise BadInput(
                f"party {name!r}: its certificate would be valid for the party {other!r} too; use another name, "
                "or give --host in a command for that one party"
            )
    for one in there:
        if name.lower() in (host.lower() for host in one.hosts):
            raise BadInput(
                f"party {name!r}: the certificate of {one.name!r} is valid for that host name; use another name"
            )


def build_general_name(host: str) -> x509.GeneralName:
    """A host name or an address as a certificate has it; refuses anything else."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        pass
    if not _HOST.fullmatch(host):
        raise BadInput(
            f"--host {host!r}: give a host name or an IP address, without a port, as in --host bank.example.org"
        )
    return x509.DNSName(host)


def _alternative_names(certificate: x509.Certificate, place: Path) -> list[str]:
    """Host names, then addresses, as --host takes them."""
    names = find_extension(certificate, x509.SubjectAlternativeName, place)
    if names is None:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


# Signing --------------------------------------------------------------------------------------------------------


class Signer:
    """The authority with its key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._certificate = read_certificates(folder / "ca.pem")[0]
        self._key = read_key(folder / "ca.key")
        if self._certificate.public_key() != self._key.public_key():
            raise BadCertificate(
                folder / "ca.key", "the key belongs to another authority than ca.pem", "put the right one here"
            )
        end = self._certificate.not_valid_after_utc
        if end < datetime.now(UTC):
            raise BadCertificate(
                folder / "ca.pem",
                f"the authority expired on {format_moment(end)}",
                "create a new one in another folder, and give every party new files",
            )

    def issue(self, name: PartyName, hosts: Sequence[str], days: int) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        files = CertificateFiles.in_folder(self._folder, name)
        certificate = self.sign(name, hosts, days, key.public_key())
        replace_files((files.key, private_pem(key), 0o600), (files.certificate, public_pem(certificate), 0o644))

    def sign(self, name: PartyName, hosts: Sequence[str], days: int, key: PublicKey) -> x509.Certificate:
        """Everything on it but the key is the authority's word."""
        now = datetime.now(UTC)
        # A certificate that outlives its authority would only seem to be valid.
        end = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        names = [x509.DNSName(name), *(build_general_name(host) for host in dict.fromkeys(hosts) if host != name)]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _begun(_named(name), self._certificate.subject, key, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(authority, critical=False)
            .sign(self._key, SHA256())
        )


def _authority_certificate(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    # A name of its own: two authorities are then never taken for each other.
    name = _named(f"thinwire authority {secrets.token_hex(4)}")
    return (
        _begun(name, name, key.public_key(), datetime.now(UTC) + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage("key_cert_sign", "crl_sign"), critical=True)
        .sign(key, SHA256())
    )


def _begun(subject: x509.Name, issuer: x509.Name, public: PublicKey, end: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(*allowed: str) -> x509.KeyUsage:
    every = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement key_cert_sign "
        "crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{use: use in allowed for use in every.split()})


# Files ----------------------------------------------------------------------------------------------------------


def _holds_authority(folder: Path) -> bool:
    there = [name for name in ("ca.pem", "ca.key") if (folder / name).exists()]
    if there == ["ca.key"]:
        raise BadCertificate(
            folder / "ca.pem", "it is missing next to ca.key", "restore it, or create an authority in another folder"
        )
    return bool(there)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Another command that changes this folder waits meanwhile."""
    with map_errors(folder), open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        flock(descriptor, LOCK_EX)
        yield


def replace_files(*contents: tuple[Path, bytes, int]) -> None:
    """Writes files of one folder with their modes: all of them whole, then one rename each, in this order."""
    parts: dict[Path, Path] = {}
    with ExitStack() as last_first:
        for file, data, _ in reversed(contents):
            last_first.enter_context(map_errors(file, f"its {len(data)} bytes"))
            parts[file] = last_first.enter_context(stage_file(file))
        for file, data, mode in contents:
            with map_errors(file, f"its {len(data)} bytes"), new_file(parts[file], mode) as descriptor:
                write_all(descriptor, [data])


@contextmanager
def map_errors(place: Path, what: str = "it") -> Iterator[None]:
    """What the system refuses, as BadCertificate."""
    try:
        yield
    except OSError as error:
        raise BadCertificate(
            place, f"{what} cannot be written ({error.strerror})", "check the path, permissions and free space"
        ) from None
