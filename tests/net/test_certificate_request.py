"""Certificates by request: the key stays with its party, and of a request nothing is taken on trust."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from typer.testing import CliRunner

from thinwire.base.errors import BadInput
from thinwire.cli import app
from thinwire.net.pki.authority import issue, list_certificates, renew
from thinwire.net.pki.certificate_request import read_request, require_signable, sign_request, write_request
from thinwire.net.pki.certificates import BadCertificate, CertificateFiles, load_credentials

P256 = ec.generate_private_key(ec.SECP256R1())


def write_foreign(
    file: Path,
    *extensions: x509.ExtensionType,
    names: tuple[str, ...] = ("bank",),
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey = P256,
) -> Path:
    """A request as another tool makes it."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    made = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for extension in extensions:
        made = made.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256()
    file.write_bytes(made.sign(key, algorithm).public_bytes(Encoding.PEM))
    return file


def test_the_key_stays_and_the_certificate_holds(tmp_path: Path) -> None:
    at_bank, authority = tmp_path / "bank", tmp_path / "authority"
    asked, is_new = write_request(at_bank, "bank", ["10.0.0.1"])
    assert is_new
    assert (at_bank / "bank.key").stat().st_mode & 0o777 == 0o600
    made = sign_request(authority, read_request(at_bank / "bank.csr"), ["10.0.0.1"], days=7)
    assert (made.name, made.hosts) == ("bank", ("10.0.0.1",))
    assert sorted(file.name for file in authority.iterdir()) == [
        "bank.csr",
        "bank.pem",
        "ca.key",
        "ca.pem",
        "revoked.txt",
    ]
    for name in ("ca.pem", "bank.pem", "revoked.txt"):
        (at_bank / name).write_bytes((authority / name).read_bytes())
    assert load_credentials(CertificateFiles.in_folder(at_bank, "bank"), "bank").serial == made.serial
    again, is_new = write_request(at_bank, "bank")  # a year later, while the party runs
    assert (again.fingerprint, is_new) == (asked.fingerprint, False)
    assert sign_request(authority, again).serial != made.serial
    with pytest.raises(BadCertificate, match="made its key itself, and nobody else can renew it"):
        renew(authority, "bank")


def test_what_a_request_wishes_is_not_on_the_certificate(tmp_path: Path) -> None:
    wishes = (
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]),
        x509.BasicConstraints(ca=False, path_length=None),
    )
    usage = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign", "key_agreement"), True)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "encipher_only", "decipher_only")
    signs = x509.KeyUsage(**usage, **dict.fromkeys(others, False))
    sign_request(tmp_path, read_request(write_foreign(tmp_path / "bank.csr", *wishes, signs)))
    issued = x509.load_pem_x509_certificate((tmp_path / "bank.pem").read_bytes()).extensions
    uses = list(issued.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not issued.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert not issued.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize(
    ("extensions", "message"),
    [
        ([x509.BasicConstraints(ca=True, path_length=None)], "it asks to become an authority"),
        ([x509.SubjectAlternativeName([x509.RFC822Name("a@b.org")])], "neither a host nor an address"),
        ([x509.SubjectAlternativeName([x509.DNSName("*.bank.org")])], r"it asks for the host '\*\.bank\.org'"),
    ],
)
def test_a_request_that_goes_too_far(extensions: list[x509.ExtensionType], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match=message):
        read_request(write_foreign(tmp_path / "bank.csr", *extensions))


@pytest.mark.parametrize("names", [(), ("shop",), ("bank", "shop")])
def test_a_request_is_of_the_party_its_file_is_named_after(names: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(BadCertificate, match=r"it is the request of .*, but the file is named 'bank\.csr'"):
        read_request(write_foreign(tmp_path / "bank.csr", names=names))


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (rsa.generate_private_key(65537, 1024), "1024 bits"),  # noqa: S505  what is to be refused
        (ec.generate_private_key(ec.SECP521R1()), "another kind"),
        (ed25519.Ed25519PrivateKey.generate(), "its signature is not"),
    ],
    ids=["rsa-1024", "p-521", "ed25519"],
)
def test_a_weak_or_unusable_key(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey, kind: str, tmp_path: Path
) -> None:
    with pytest.raises(BadCertificate, match=kind):
        read_request(write_foreign(tmp_path / "bank.csr", key=key))


def test_a_request_of_rsa_is_as_good(tmp_path: Path) -> None:
    file = write_foreign(tmp_path / "bank.csr", key=rsa.generate_private_key(65537, 2048))
    assert sign_request(tmp_path, read_request(file)).name == "bank"


def test_a_request_that_was_changed_on_the_way(tmp_path: Path) -> None:
    write_request(tmp_path, "bank")
    asked = x509.load_pem_x509_csr((tmp_path / "bank.csr").read_bytes()).public_bytes(Encoding.DER)
    changed = x509.load_der_x509_csr(asked.replace(b"bank", b"shop"))
    (tmp_path / "shop.csr").write_bytes(changed.public_bytes(Encoding.PEM))
    with pytest.raises(BadCertificate, match="its signature is not that of its key"):
        read_request(tmp_path / "shop.csr")
    (tmp_path / "none.csr").write_text("-----BEGIN CERTIFICATE REQUEST-----\n")
    with pytest.raises(BadCertificate, match="it holds no request that can be read"):
        read_request(tmp_path / "none.csr")


def test_names_need_the_consent_of_the_authority(tmp_path: Path) -> None:
    names = x509.SubjectAlternativeName([x509.DNSName("clinic"), x509.IPAddress(ip_address("10.0.0.1"))])
    asked = read_request(write_foreign(tmp_path / "bank.csr", names))
    with pytest.raises(BadInput, match=r"valid for clinic, 10\.0\.0\.1 too.*add --host clinic --host 10\.0\.0\.1"):
        require_signable(tmp_path, asked)
    issue(tmp_path / "authority", ["clinic"])
    with pytest.raises(BadInput, match="would be valid for the party 'clinic' too"):
        sign_request(tmp_path / "authority", asked, ["clinic", "10.0.0.1"])


def test_a_second_key_for_a_name_is_refused_until_the_first_is_revoked(tmp_path: Path) -> None:
    issue(tmp_path / "ca", ["bank"])
    before = (tmp_path / "ca" / "bank.pem").read_bytes()
    write_request(tmp_path / "bank", "bank")
    sign = ["certs", str(tmp_path / "ca"), "--sign", str(tmp_path / "bank" / "bank.csr")]
    refused = CliRunner().invoke(app, sign)
    assert isinstance(refused.exception, BadInput)
    assert "has a certificate for another key" in str(refused.exception)
    assert (tmp_path / "ca" / "bank.pem").read_bytes() == before
    done = CliRunner().invoke(app, [*sign, "--revoke", "bank"])
    assert done.exit_code == 0
    assert "  bank: revoked and signed, valid until" in done.stdout
    assert [one.revoked for one in list_certificates(tmp_path / "ca")] == [False]
    assert not (tmp_path / "ca" / "bank.key").exists()  # the key of the revoked one


def test_the_two_commands(tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    asked = json.loads(CliRunner().invoke(app, ["certs", theirs, "--request", "bank", "--json"]).stdout)
    assert asked["key_is_new"]
    shown = CliRunner().invoke(app, ["certs", ours, "--sign", asked["request"]]).stdout
    assert "e-mail will do:\n  bank: ca.pem, bank.pem, revoked.txt\n" in shown
    assert asked["fingerprint"] in shown.replace(" ", "")
    listed = json.loads(CliRunner().invoke(app, ["certs", ours, "--json"]).stdout)["certificates"]
    assert [(one["name"], one["key"]) for one in listed] == [("bank", None)]
    mixed = CliRunner().invoke(app, ["certs", ours, "--request", "bank", "--party", "shop"])
    assert "--request is the party's own command" in str(mixed.exception)
