"""Certificates by request: a party makes its key and asks, the authority signs, and the key never travels.

<name>.key   at the party alone
<name>.csr   the request, which may go by e-mail: a public key, and what the party calls itself, signed with its key

Of a request the authority takes the key. The name must be that of the file, further names need its own consent, and
everything else on the certificate is its own word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.net.pki.authority import (
    PARTY_DAYS,
    IssuedCertificate,
    Signer,
    alone_in,
    build_general_name,
    ensure_authority,
    find_issued,
    list_certificates,
    map_errors,
    replace_files,
    require_distinct,
)
from thinwire.net.pki.certificates import (
    CURVES,
    UNREADABLE,
    BadCertificate,
    CertificateFiles,
    PublicKey,
    private_pem,
    public_pem,
    read_certificates,
    read_key,
    read_pem_file,
    require_party_name,
)

_RSA_BITS = range(2048, 8193)
_HASHES = (SHA256, SHA384, SHA512)


@dataclass(frozen=True)
class CertificateRequest:
    """What a party asks for; its signature shows that it holds the key."""

    name: PartyName
    hosts: tuple[str, ...]
    key: PublicKey
    pem: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key, for two people to compare over the telephone."""
        return sha256(self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


# At the party -----------------------------------------------------------------------------------------------------


def write_request(folder: Path, name: PartyName, hosts: Sequence[str] = ()) -> tuple[CertificateRequest, bool]:
    """Writes <name>.csr, and <name>.key unless it is there; says whether the key is new.

    A key that is there is kept: a running party goes on with it until the new certificate has come.
    """
    require_party_name(name)
    names = [x509.DNSName(name), *(build_general_name(host) for host in dict.fromkeys(hosts) if host != name)]
    with map_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with alone_in(folder):
        files = CertificateFiles.in_folder(folder, name)
        is_new = not files.key.exists()
        key = ec.generate_private_key(ec.SECP256R1()) if is_new else read_key(files.key)
        asked = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(key, SHA256())
        )
        private = [(files.key, private_pem(key), 0o600)] if is_new else []
        place = folder / f"{name}.csr"
        replace_files(*private, (place, asked.public_bytes(Encoding.PEM), 0o644))
    return read_request(place), is_new


# At the authority -------------------------------------------------------------------------------------------------


def read_request(file: Path) -> CertificateRequest:
    """Reads and checks a request from somewhere else: its size, signature, key and names."""
    data, _ = read_pem_file(file)
    try:
        asked = x509.load_pem_x509_csr(data)
        key, is_signed = asked.public_key(), asked.is_signature_valid
        hash_algorithm = asked.signature_hash_algorithm
        names = list(_find_names(asked, file))
    except (*UNREADABLE, UnsupportedAlgorithm) as error:
        way_out = (
            "a request begins with -----BEGIN CERTIFICATE REQUEST-----; `thinwire certs DIR --request NAME` makes it"
        )
        raise BadCertificate(file, f"it holds no request that can be read ({error})", way_out) from None
    if not is_signed or not isinstance(hash_algorithm, _HASHES):
        cause = "its signature is not that of its key, with SHA-256 or longer"
        raise BadCertificate(file, cause, "it was changed in transit, or another tool wrote it: ask for a new one")
    name = _find_common_name(asked, file)
    hosts = tuple(host for host in dict.fromkeys(names) if host != name)
    for host in hosts:
        _require_host(file, host)
    return CertificateRequest(name, hosts, _require_key(key, file), asked.public_bytes(Encoding.PEM))


def require_signable(
    folder: Path, asked: CertificateRequest, hosts: Sequence[str] = (), revoked: Sequence[PartyName] = ()
) -> None:
    """Refuses names that the authority has not named itself, and a second key beside one that is good."""
    further = [host for host in asked.hosts if host not in hosts]
    if further:
        raise BadInput(
            f"party {asked.name!r} asks for a certificate that is valid for {', '.join(further)} too; if that is "
            f"right, add {' '.join(f'--host {host}' for host in further)}"
        )
    there = list_certificates(folder) if folder.is_dir() else []
    require_distinct(asked.name, hosts, there=[one for one in there if one.name != asked.name])
    for one in there:
        is_good = not (one.revoked or one.not_after < datetime.now(UTC) or one.name in revoked)
        if one.name == asked.name and is_good:
            _require_same_key(one, asked)


def sign_request(
    folder: Path, asked: CertificateRequest, hosts: Sequence[str] = (), days: int = PARTY_DAYS
) -> IssuedCertificate:
    """Writes <name>.pem, and keeps the request beside it. Without an authority in the folder, one is made first."""
    ensure_authority(folder)
    with alone_in(folder):
        require_signable(folder, asked, hosts)
        other = _find_other_key(folder / f"{asked.name}.key", asked)
        certificate = Signer(folder).sign(asked.name, hosts, days, asked.key)
        request = (folder / f"{asked.name}.csr", asked.pem, 0o644)
        replace_files(request, (folder / f"{asked.name}.pem", public_pem(certificate), 0o644))
        if other is not None:
            other.unlink()
    return find_issued(folder, asked.name)


def _find_other_key(file: Path, asked: CertificateRequest) -> Path | None:
    """Of a certificate that was made here, and is revoked or expired: beside the new one it would be a wrong pair."""
    return file if file.exists() and read_key(file).public_key() != asked.key else None


def _require_same_key(one: IssuedCertificate, asked: CertificateRequest) -> None:
    """A second key for a name that has one is how a thief would ask."""
    if read_certificates(one.files.certificate)[0].public_key() != asked.key:
        raise BadInput(
            f"party {asked.name!r} has a certificate for another key; ask it whether it made a new one, and revoke "
            f"the old one with the same command: --revoke {asked.name}"
        )


def _find_common_name(asked: x509.CertificateSigningRequest, file: Path) -> PartyName:
    found = [str(one.value) for one in asked.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if found != [file.stem]:
        raise BadCertificate(
            file,
            f"it is the request of {', '.join(map(repr, found)) or 'nobody'}, but the file is named {file.name!r}",
            "a request is for the one party that its file is named after; was it that one who sent it?",
        )
    require_party_name(found[0])
    return found[0]


def _find_names(asked: x509.CertificateSigningRequest, file: Path) -> Iterator[str]:
    """Alternative names. That it is to be an authority is refused; other wishes are left out of the certificate."""
    for extension in asked.extensions:
        if isinstance(extension.value, x509.BasicConstraints) and extension.value.ca:
            raise BadCertificate(file, "it asks to become an authority", "ask for a request without that")
        if isinstance(extension.value, x509.SubjectAlternativeName):
            for name in extension.value:
                if not isinstance(name, x509.DNSName | x509.IPAddress):
                    cause = f"it asks for a name that is neither a host nor an address ({name.value!r:.80})"
                    raise BadCertificate(file, cause, "ask for a request without that")
                yield str(name.value)


def _require_host(file: Path, host: str) -> None:
    try:
        build_general_name(host)
    except BadInput:
        raise BadCertificate(file, f"it asks for the host {host!r:.80}", "use no port and no wildcard") from None


def _require_key(key: object, file: Path) -> PublicKey:
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey) and key.key_size in _RSA_BITS:
        return key
    kind = f"{key.key_size} bits" if isinstance(key, rsa.RSAPublicKey) else "another kind"
    raise BadCertificate(
        file,
        f"its key is too weak or unusable here ({kind})",
        "use an EC key on P-256 or P-384, or RSA of 2048 to 8192 bits",
    )
