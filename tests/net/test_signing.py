"""Signatures under certificates: of the right party, of our authority, valid now, and of these words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from thinwire.net.grpc.service import Denied
from thinwire.net.pki import certificates
from thinwire.net.pki.authority import issue, revoke
from thinwire.net.pki.certificates import CertificateFiles, Revocations, load_credentials, public_pem
from thinwire.net.pki.signing import CertifiedIdentity

NAMES = {"bank": "bank", "shop": "shop", "post": "post"}
WORDS = b"what was said"


def identity(folder: Path, name: str, names: dict[str, str] | None = None) -> CertifiedIdentity:
    files = CertificateFiles.in_folder(folder, name)
    return CertifiedIdentity(
        lambda: load_credentials(files, name), NAMES if names is None else names, Revocations(folder / "revoked.txt")
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue(tmp_path / "certs", list(NAMES))
    return tmp_path / "certs"


def test_a_signature_holds_for_everybody_of_the_authority(folder: Path) -> None:
    proof = identity(folder, "bank").sign(WORDS)
    assert len(proof) % 1024 == 0
    for reader in NAMES:
        identity(folder, reader).verify("bank", WORDS, proof)


def test_other_words_another_party_and_changed_bytes_are_refused(folder: Path) -> None:
    proof = identity(folder, "bank").sign(WORDS)
    shop = identity(folder, "shop")
    with pytest.raises(Denied, match="the signature of 'bank' is not valid: these words were not signed"):
        shop.verify("bank", WORDS + b"!", proof)
    with pytest.raises(Denied, match="the signature of 'post' is not valid: the certificate is of bank"):
        shop.verify("post", WORDS, proof)
    used = 8 + int.from_bytes(proof[:4], "big") + int.from_bytes(proof[4:8], "big")
    for place in [*range(8), *range(40, used, 97), used - 1]:
        changed = bytearray(proof)
        changed[place] ^= 4
        with pytest.raises(Denied, match="is not valid"):
            shop.verify("bank", WORDS, bytes(changed))
    for cut in (0, 3, 8, 200, used - 1):
        with pytest.raises(Denied, match="is not valid"):
            shop.verify("bank", WORDS, proof[:cut])


def test_another_authority_is_refused(folder: Path, tmp_path: Path) -> None:
    issue(tmp_path / "others", ["bank"])
    proof = identity(tmp_path / "others", "bank").sign(WORDS)
    with pytest.raises(Denied, match="not signed by our authority"):
        identity(folder, "shop").verify("bank", WORDS, proof)


def test_a_revoked_certificate_is_refused(folder: Path) -> None:
    proof = identity(folder, "bank").sign(WORDS)
    revoke(folder, "bank")
    with pytest.raises(Denied, match="revoked"):
        identity(folder, "shop").verify("bank", WORDS, proof)


def test_an_expired_certificate_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = identity(folder, "bank").sign(WORDS)
    shop = identity(folder, "shop")
    held = shop.credentials()

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
            return datetime.now(UTC) + timedelta(days=5000)

    monkeypatch.setattr("thinwire.net.pki.certificates.datetime", Later)
    late = CertifiedIdentity(lambda: held, NAMES, shop.revocations)
    with pytest.raises(Denied, match=r"expired|not valid|no longer valid"):
        late.verify("bank", WORDS, proof)


def sign_each_other(count: int) -> list[x509.Certificate]:
    """A leaf, and authorities of one name and key, each of which has signed all others; none of them ours."""
    key = ec.generate_private_key(ec.SECP256R1())
    one = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "one")])
    day = timedelta(days=1)
    start = x509.CertificateBuilder().issuer_name(one).public_key(key.public_key())
    start = start.not_valid_before(datetime.now(UTC) - day).not_valid_after(datetime.now(UTC) + day)
    issuer = start.subject_name(one).add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    leaf = start.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bank")]))
    return [
        leaf.serial_number(1).sign(key, SHA256()),
        *(issuer.serial_number(2 + number).sign(key, SHA256()) for number in range(count)),
    ]


def test_authorities_that_signed_each_other_are_looked_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    signed = certificates._signed

    def count_looks(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
        nonlocal looks
        looks += 1
        return signed(certificate, issuer)

    shop = identity(folder, "shop")
    held = shop.credentials()
    shop = CertifiedIdentity(lambda: held, NAMES, shop.revocations)
    chain = public_pem(*sign_each_other(7))
    proof = len(chain).to_bytes(4, "big") + (0).to_bytes(4, "big") + chain
    monkeypatch.setattr(certificates, "_signed", count_looks)
    with pytest.raises(Denied, match="not signed by our authority"):
        shop.verify("bank", WORDS, proof)
    assert looks <= 8 * 8


def test_a_chain_of_140_certificates_is_not_looked_at(folder: Path) -> None:
    chain = public_pem(*sign_each_other(139))
    proof = len(chain).to_bytes(4, "big") + (0).to_bytes(4, "big") + chain
    assert len(proof) < 64 << 10
    with pytest.raises(Denied, match="it comes with 140 certificates, 16 at most"):
        identity(folder, "shop").verify("bank", WORDS, proof)
