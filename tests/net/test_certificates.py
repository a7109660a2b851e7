"""Certificates, keys and authorities: real files, real handshakes, one message for each way they can be wrong."""

from __future__ import annotations

import os
import ssl
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thinwire.base.errors import BadInput
from thinwire.net.pki import authority, certificates
from thinwire.net.pki.authority import ensure_authority, issue, list_certificates, renew, revoke
from thinwire.net.pki.certificates import (
    BadCertificate,
    CertificateFiles,
    Revocations,
    load_credentials,
    private_pem,
    public_pem,
    read_names,
)

NOW = datetime.now(UTC)
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH


def files_of(folder: Path, name: str = "bank") -> CertificateFiles:
    return CertificateFiles.in_folder(folder, name)


def refused(files: CertificateFiles, name: str = "bank", now: datetime | None = None) -> str:
    with pytest.raises(BadCertificate) as error:
        load_credentials(files, name, now)
    return str(error.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def certificate_in(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issue(tmp_path / "certs", ["bank", "shop"])
    return tmp_path / "certs"


# An organisation's own authority --------------------------------------------------------------------------------


class Own:
    """A certificate of any shape, with its key."""

    def __init__(self, subject: str, signer: Own | None = None, key: Any = None, **shape: Any) -> None:
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(signer.certificate.subject if signer else name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(shape.get("start", NOW - timedelta(days=1)))
            .not_valid_after(shape.get("end", NOW + timedelta(days=30)))
        )
        if "ca" in shape:
            builder = builder.add_extension(x509.BasicConstraints(ca=shape["ca"], path_length=None), critical=True)
        for extension in shape.get("extensions", ()):
            builder = builder.add_extension(extension, critical=False)
        self.certificate: x509.Certificate = builder.sign((signer or self).key, SHA256())

    @property
    def pem(self) -> bytes:
        return public_pem(self.certificate)


def stored(folder: Path, leaf: Own, root: Own, *between: Own) -> CertificateFiles:
    files = CertificateFiles(folder / "root.pem", folder / "leaf.pem", folder / "leaf.key")
    files.authority.write_bytes(root.pem)
    files.certificate.write_bytes(leaf.pem + b"".join(one.pem for one in between))
    files.key.touch(mode=0o600)
    files.key.write_bytes(leaf.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    return files


def san(*names: str) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.DNSName(name) for name in names])


@pytest.fixture(scope="module")
def rsa_keys() -> list[rsa.RSAPrivateKey]:
    return [rsa.generate_private_key(65537, 2048) for _ in range(3)]


# What is issued -------------------------------------------------------------------------------------------------


def test_what_a_partys_certificate_says(tmp_path: Path) -> None:
    assert issue(tmp_path, ["a_1"], ["a.example.org", "10.0.0.7", "::1", "a_1"], days=10) == {"a_1": True}
    leaf, root = certificate_in(tmp_path / "a_1.pem"), certificate_in(tmp_path / "ca.pem")
    values = {type(one.value): one.value for one in leaf.extensions}
    assert leaf.subject.rfc4514_string() == "CN=a_1"
    assert list(values[x509.SubjectAlternativeName]) == [
        x509.DNSName("a_1"),
        x509.DNSName("a.example.org"),
        x509.IPAddress(ip_address("10.0.0.7")),
        x509.IPAddress(ip_address("::1")),
    ]
    assert list(values[x509.ExtendedKeyUsage]) == [SERVER, CLIENT]
    assert values[x509.BasicConstraints] == x509.BasicConstraints(ca=False, path_length=None)
    usage = values[x509.KeyUsage]
    assert (usage.digital_signature, usage.key_cert_sign, usage.key_encipherment) == (True, False, False)
    assert isinstance(leaf.public_key(), ec.EllipticCurvePublicKey)
    assert abs(leaf.not_valid_after_utc - datetime.now(UTC) - timedelta(days=10)) < timedelta(minutes=5)
    assert timedelta(minutes=59) < datetime.now(UTC) - leaf.not_valid_before_utc < timedelta(minutes=65)
    leaf.verify_directly_issued_by(root)


def test_what_the_authoritys_certificate_says(tmp_path: Path) -> None:
    assert ensure_authority(tmp_path)
    root = certificate_in(tmp_path / "ca.pem")
    values = {type(one.value): one.value for one in root.extensions}
    assert values[x509.BasicConstraints] == x509.BasicConstraints(ca=True, path_length=0)
    usage = values[x509.KeyUsage]
    assert (usage.digital_signature, usage.key_cert_sign, usage.crl_sign) == (False, True, True)
    assert root.not_valid_after_utc - NOW > timedelta(days=3650)
    assert not ensure_authority(tmp_path)
    assert certificate_in(tmp_path / "ca.pem") == root


def test_keys_are_private_whatever_the_umask_and_nothing_is_left_over(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "new" / "certs"
        issue(folder, ["bank"])
        renew(folder, "bank")
        revoke(folder, "bank")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    assert {file.name: mode(file) for file in folder.iterdir()} == {
        "ca.key": 0o600,
        "bank.key": 0o600,
        "ca.pem": 0o644,
        "bank.pem": 0o644,
        "revoked.txt": 0o644,
    }


def test_a_key_is_private_from_its_first_byte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int, int]] = []
    real = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        if flags & os.O_CREAT:
            opened.append((Path(path).name, flags & os.O_EXCL, mode))
        return real(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", watched)
    issue(tmp_path, ["bank"])
    assert all(exclusive for _, exclusive, _ in opened)
    assert [mode for name, _, mode in opened if ".key." in name] == [0o600, 0o600]


def test_what_is_there_is_kept(folder: Path) -> None:
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert issue(folder, ["bank", "new", "bank"]) == {"bank": False, "new": True}
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert [one.name for one in list_certificates(folder)] == ["bank", "new", "shop"]


def test_commands_at_the_same_time_make_one_pair(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: issue(tmp_path, ["bank"])["bank"], range(8)))
    assert made.count(True) == 1
    load_credentials(files_of(tmp_path), "bank")


def test_other_files_in_the_folder_are_left_alone(folder: Path) -> None:
    root = Own("root", ca=True)
    (folder / "bundle.pem").write_bytes(root.pem)
    (folder / "a.example.org.pem").write_bytes(Own("x", root, extensions=[san("a.example.org")]).pem)
    assert [one.name for one in list_certificates(folder)] == ["bank", "shop"]
    with pytest.raises(BadCertificate, match=r"bundle\.pem: it already exists, but not as one of a pair"):
        issue(folder, ["bundle"])


def test_a_certificate_does_not_outlive_its_authority(folder: Path) -> None:
    assert renew(folder, "bank", days=99_999).not_after == authority.read_authority_end(folder)


@pytest.mark.parametrize("name", ["", "a b", "-a", "_a", "../a", "a/b", "a.b", "é", "x" * 65, "ca", "CA", "a\n"])
def test_names_by_our_rule_only(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="a name has at most 64 letters, digits, - and _"):
        issue(tmp_path / "new", ["good", name])
    with pytest.raises(BadInput, match="a name has at most 64 letters"):
        CertificateFiles.in_folder(tmp_path, name)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["", "a b", "a:1", "[::1]", "*.example.org", "300.1.2.3", "a..b", "é.org", "-a.org"])
def test_hosts_are_names_or_addresses(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadInput, match="give a host name or an IP address, without a port"):
        issue(tmp_path / "new", ["bank"], [host])
    assert not (tmp_path / "new").exists()


def test_no_certificate_is_good_for_another_party(folder: Path) -> None:
    issue(folder, ["third"], ["cafe"])
    before = sorted(file.name for file in folder.iterdir())
    for names, hosts in ((["x"], ["bank"]), (["x"], ["BANK"]), (["Bank"], []), (["x", "y"], ["x"]), (["cafe"], [])):
        with pytest.raises(BadInput, match="valid for"):
            issue(folder, names, hosts)
    with pytest.raises(BadInput, match="would be valid for the party 'shop' too"):
        renew(folder, "bank", ["shop"])
    assert sorted(file.name for file in folder.iterdir()) == before


def test_an_authority_that_cannot_issue(folder: Path, tmp_path: Path) -> None:
    (folder / "ca.key").rename(tmp_path / "kept.key")
    with pytest.raises(BadCertificate, match=r"ca\.key: the file does not exist"):
        issue(folder, ["new"])
    assert issue(folder, ["bank"]) == {"bank": False}
    issue(tmp_path / "other", ["x"])
    (tmp_path / "other" / "ca.key").rename(folder / "ca.key")
    with pytest.raises(BadCertificate, match="belongs to another authority"):
        renew(folder, "bank")
    (folder / "ca.pem").unlink()
    with pytest.raises(BadCertificate, match=r"ca\.pem: it is missing next to ca\.key"):
        issue(folder, ["new"])


def test_an_expired_authority_issues_nothing(tmp_path: Path) -> None:
    root = Own("root", ca=True, end=NOW - timedelta(hours=1))
    (tmp_path / "ca.pem").write_bytes(root.pem)
    (tmp_path / "ca.key").touch(mode=0o600)
    (tmp_path / "ca.key").write_bytes(private_pem(root.key))
    with pytest.raises(BadCertificate, match="the authority expired on"):
        issue(tmp_path, ["bank"])


def test_half_a_pair_is_not_overwritten_but_can_be_renewed(folder: Path) -> None:
    (folder / "bank.pem").unlink()
    with pytest.raises(BadCertificate, match=r"bank\.key: it already exists.*--renew bank"):
        issue(folder, ["bank"])
    with pytest.raises(BadCertificate, match=r"bank\.pem: it is not there"):
        revoke(folder, "bank")
    renew(folder, "bank")
    load_credentials(files_of(folder), "bank")


def test_a_folder_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadCertificate, match=r"file: it cannot be written \(File exists\)"):
        issue(tmp_path / "file", ["bank"])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    (tmp_path / "revoked.txt").touch()
    with pytest.raises(BadCertificate, match=r"ca\.key: its \d+ bytes cannot be written \(No space left on device\)"):
        issue(tmp_path, ["bank"])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "revoked.txt"]


# Handshakes -----------------------------------------------------------------------------------------------------


def context(side: int, files: CertificateFiles) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(files.authority)
    made.load_cert_chain(files.certificate, files.key)
    return made


def shake_hands(server: CertificateFiles, client: CertificateFiles, name: str) -> ssl.SSLObject:
    """Mutual TLS 1.3 in memory; the server's end, once a byte has come through."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    listening = context(ssl.PROTOCOL_TLS_SERVER, server).wrap_bio(to_server, to_client, server_side=True)
    calling = context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(4):
        for end in (calling, listening):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    calling.write(b"x")
    assert listening.read(1) == b"x"
    return listening


def test_mutual_tls_between_two_parties(folder: Path) -> None:
    issue(folder, ["a_b"])
    end = shake_hands(files_of(folder, "a_b"), files_of(folder, "bank"), "a_b")
    assert end.version() == "TLSv1.3"
    peer = end.getpeercert(binary_form=True)
    assert peer is not None
    assert read_names(ssl.DER_cert_to_PEM_cert(peer).encode()) == {"bank"}


def test_another_authority_or_name_fails_the_handshake(folder: Path, tmp_path: Path) -> None:
    issue(tmp_path / "other", ["bank", "shop"])
    ours, theirs = files_of(folder), files_of(tmp_path / "other", "shop")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(theirs, ours, "shop")
    stranger = replace(theirs, authority=ours.authority)  # trusts us; we do not know it
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(ours, stranger, "bank")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(files_of(folder, "shop"), ours, "third")


@pytest.mark.parametrize("name", ["a_b", "x" * 64, "Bank-", "7"])
def test_grpc_takes_every_name_and_hands_it_on(tmp_path: Path, name: str) -> None:
    issue(tmp_path, [name, "caller"])
    assert grpc_caller(files_of(tmp_path, name), name, files_of(tmp_path, "caller"), "caller") == {"caller"}


def grpc_caller(
    server_files: CertificateFiles, server_name: str, client_files: CertificateFiles, client_name: str
) -> frozenset[str]:
    """The names by which a gRPC server knows its caller."""
    theirs, ours = load_credentials(server_files, server_name), load_credentials(client_files, client_name)

    def answer(request: bytes, call: grpc.ServicerContext) -> bytes:
        held: Any = call.auth_context()
        return bytes(held["x509_pem_cert"][0])

    handlers: dict[str, Any] = {"who": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    secure = grpc.ssl_server_credentials(
        [(theirs.key_pem, theirs.certificate_pem)], theirs.authority_pem, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", secure)
    server.start()
    mine = grpc.ssl_channel_credentials(ours.authority_pem, ours.key_pem, ours.certificate_pem)
    options = [("grpc.ssl_target_name_override", server_name), ("grpc.enable_http_proxy", 0)]
    try:
        with grpc.secure_channel(f"127.0.0.1:{port}", mine, options) as channel:
            ask: Any = channel.unary_unary("/test/who")
            return read_names(ask(b"", timeout=300))
    finally:
        server.stop(0).wait()


# Loading --------------------------------------------------------------------------------------------------------


def test_what_is_loaded(folder: Path) -> None:
    found = load_credentials(files_of(folder), "bank")
    leaf = certificate_in(folder / "bank.pem")
    assert found.names == {"bank"}
    assert (found.serial, found.not_after) == (leaf.serial_number, leaf.not_valid_after_utc)
    assert found.certificate_pem == (folder / "bank.pem").read_bytes()
    assert found.authority_pem == (folder / "ca.pem").read_bytes()
    assert found.key_pem == (folder / "bank.key").read_bytes()
    assert "PRIVATE" not in repr(found)
    assert "key_pem" not in repr(found)


@pytest.mark.parametrize("field", ["authority", "certificate", "key"])
def test_missing_a_folder_a_pipe_or_not_pem(folder: Path, field: str) -> None:
    files = files_of(folder)
    path = getattr(files, field)
    path.unlink()
    assert refused(files).startswith(f"{path}: the file does not exist; ")
    path.mkdir()
    assert refused(files).startswith(f"{path}: it is a folder; name the ")
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert refused(files).startswith(f"{path}: it is not a regular file")
    path.unlink()
    for data in (b"", b"hello", b"\x30\x82\x01\x00", (folder / "shop.pem").read_bytes()[:200]):
        path.touch(mode=0o600)
        path.write_bytes(data)
        said = refused(files)
        assert said.startswith(f"{path}: it holds no PEM ")
        assert "begins with -----BEGIN " in said


def test_a_path_through_a_file(folder: Path) -> None:
    files = replace(files_of(folder), authority=folder / "bank.pem" / "ca.pem")
    assert "it cannot be read (Not a directory)" in refused(files)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything, so it steps down for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("field", ["authority", "certificate", "key", "revoked"])
def test_files_that_this_user_may_not_read(field: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        issue(folder, ["bank"])
        files = files_of(folder)
        (folder / "bank.key").chmod(0o400)
        if not os.geteuid():
            os.chown(folder / "bank.key", 65534, -1)
        path = getattr(files, field)
        path.chmod(0)
        with as_nobody(), pytest.raises(BadCertificate) as error:
            Revocations(path) if field == "revoked" else load_credentials(files, "bank")
        assert str(error.value).startswith(f"{path}: this user may not read it; run as its owner")


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o644, 0o620, 0o660])
def test_a_key_that_others_can_use(folder: Path, bits: int) -> None:
    key = folder / "bank.key"
    key.chmod(bits)
    assert refused(files_of(folder)) == (
        f"{key}: users other than its owner can read or change this key (mode {bits:04o}); make it private: chmod "
        f"600 {key}"
    )
    key.chmod(0o400)
    load_credentials(files_of(folder), "bank")


def test_an_encrypted_key(folder: Path) -> None:
    secret = ec.generate_private_key(ec.SECP256R1())
    (folder / "bank.key").write_bytes(
        secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    )
    assert "bank.key: the key is encrypted" in refused(files_of(folder))
    assert "store it without one: (umask 077; openssl pkey" in refused(files_of(folder))


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP521R1())])
def test_a_kind_of_key_that_grpc_does_not_take(folder: Path, key: Any) -> None:
    (folder / "bank.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert "gRPC cannot use a key of this kind; use an EC key on P-256" in refused(files_of(folder))


def test_a_key_of_another_certificate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(certificates, "sleep", pauses.append)
    files = replace(files_of(folder), key=folder / "shop.key")
    assert refused(files).startswith(
        f"{folder / 'shop.key'}: the key belongs to another certificate than {folder / 'bank.pem'}; take both files"
    )
    assert pauses == [0.1]


def test_a_renewal_seen_half_done_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = (folder / "bank.pem").read_bytes()
    renew(folder, "bank")
    new = (folder / "bank.pem").read_bytes()
    (folder / "bank.pem").write_bytes(old)
    monkeypatch.setattr(certificates, "sleep", lambda _: (folder / "bank.pem").write_bytes(new))
    assert load_credentials(files_of(folder), "bank").certificate_pem == new


def test_expired_and_not_yet_valid(folder: Path) -> None:
    leaf = certificate_in(folder / "bank.pem")
    end, start = leaf.not_valid_after_utc, leaf.not_valid_before_utc
    load_credentials(files_of(folder), "bank", end)
    load_credentials(files_of(folder), "bank", start)
    assert refused(files_of(folder), now=end + timedelta(seconds=1)) == (
        f"{folder / 'bank.pem'}: it expired on {end:%Y-%m-%d %H:%M} UTC; renew it with: thinwire certs DIR "
        "--renew bank"
    )
    said = refused(files_of(folder), now=start - timedelta(seconds=1))
    assert f"it is not valid before {start:%Y-%m-%d %H:%M} UTC, now is " in said
    assert said.endswith("is this computer's clock right?")


def test_another_authority(folder: Path, tmp_path: Path) -> None:
    ensure_authority(tmp_path / "other")
    said = refused(replace(files_of(folder), authority=tmp_path / "other" / "ca.pem"))
    assert f"{folder / 'bank.pem'}: it was not signed by the authority in {tmp_path / 'other' / 'ca.pem'}" in said
    assert certificate_in(folder / "ca.pem").subject.rfc4514_string() in said
    assert certificate_in(tmp_path / "other" / "ca.pem").subject.rfc4514_string() in said


def test_an_authority_of_the_same_name_with_another_key(tmp_path: Path) -> None:
    leaf = Own("bank", Own("root", ca=True), extensions=[san("bank")])
    assert "it was not signed by the authority" in refused(stored(tmp_path, leaf, Own("root", ca=True)))


@pytest.mark.parametrize("shape", [{}, {"ca": False}])
def test_a_party_is_no_authority(tmp_path: Path, shape: dict[str, bool]) -> None:
    shop = Own("shop", Own("root", ca=True), extensions=[san("shop")], **shape)
    files = stored(tmp_path, Own("bank", shop, extensions=[san("bank")]), shop)
    assert "it was not signed by the authority" in refused(files)


def test_self_signed(tmp_path: Path) -> None:
    leaf = Own("bank", extensions=[san("bank")])
    said = refused(stored(tmp_path, leaf, leaf))
    assert "leaf.pem: it is self-signed, so it proves nothing to others; use one" in said


def test_another_name(folder: Path) -> None:
    renew(folder, "bank", ["bank.example.org", "10.1.1.1"])
    assert refused(files_of(folder), "shop") == (
        f"{folder / 'bank.pem'}: it is not the certificate of 'shop', it is for bank, bank.example.org; give each "
        "party the certificate issued for its name"
    )
    assert "it is not the certificate of 'Bank'" in refused(files_of(folder), "Bank")


def test_names_are_the_alternative_names_or_else_the_common_name() -> None:
    root = Own("root", ca=True)
    both = Own("common", root, extensions=[san("one", "two")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("10.0.0.1"))])
    addressed = Own("common", root, extensions=[address])
    assert read_names(both.pem) == {"one", "two"}
    assert read_names(Own("common", root).pem) == {"common"}
    assert read_names(addressed.pem) == frozenset()
    with pytest.raises(BadCertificate, match=r"^the peer's certificate: it cannot be read"):
        read_names(b"nonsense")
    foreign = x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, b"\x30\x03\x82\x01\xff")
    with pytest.raises(BadCertificate, match=r"^the peer's certificate: an extension of it cannot be read"):
        read_names(Own("common", root, extensions=[foreign]).pem)


@pytest.mark.parametrize(
    ("uses", "lacking"), [([SERVER], "clientAuth"), ([CLIENT], "serverAuth"), ([], "serverAuth and clientAuth")]
)
def test_a_certificate_for_one_end_only(tmp_path: Path, uses: list[Any], lacking: str) -> None:
    root = Own("root", ca=True)
    wanted = uses or [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]  # which TLS libraries do not take for both
    leaf = Own("bank", root, extensions=[san("bank"), x509.ExtendedKeyUsage(wanted)])
    assert f"leaf.pem: its (extended) key usage lacks {lacking}; have it issued for TLS" in refused(
        stored(tmp_path, leaf, root)
    )


def test_a_certificate_that_may_not_sign(tmp_path: Path) -> None:
    root = Own("root", ca=True)
    usage = x509.KeyUsage(False, False, True, False, False, False, False, False, False)
    leaf = Own("bank", root, extensions=[san("bank"), usage])
    assert "key usage lacks digitalSignature" in refused(stored(tmp_path, leaf, root))


# Bring your own -------------------------------------------------------------------------------------------------


def test_rsa_with_intermediate_authorities(tmp_path: Path, rsa_keys: list[rsa.RSAPrivateKey]) -> None:
    root = Own("root", key=rsa_keys[0], ca=True)
    upper = Own("upper", root, key=rsa_keys[1], ca=True)
    lower = Own("lower", upper, ca=True)  # EC under RSA
    leaf = Own("bank", lower, key=rsa_keys[2], extensions=[san("bank", "bank.example.org")])
    files = stored(tmp_path, leaf, root, lower, upper)
    found = load_credentials(files, "bank")
    assert found.names == {"bank", "bank.example.org"}
    assert found.certificate_pem == leaf.pem + lower.pem + upper.pem
    assert found.key_pem.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert grpc_caller(files, "bank", files, "bank") == found.names

    said = refused(stored(tmp_path, leaf, root, lower))
    assert "it was not signed by the authority" in said
    assert "signed by CN=upper, the authority is CN=root" in said
    assert "append that one's certificate to this file" in said
    load_credentials(stored(tmp_path, leaf, root, upper, lower, root), "bank")  # in any order, the root with them
    load_credentials(stored(tmp_path, leaf, lower), "bank")  # an intermediate one can be trusted by itself


def test_text_around_the_certificates_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    root = Own("root", ca=True)
    leaf = Own("bank", root, extensions=[san("bank")])
    files = stored(tmp_path, leaf, root)
    files.certificate.write_bytes(b"subject=bank\r\n" + leaf.pem.replace(b"\n", b"\r\n"))
    assert load_credentials(files, "bank").certificate_pem == leaf.pem


def test_the_authoritys_certificate_before_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "sleep", lambda _: None)
    root = Own("root", ca=True)
    leaf = Own("bank", root, extensions=[san("bank")])
    files = stored(tmp_path, leaf, root)
    files.certificate.write_bytes(root.pem + leaf.pem)
    assert "the party's own certificate is not the first in it" in refused(files)


def test_an_expired_authority(tmp_path: Path) -> None:
    yesterday = NOW - timedelta(days=1)
    root = Own("root", ca=True, start=NOW - timedelta(days=9), end=yesterday)
    leaf = Own("bank", root, extensions=[san("bank")])
    said = refused(stored(tmp_path, leaf, root))
    assert said.startswith(f"{tmp_path / 'root.pem'}: the authority CN=root expired on {yesterday:%Y-%m}")

    good = Own("root", key=root.key, ca=True)  # the same authority, prolonged
    (tmp_path / "root.pem").write_bytes(root.pem + good.pem)
    load_credentials(CertificateFiles(*(tmp_path / name for name in ("root.pem", "leaf.pem", "leaf.key"))), "bank")

    between = Own("between", good, ca=True, start=NOW - timedelta(days=9), end=yesterday)
    leaf = Own("bank", between, extensions=[san("bank")])
    said = refused(stored(tmp_path, leaf, good, between))
    assert said.startswith(f"{tmp_path / 'leaf.pem'}: the authority CN=between expired on")


# Renewal and revocation -----------------------------------------------------------------------------------------


def test_renewal_changes_key_and_serial_and_keeps_the_hosts(folder: Path) -> None:
    issue(folder, ["third"], ["third.example.org", "10.0.0.3"])
    old = load_credentials(files_of(folder, "third"), "third")
    renewed = renew(folder, "third")
    new = load_credentials(files_of(folder, "third"), "third")
    assert (renewed.serial, renewed.hosts) == (new.serial, ("third.example.org", "10.0.0.3"))
    assert new.serial != old.serial
    assert new.key_pem != old.key_pem
    assert renew(folder, "third", []).hosts == ()


def test_unknown_names_are_told_which_there_are(folder: Path) -> None:
    for change in (renew, revoke):
        with pytest.raises(BadInput, match=r"party 'banc' has no certificate in .*; did you mean 'bank'"):
            change(folder, "banc")
        with pytest.raises(BadInput, match="there are bank, shop"):
            change(folder, "xyz")
        with pytest.raises(BadInput, match="a name has at most 64 letters"):
            change(folder, "../bank")


def test_revoked_while_the_run_goes_on(folder: Path) -> None:
    bank, shop = (folder / "bank.pem").read_bytes(), (folder / "shop.pem").read_bytes()
    watching = Revocations(folder / "revoked.txt")
    assert watching.find_refusal(bank) is None
    assert revoke(folder, "bank")
    assert not revoke(folder, "bank")
    serial = certificate_in(folder / "bank.pem").serial_number
    assert (
        watching.find_refusal(bank)
        == f"its certificate is revoked: {folder / 'revoked.txt'} lists its serial {serial:x}"
    )
    assert watching.find_refusal(shop) is None
    lines = (folder / "revoked.txt").read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"{serial:x}  bank, revoked 2")
    assert [one.revoked for one in list_certificates(folder)] == [True, False]
    renew(folder, "bank")
    assert watching.find_refusal((folder / "bank.pem").read_bytes()) is None
    revoke(folder, "shop")
    assert watching.find_refusal(shop) is not None
    assert watching.find_refusal(bank) is not None
    assert watching.problem is None


def test_a_peer_whose_certificate_lapsed(folder: Path) -> None:
    pem, leaf = (folder / "bank.pem").read_bytes(), certificate_in(folder / "bank.pem")
    for file in (None, folder / "nowhere.txt"):
        there = Revocations(file)
        assert there.find_refusal(pem) is None
        late = there.find_refusal(pem, leaf.not_valid_after_utc + timedelta(days=1))
        assert late == f"its certificate expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
        early = there.find_refusal(pem, leaf.not_valid_before_utc - timedelta(days=1))
        assert early is not None
        assert early.startswith("its certificate is not valid before ")
    assert (Revocations(None).find_refusal(b"nonsense") or "").startswith("its certificate cannot be read")


def test_a_list_that_appears_later(folder: Path) -> None:
    (folder / "revoked.txt").unlink()
    watching = Revocations(folder / "revoked.txt")
    assert watching.serials() == frozenset()
    revoke(folder, "bank")
    assert watching.serials() == {certificate_in(folder / "bank.pem").serial_number}


@pytest.mark.parametrize("line", ["xyz", "0x12", "12_3", "serial=12", "-1", "a" * 41, "12,bank", "\x00"])
def test_a_malformed_list_is_refused_at_the_start(tmp_path: Path, line: str) -> None:
    file = tmp_path / "revoked.txt"
    file.write_text(f"# comment\nab12  bank, revoked\n\n{line}\n")
    with pytest.raises(BadCertificate, match=r"revoked\.txt: line 4 does not begin with a serial number"):
        Revocations(file)


def test_hand_written_lists(tmp_path: Path) -> None:
    file = tmp_path / "revoked.txt"
    file.write_bytes(b"\xef\xbb\xbfAB12\r\n00cd\ttab\r\n  ef  \xff\r\n1f")
    assert Revocations(file).serials() == {0xAB12, 0xCD, 0xEF, 0x1F}
    with pytest.raises(BadCertificate, match="it is a folder"):
        Revocations(tmp_path)


def test_a_list_in_trouble_leaves_the_last_good_one_in_force(folder: Path) -> None:
    file, bank = folder / "revoked.txt", (folder / "bank.pem").read_bytes()
    revoke(folder, "bank")
    good = file.read_text()
    watching = Revocations(file)
    file.write_text(good + "nonsense\n")
    assert watching.find_refusal(bank) is not None
    assert watching.problem is not None
    assert watching.problem.startswith(f"{file}: line 2 does not begin with a serial number")
    assert watching.problem.endswith("(the list read before stays in force)")
    file.unlink()
    assert watching.find_refusal(bank) is not None
    assert watching.problem is not None
    assert "it is gone" in watching.problem
    file.write_text("")
    assert watching.find_refusal(bank) is None
    assert watching.problem is None
