"""A party's certificate, key and authority: read, checked, and made ready for TLS.

A party proves its name with its certificate and with nothing else. Everything that would break the
handshake later is refused here, before the first connection, in one message. The authority may be ours
(`thinwire certs`) or an organisation's own, with RSA keys and intermediate authorities.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from time import sleep
from typing import TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey | rsa.RSAPublicKey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_REVOKED_LINE = re.compile(r"([0-9A-Fa-f]{1,40})(?:\s.*)?")
MOST_CHAIN = 16  # certificates: a party's own and the authorities between it and the common one
_MOST_BYTES = 4 << 20  # a bundle of authorities has a few hundred kB
_RENEWAL_SECONDS = 0.1  # a renewal replaces two files, one after the other
CURVES = (ec.SECP256R1, ec.SECP384R1)  # gRPC's TLS takes no other curve, and no Ed25519
UNREADABLE = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, x509.InvalidVersion)


class BadCertificate(BadInput):
    """A certificate, key or list of revoked ones cannot be used; names the file, the cause and the way out."""

    def __init__(self, file: Path | str, cause: str, way_out: str) -> None:
        self.file = file
        super().__init__(f"{file}: {cause}; {way_out}")


def is_party_name(name: str) -> bool:
    """Whether a party with a certificate can have this name; ca.pem and ca.key are the authority's."""
    return _NAME.fullmatch(name) is not None and name.lower() != "ca"


def require_party_name(name: str) -> None:
    if not is_party_name(name):
        raise BadInput(
            f"party {name!r}: a name has at most 64 letters, digits, - and _, starts with a letter or "
            "digit, and is not 'ca'"
        )


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where one party's files lie; `revoked` may be a file that is not there yet."""

    authority: Path
    certificate: Path
    key: Path
    revoked: Path | None = None

    @classmethod
    def in_folder(cls, folder: Path, name: PartyName) -> CertificateFiles:
        """The names that `thinwire certs` gives them."""
        require_party_name(name)
        return cls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key", folder / "revoked.txt")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What TLS needs, as PEM that was checked; `certificate_pem` holds the intermediate authorities too."""

    authority_pem: bytes
    certificate_pem: bytes
    key_pem: bytes = field(repr=False)
    names: frozenset[str]
    serial: int
    not_after: datetime


def load_credentials(files: CertificateFiles, expected_name: PartyName, now: datetime | None = None) -> Credentials:
    """Reads and checks the files of `expected_name`; raises BadCertificate for whatever TLS would refuse."""
    moment = datetime.now(UTC) if now is None else now
    authorities = read_certificates(files.authority)
    chain, key = _matching_pair(files)
    leaf, place = chain[0], files.certificate
    _require_own(leaf, place, expected_name)
    _require_valid_now(leaf, place, moment, f"renew it with: thinwire certs DIR --renew {expected_name}")
    _require_signed(chain, authorities, files, moment)
    _require_use(leaf, place)
    return Credentials(
        authority_pem=public_pem(*authorities),
        certificate_pem=public_pem(*chain),
        key_pem=private_pem(key),
        names=find_names(leaf, place),
        serial=leaf.serial_number,
        not_after=leaf.not_valid_after_utc,
    )


def read_names(certificate_pem: bytes) -> frozenset[str]:
    """The names a certificate proves: its DNS names, or the common name if it has no alternative names."""
    place = "the peer's certificate"
    try:
        certificate = x509.load_pem_x509_certificate(certificate_pem)
    except UNREADABLE as error:
        raise BadCertificate(place, f"it cannot be read ({error})", "the peer needs another one") from None
    return find_names(certificate, place)


def find_names(certificate: x509.Certificate, place: Path | str) -> frozenset[str]:
    """As `read_names`, of a certificate that was read from `place`."""
    alternative = find_extension(certificate, x509.SubjectAlternativeName, place)
    if alternative is not None:
        return frozenset(alternative.get_values_for_type(x509.DNSName))
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return frozenset(name.value for name in common if isinstance(name.value, str))


class Revocations:
    """Which certificates are not to be accepted any more; follows its file while the run goes on.

    A file that was never there revokes nothing. One that becomes malformed, unreadable or is removed leaves
    the last good list in force, and `problem` says so until it is mended. May be used by several threads.
    """

    def __init__(self, file: Path | None) -> None:
        self.problem: str | None = None
        self._file = file
        self._lock = Lock()
        self._serials: frozenset[int] = frozenset()
        self._seen: tuple[int, ...] | None = None  # the file as last read; None: never there; (): in trouble
        if file is not None and _fingerprint_of(file) is not None:
            self._read(file)

    def find_refusal(self, certificate_pem: bytes, now: datetime | None = None) -> str | None:
        """Why a peer's certificate is not to be accepted now; None if it is."""
        moment = datetime.now(UTC) if now is None else now
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
        except UNREADABLE as error:
            return f"its certificate cannot be read ({error})"
        if certificate.serial_number in self.serials():
            return f"its certificate is revoked: {self._file} lists its serial {certificate.serial_number:x}"
        lapse = _lapse(certificate, moment)
        return None if lapse is None else f"its certificate {lapse}"

    def serials(self) -> frozenset[int]:
        """The serial numbers that are revoked now."""
        with self._lock:
            if self._file is not None:
                self._follow(self._file)
            return self._serials

    def _follow(self, file: Path) -> None:
        try:
            now = _fingerprint_of(file)
            if now is None and self._seen is not None:
                raise BadCertificate(file, "it is gone", "restore it, or create an empty one")
            if now != self._seen:
                self._read(file)
        except BadCertificate as error:
            self._seen = ()
            self.problem = f"{error} (the list read before stays in force)"

    def _read(self, file: Path) -> None:
        data, status = read_pem_file(file)
        self._serials = frozenset(_revoked_serials(file, data))
        self._seen = _fingerprint(status)
        self.problem = None


def _fingerprint_of(file: Path) -> tuple[int, ...] | None:
    """None if the file does not exist."""
    with _mapped_errors(file):
        try:
            return _fingerprint(os.stat(file))
        except FileNotFoundError:
            return None


def _fingerprint(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _revoked_serials(file: Path, data: bytes) -> Iterator[int]:
    for number, line in enumerate(data.decode("utf-8-sig", "replace").split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _REVOKED_LINE.fullmatch(line.strip())
        if found is None:
            raise BadCertificate(
                file,
                f"line {number} does not begin with a serial number ({line[:50]!r})",
                "write one hexadecimal serial per line, then two spaces and a comment",
            )
        yield int(found[1], 16)


# Reading ------------------------------------------------------------------------------------------------------


def read_certificates(file: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, in order; at least one."""
    data, _ = read_pem_file(file)
    try:
        return x509.load_pem_x509_certificates(data)
    except UNREADABLE as error:
        raise BadCertificate(
            file,
            f"it holds no PEM certificate that can be read ({error})",
            "a certificate begins with -----BEGIN CERTIFICATE-----; convert a DER file with: "
            f"openssl x509 -inform der -in {file} -out NEW.pem",
        ) from None


def read_key(file: Path) -> PrivateKey:
    """A private key without a passphrase that nobody but its owner can read."""
    data, _ = read_pem_file(file, forbidden_mode=0o077)
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise BadCertificate(
            file,
            "the key is encrypted, and nobody can type the passphrase",
            f"store it without one: (umask 077; openssl pkey -in {file} -out NEW.key)",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        # The library's own words are left out: nothing of a key belongs in a message.
        raise BadCertificate(
            file, "it holds no PEM private key that can be read", "a key begins with -----BEGIN PRIVATE KEY-----"
        ) from None
    if isinstance(key, rsa.RSAPrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, CURVES):
        return key
    raise BadCertificate(file, "gRPC cannot use a key of this kind", "use an EC key on P-256 or P-384, or an RSA key")


def read_pem_file(file: Path, forbidden_mode: int = 0) -> tuple[bytes, os.stat_result]:
    """A plain file of bounded size, whose mode has none of the forbidden bits."""
    with _mapped_errors(file), open(file, "rb", opener=_without_waiting) as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            raise BadCertificate(
                file, f"it is not a regular file of at most {_MOST_BYTES >> 20} MiB", "name the PEM file itself"
            )
        if status.st_mode & forbidden_mode:
            raise BadCertificate(
                file,
                f"users other than its owner can read or change this key (mode {stat.S_IMODE(status.st_mode):04o})",
                f"make it private: chmod 600 {file}",
            )
        return opened.read(), status


def _without_waiting(path: str, flags: int) -> int:
    """A named pipe would otherwise wait for its writer for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


@contextmanager
def _mapped_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadCertificate(file, "the file does not exist", "give its path; thinwire certs creates them") from None
    except IsADirectoryError:
        raise BadCertificate(file, "it is a folder", "name the PEM file itself") from None
    except PermissionError:
        raise BadCertificate(
            file, "this user may not read it", "run as its owner, or give the file to the user that runs thinwire"
        ) from None
    except OSError as error:
        raise BadCertificate(file, f"it cannot be read ({error.strerror})", "check the path and the disk") from None


def public_pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def private_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def format_moment(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


# Checks -------------------------------------------------------------------------------------------------------


def _matching_pair(files: CertificateFiles) -> tuple[list[x509.Certificate], PrivateKey]:
    chain, key = read_certificates(files.certificate), read_key(files.key)
    if not _belong_together(chain[0], key):
        sleep(_RENEWAL_SECONDS)
        chain, key = read_certificates(files.certificate), read_key(files.key)
    if _belong_together(chain[0], key):
        return chain, key
    if any(_belong_together(other, key) for other in chain[1:]):
        raise BadCertificate(
            files.certificate, "the party's own certificate is not the first in it", "put it before the authorities'"
        )
    raise BadCertificate(
        files.key,
        f"the key belongs to another certificate than {files.certificate}",
        "take both files from the same issue; if the key is lost, renew the certificate",
    )


def _belong_together(certificate: x509.Certificate, key: PrivateKey) -> bool:
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)
    except (ValueError, UnsupportedAlgorithm):  # a kind of key that is none of ours
        return False


def _require_own(leaf: x509.Certificate, place: Path, name: PartyName) -> None:
    if _signed(leaf, leaf):
        raise BadCertificate(
            place,
            "it is self-signed, so it proves nothing to others",
            "use one that the parties' common authority signed (thinwire certs makes both)",
        )
    names = find_names(leaf, place)
    if name not in names:
        held = ", ".join(sorted(names)) or "no name at all"
        raise BadCertificate(
            place,
            f"it is not the certificate of {name!r}, it is for {held}",
            "give each party the certificate issued for its name",
        )


def _require_valid_now(certificate: x509.Certificate, place: Path, moment: datetime, renewal: str) -> None:
    lapse = _lapse(certificate, moment)
    if lapse is not None:
        early = moment < certificate.not_valid_before_utc
        raise BadCertificate(place, f"it {lapse}", "is this computer's clock right?" if early else renewal)


def _lapse(certificate: x509.Certificate, moment: datetime) -> str | None:
    if moment > certificate.not_valid_after_utc:
        return f"expired on {format_moment(certificate.not_valid_after_utc)}"
    if moment < certificate.not_valid_before_utc:
        return (
            f"is not valid before {format_moment(certificate.not_valid_before_utc)}, now is {format_moment(moment)}"
        )
    return None


def _require_signed(
    chain: Sequence[x509.Certificate],
    authorities: Sequence[x509.Certificate],
    files: CertificateFiles,
    moment: datetime,
) -> None:
    if len(chain) > MOST_CHAIN:
        cause = f"it holds {len(chain)} certificates, and others take {MOST_CHAIN} at most"
        raise BadCertificate(files.certificate, cause, "keep the party's own and those between it and the authority")
    issuers = _find_issuers(chain[0], list(chain[1:]), authorities)
    if not issuers:
        top = chain[-1].issuer.rfc4514_string()
        known = "; ".join(one.subject.rfc4514_string() for one in authorities[:3])
        raise BadCertificate(
            files.certificate,
            f"it was not signed by the authority in {files.authority}: signed by {top}, the authority is {known}",
            "use the authority file of whoever issued it; if an intermediate authority did, append that one's "
            "certificate to this file",
        )
    if _find_issuers(chain[0], _valid_at(moment, chain[1:]), _valid_at(moment, authorities)):
        return
    for issuer in issuers:
        place = files.authority if issuer in authorities else files.certificate
        lapse = _lapse(issuer, moment)
        if lapse is not None:
            raise BadCertificate(
                place,
                f"the authority {issuer.subject.rfc4514_string()} {lapse}",
                "its certificates are no longer valid: get new ones from a valid authority, or correct the clock",
            )


def find_chain_problem(chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]) -> str | None:
    """Why a certificate, with the intermediate authorities that follow it, does not hold now; None if it does."""
    now = datetime.now(UTC)
    lapse = _lapse(chain[0], now)
    if lapse is not None:
        return f"its certificate {lapse}"
    if len(chain) > MOST_CHAIN:
        return f"it comes with {len(chain)} certificates, {MOST_CHAIN} at most are looked at"
    if not _find_issuers(chain[0], _valid_at(now, chain[1:]), _valid_at(now, authorities)):
        return "its certificate was not signed by our authority, or that one is no longer valid"
    return None


def _valid_at(moment: datetime, certificates: Sequence[x509.Certificate]) -> list[x509.Certificate]:
    return [one for one in certificates if _lapse(one, moment) is None]


def _find_issuers(
    certificate: x509.Certificate, between: list[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> list[x509.Certificate]:
    """A line of issuers from a certificate to an authority; empty where there is none.

    Takes out of `between` what it has looked behind: certificates that sign each other have as many lines as orders.
    """
    for issuer in authorities:
        if _signed_by_authority(certificate, issuer):
            return [issuer]
    for issuer in [one for one in between if _signed_by_authority(certificate, one)]:
        if issuer in between:
            between.remove(issuer)
            line = _find_issuers(issuer, between, authorities)
            if line:
                return [issuer, *line]
    return []


def _signed_by_authority(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    if not _signed(certificate, issuer):
        return False
    try:
        return issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *UNREADABLE):
        return False


def _signed(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (TypeError, ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _require_use(leaf: x509.Certificate, place: Path) -> None:
    """A party both listens and calls, so one certificate must serve both ends of a connection."""
    uses = find_extension(leaf, x509.ExtendedKeyUsage, place)
    lacking = []
    if uses is not None:
        lacking += ["serverAuth"] * (ExtendedKeyUsageOID.SERVER_AUTH not in uses)
        lacking += ["clientAuth"] * (ExtendedKeyUsageOID.CLIENT_AUTH not in uses)
    usage = find_extension(leaf, x509.KeyUsage, place)
    if usage is not None:
        lacking += ["digitalSignature"] * (not usage.digital_signature)
    if lacking:
        raise BadCertificate(
            place,
            f"its (extended) key usage lacks {' and '.join(lacking)}",
            "have it issued for TLS servers and clients, with digital signature",
        )


def find_extension(certificate: x509.Certificate, kind: type[_Extension], place: Path | str) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
    except UNREADABLE as error:
        raise BadCertificate(place, f"an extension of it cannot be read ({error})", "have it issued again") from None
