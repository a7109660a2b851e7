"""Callers with bad certificates, or none, at a running label party: refused before a handler runs, no trace left."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from faults.conftest import Stage
from faults.running import FEATURES, LABEL, JobKind, Run
from faults.test_messages import state_of
from thinwire.job.party_view import read_party_view
from thinwire.net.grpc.service import CLAIM, RPCS
from thinwire.net.links.records import Record, json_record
from thinwire.net.pki.authority import issue, renew
from thinwire.net.pki.certificates import private_pem, public_pem, read_certificates, read_key
from thinwire.training.party.status import ask_label_party

KIND = JobKind(epochs=20)


def signed(
    folder: Path, name: str, days: tuple[int, int] = (-1, 30), authority: Path | None = None
) -> tuple[bytes, bytes]:
    """A certificate and its key, by the run's authority, or by itself where there is none."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = subject, key
    if authority is not None:
        issuer = read_certificates(authority / "ca.pem")[0].subject
        held = read_key(authority / "ca.key")
        assert isinstance(held, ec.EllipticCurvePrivateKey)
        signer = held
    now = datetime.now(UTC)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=min(days[0], -60)))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .sign(signer, SHA256())
    )
    return public_pem(certificate), private_pem(key)


def from_folder(folder: Path, name: str) -> tuple[bytes, bytes]:
    return (folder / f"{name}.pem").read_bytes(), (folder / f"{name}.key").read_bytes()


def call_everything(run: Run, mine: tuple[bytes, bytes] | None, claim: str = "bank") -> list[tuple[str, str]]:
    """Status and words of every call of the service, with this certificate."""
    authority = (run.site.folder / "certs" / "ca.pem").read_bytes()
    certificate, key = mine or (None, None)
    secure = grpc.ssl_channel_credentials(authority, key, certificate)
    options = [("grpc.ssl_target_name_override", LABEL), ("grpc.use_local_subchannel_pool", 1)]
    found = []
    for rpc in RPCS.values():
        with grpc.secure_channel(f"127.0.0.1:{run.site.port}", secure, options=options) as channel:
            found.append(_refusal(channel, rpc, claim))
    return found


def _refusal(channel: grpc.Channel, rpc: Any, claim: str) -> tuple[str, str]:
    metadata = ((CLAIM, claim),)
    try:
        if rpc.streams:
            call: Any = channel.stream_stream(rpc.path)
            hello = json_record(Record.HELLO, {"protocol": 1, "party": claim})
            list(call(iter([hello]), timeout=8, metadata=metadata))
        else:
            ask: Any = channel.unary_unary(rpc.path)
            ask(b"{}", timeout=8, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name, str(error.details())
    return "OK", ""


def asked_round(run: Run) -> int:
    """As the label party says itself: its log tells of a round with the next line, which a stranger may cause."""
    own = read_party_view(run.site.job, FEATURES[0], ())
    return int(ask_label_party(own, "Status")[1]["round"])


@contextmanager
def standing_still(stage: Stage) -> Iterator[Run]:
    """A run in which all wait for post: whatever changes now was changed by a stranger."""
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=10) as run:
        run.start_all()
        run.await_round(LABEL, 12)
        run.kill("post")
        run.until(lambda: run.count(LABEL, "disconnected", "post") == 1, 15, "post is not missed")
        folder = run.site.out(LABEL)

        def state() -> tuple[dict[str, str], int]:
            return state_of(folder), asked_round(run)

        def still() -> bool:
            before = state()
            sleep(1.0)  # what post had sent before is still worked through
            return state() == before

        run.until(still, 20, "it does not stand still")
        connected = [name for name in FEATURES if run.count(LABEL, "connected", name)]
        before = state()
        yield run
        assert state() == before
        assert [run.count(LABEL, "disconnected", name) for name in FEATURES] == [0, 0, 1], connected
        run.start("post")
        run.survives(expected)


@pytest.mark.faults
def test_certificates_that_do_not_hold(stage: Stage, tmp_path: Path) -> None:
    issue(tmp_path / "others", ["bank", LABEL])
    with standing_still(stage) as run:
        certs = run.site.folder / "certs"
        for what, mine in {
            "expired": signed(certs, "bank", (-60, -1), certs),
            "wrong CA": from_folder(tmp_path / "others", "bank"),
            "wrong name": signed(certs, "mallory", authority=certs),
            "self-signed": signed(certs, "bank"),
            "absent": None,
        }.items():
            for status, words in call_everything(run, mine):
                stage.tally.inject("strangers")
                assert status in ("UNAVAILABLE", "PERMISSION_DENIED"), f"{what}: {status} {words}"
        assert run.count(LABEL, "refused") == 0  # nobody came as far as HELLO


@pytest.mark.faults
def test_another_partys_name_with_a_good_certificate(stage: Stage) -> None:
    with standing_still(stage) as run:
        certs = run.site.folder / "certs"
        for name in (*FEATURES, LABEL):
            for claim in (*FEATURES, LABEL, "mallory", "../bank"):
                if claim == name:
                    continue
                for status, words in call_everything(run, from_folder(certs, name), claim):
                    stage.tally.inject("strangers")
                    assert status == "PERMISSION_DENIED", f"{name} as {claim}: {status} {words}"


@pytest.mark.faults
def test_plaintext_old_tls_and_noise(stage: Stage) -> None:
    with standing_still(stage) as run:
        address = ("127.0.0.1", run.site.port)
        with grpc.insecure_channel(f"127.0.0.1:{run.site.port}") as channel:
            for rpc in RPCS.values():
                stage.tally.inject("strangers")
                assert _refusal(channel, rpc, "bank")[0] == "UNAVAILABLE"
        certs = run.site.folder / "certs"
        context = ssl.create_default_context(cafile=certs / "ca.pem")
        context.load_cert_chain(certs / "bank.pem", certs / "bank.key")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(address, timeout=5) as raw:
            stage.tally.inject("strangers")
            with pytest.raises((ssl.SSLError, ConnectionError)), context.wrap_socket(raw, server_hostname=LABEL):
                raise AssertionError("TLS 1.2 was accepted")
        for noise in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 600, bytes(4096), b""):
            with socket.create_connection(address, timeout=5) as raw:
                stage.tally.inject("strangers")
                raw.sendall(noise)


@pytest.mark.faults
def test_many_handshakes_at_the_same_time(stage: Stage) -> None:
    """Callers that come at once, whoever they are, do the label party no harm."""
    with standing_still(stage) as run:
        certs = run.site.folder / "certs"
        context = ssl.create_default_context(cafile=certs / "ca.pem")
        context.set_alpn_protocols(["h2"])

        def knock() -> None:
            for _ in range(100):
                try:
                    with (
                        socket.create_connection(("127.0.0.1", run.site.port), timeout=5) as raw,
                        context.wrap_socket(raw, server_hostname=LABEL),
                    ):
                        pass
                except OSError:
                    continue

        threads = [Thread(target=knock) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stage.tally.inject("strangers", 600)
        assert run.processes[LABEL].poll() is None, run.told()


@pytest.mark.faults
def test_a_certificate_that_is_revoked_while_the_run_goes_on(stage: Stage) -> None:
    """Its party is truncated within seconds; with a new one the run goes on, without a restart."""
    expected = stage.reference(KIND)
    with stage.run(KIND, pause_ms=20) as run:
        run.start_all()
        run.await_round(LABEL, 12)
        certs = run.site.folder / "certs"
        serial = read_certificates(certs / "shop.pem")[0].serial_number
        (certs / "revoked.txt").write_text(f"{serial:x}  shop\n")
        stage.tally.inject("strangers")
        run.until(lambda: run.count(LABEL, "disconnected", "shop"), 10, "shop is not cut off")
        run.await_words(run.processes["shop"], "revoked")
        sleep(2)
        stood = run.round(LABEL)
        sleep(2)
        assert run.round(LABEL) == stood
        renew(certs, "shop")
        run.survives(expected)
