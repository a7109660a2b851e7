"""Callers of every kind: the right ones, those that claim another's name, and strangers."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from thinwire.net.grpc.client import OPTIONS
from thinwire.net.grpc.server import Listener
from thinwire.net.grpc.service import CLAIM, AccessList, Refused, Rpc
from thinwire.net.links.peer_link import PeerLink
from thinwire.net.links.records import Record, json_record
from thinwire.net.pki.certificates import (
    CertificateFiles,
    Credentials,
    Revocations,
    load_credentials,
    private_pem,
    public_pem,
    read_certificates,
    read_key,
)

SECONDS = 300.0
LABEL_PARTY = "clinic"
PARTIES = (LABEL_PARTY, "bank", "shop", "post")
CLIENT = "reader"
NOW = datetime.now(UTC)


@dataclass(frozen=True)
class Identity:
    """What a caller shows: a certificate with its key, and the authority it trusts."""

    authority_pem: bytes
    certificate_pem: bytes | None
    key_pem: bytes | None


def identity(credentials: Credentials) -> Identity:
    return Identity(credentials.authority_pem, credentials.certificate_pem, credentials.key_pem)


def own_identity(certs: Path, name: str) -> Identity:
    return identity(load_credentials(CertificateFiles.in_folder(certs, name), name))


def signed(
    certs: Path,
    *names: str,
    common_name: str = "somebody",
    begin: datetime = NOW - timedelta(hours=1),
    end: datetime = NOW + timedelta(days=1),
    self_signed: bool = False,
) -> Identity:
    """A certificate of any shape by the authority in `certs`."""
    authority = read_certificates(certs / "ca.pem")[0]
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else [])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if self_signed else authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if names:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternative, critical=False)
    certificate = builder.sign(key if self_signed else read_key(certs / "ca.key"), SHA256())
    return Identity(public_pem(authority), public_pem(certificate), private_pem(key))


@contextmanager
def channel_to(port: int, name: str, shown: Identity | None) -> Iterator[grpc.Channel]:
    """Without an identity, in plain text."""
    capless = [(key, value) for key, value in OPTIONS if key != "grpc.max_send_message_length"]
    options = [*capless, ("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    address = f"127.0.0.1:{port}"
    if shown is None:
        channel = grpc.insecure_channel(address, options=options)
    else:
        secure = grpc.ssl_channel_credentials(shown.authority_pem, shown.key_pem, shown.certificate_pem)
        channel = grpc.secure_channel(address, secure, options=options)
    with channel:
        yield channel


def called(channel: grpc.Channel, rpc: Rpc, claims: Iterable[str] = (), first: bytes | None = None) -> Any:
    """One call to its end: the answer, or gRPC's error with its code."""
    metadata = [(CLAIM, claim) for claim in claims]
    if not rpc.streams:
        ask: Any = channel.unary_unary(rpc.path)
        return ask(json.dumps({"echo": "here"}).encode(), timeout=SECONDS, metadata=metadata)
    hello = json_record(Record.HELLO, {"received": 0, "kept": 0}) if first is None else first
    over = Event()
    talk: Any = channel.stream_stream(rpc.path)
    try:
        return list(talk(_then_waits([hello], over), timeout=SECONDS, metadata=metadata))
    finally:
        over.set()


def _then_waits(records: Sequence[bytes], over: Event) -> Iterator[bytes]:
    yield from records
    over.wait(SECONDS)


def refusal(channel: grpc.Channel, rpc: Rpc, claims: Iterable[str] = (), first: bytes | None = None) -> Any:
    """The error of a call that must fail."""
    try:
        answer = called(channel, rpc, claims, first)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"{rpc.name} answered {answer!r}")


def tls_handshake(port: int, name: str, certs: Path, party: str, version: ssl.TLSVersion) -> bytes:
    """The first bytes that the service says to a party that speaks this version of TLS and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    context.load_verify_locations(certs / "ca.pem")
    context.load_cert_chain(certs / f"{party}.pem", certs / f"{party}.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name) as secure,
    ):
        return secure.recv(9)


STRANGERS: dict[str, Callable[[Path, Path], Identity | None]] = {
    # By the parties' authority, and another one's folder.
    "a name that is not a party": lambda certs, _: signed(certs, "nobody", common_name="nobody"),
    "a party's name with more to it": lambda certs, _: signed(certs, "bank.example", "xbank", common_name="bank"),
    "a party's name in capitals": lambda certs, _: signed(certs, "BANK", common_name="BANK"),
    "no name at all": lambda certs, _: signed(certs, common_name=""),
    "two parties' names": lambda certs, _: signed(certs, "bank", "shop", common_name="bank"),
    "a party's and the label party's name": lambda certs, _: signed(certs, "bank", "clinic", common_name="bank"),
    "another authority": lambda certs, other: _trusting(certs, own_identity(other, "bank")),
    "self-signed": lambda certs, _: signed(certs, "bank", common_name="bank", self_signed=True),
    "expired": lambda certs, _: signed(certs, "bank", begin=NOW - timedelta(days=9), end=NOW - timedelta(days=1)),
    "not yet valid": lambda certs, _: signed(
        certs, "bank", begin=NOW + timedelta(days=1), end=NOW + timedelta(days=9)
    ),
    "no certificate": lambda certs, _: Identity((certs / "ca.pem").read_bytes(), None, None),
    "plain text": lambda *_: None,
}


def _trusting(certs: Path, shown: Identity) -> Identity:
    return Identity((certs / "ca.pem").read_bytes(), shown.certificate_pem, shown.key_pem)


class RecordingDesk:
    """Remembers every call that got through, and refuses to talk."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def admit(self, peer: str, hello: dict[str, Any]) -> PeerLink:
        self.calls.append(("admit", peer))
        raise Refused("got through")

    def welcome(self, peer: str) -> dict[str, Any]:
        self.calls.append(("welcome", peer))
        return {}

    def answer(self, rpc: Rpc, caller: str, request: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((rpc.name, caller))
        return {"caller": caller}


class Service:
    """A listener that knows all parties, and its desk."""

    def __init__(self, certs: Path) -> None:
        self.certs = certs
        self.desk = RecordingDesk()
        self.events: list[str] = []
        self.denied: list[dict[str, Any]] = []
        self.credentials_read = 0
        self.listener = Listener(
            "127.0.0.1:0",
            self._credentials,
            AccessList(LABEL_PARTY, {name: name for name in PARTIES}, Revocations(certs / "revoked.txt"), [CLIENT]),
            self.desk,
            self._heard,
        )
        self.listener.start()
        self.port = self.listener.port

    def _credentials(self) -> Credentials:
        self.credentials_read += 1
        return load_credentials(CertificateFiles.in_folder(self.certs, LABEL_PARTY), LABEL_PARTY)

    def _heard(self, event: str, peer: str | None, **facts: Any) -> None:
        self.events.append(event)
        if event == "denied":
            self.denied.append(facts)

    def refuses(self, rpc: Rpc, shown: Identity | None, *claims: str) -> Any:
        """The error; nobody may have heard of the call."""
        self.desk.calls.clear()
        with channel_to(self.port, LABEL_PARTY, shown) as channel:
            error = refusal(channel, rpc, claims)
        assert self.desk.calls == []
        return error
