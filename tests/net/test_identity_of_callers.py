"""Who may call what, for every call of the service and every party: only a certificate says who calls.

A refusal is no refusal if it left a trace: each case looks at what the label party did, not only at the status.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import grpc
import pytest
from cryptography import x509

from net.callers import (
    PARTIES,
    STRANGERS,
    RecordingDesk,
    Service,
    called,
    channel_to,
    identity,
    own_identity,
    refusal,
    tls_handshake,
)
from processes import environment, until
from thinwire.net.grpc.service import RPCS, SERVICE, AccessList, Denied, Role, Rpc
from thinwire.net.links.records import Record, json_record
from thinwire.net.pki.authority import issue, renew, revoke
from thinwire.net.pki.certificates import Revocations
from thinwire.training.party.feature_role import FeatureRole
from thinwire.training.party.label_role import LabelRole
from thinwire.training.party.party_run import PartyRun
from training.party.parties import (
    LABEL_PARTY,
    PartyThread,
    Place,
    Seen,
    Shape,
    contents,
    finished,
    log_of,
    made,
    ran,
    threads,
)

PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
SVFL = Shape({"method": "svfl"}, job={"epochs": 4})


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    issue(folder, PARTIES)
    return folder


@pytest.fixture(scope="module")
def other_certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an authority that nobody here knows, for the same names."""
    folder = tmp_path_factory.mktemp("others")
    issue(folder, PARTIES)
    return folder


@pytest.fixture(scope="module")
def service(certs: Path) -> Iterator[Service]:
    opened = Service(certs)
    yield opened
    opened.listener.stop()


def every_rpc() -> list[Any]:
    return [pytest.param(rpc, id=name) for name, rpc in RPCS.items()]


def allowed(rpc: Rpc, party: str) -> bool:
    role = Role.LABEL_PARTY if party == LABEL_PARTY else Role.FEATURE_PARTY
    return role in rpc.callers


# Parties ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("rpc", every_rpc())
def test_a_party_gets_through_as_itself_and_only_where_its_role_may(service: Service, rpc: Rpc, party: str) -> None:
    shown = own_identity(service.certs, party)
    for claims in ((), (party,)):
        if not allowed(rpc, party):
            error = service.refuses(rpc, shown, *claims)
            assert error.code() is PERMISSION_DENIED
            assert party in error.details()
            assert rpc.name in error.details()
            continue
        service.desk.calls.clear()
        with channel_to(service.port, LABEL_PARTY, shown) as channel:
            if rpc.streams:
                assert "got through" in refusal(channel, rpc, claims).details()
            else:
                assert called(channel, rpc, claims) == b'{"caller": "%s"}' % party.encode()
        assert service.desk.calls == [("admit" if rpc.streams else rpc.name, party)]


@pytest.mark.parametrize("claimed", [*PARTIES, "nobody", ""])
@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("rpc", every_rpc())
def test_no_party_passes_for_another(service: Service, rpc: Rpc, party: str, claimed: str) -> None:
    claims: list[tuple[str, ...]] = [(claimed,)]
    if claimed == party:  # its own name beside another's helps no more than the other's alone
        others = [other for other in PARTIES if other != party]
        claims = [pair for other in others for pair in ((party, other), (other, party))]
    shown = own_identity(service.certs, party)
    for claim in claims:
        error = service.refuses(rpc, shown, *claim)
        assert error.code() is PERMISSION_DENIED
        assert repr(party) in error.details()


# Strangers --------------------------------------------------------------------------------------------------------

# These pass for valid in the handshake: the roster has to refuse them, and says why.
KNOWN_BY_THE_AUTHORITY = {
    "a name that is not a party": "nobody, which is not a party",
    "a party's name with more to it": "bank.example, xbank, which is not a party",
    "a party's name in capitals": "BANK, which is not a party",
    "no name at all": "nobody, which is not a party",
    "two parties' names": "several parties: bank, shop",
    "a party's and the label party's name": "several parties: bank, clinic",
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("rpc", every_rpc())
def test_a_stranger_is_refused_before_anybody_hears_of_it(
    service: Service, other_certs: Path, rpc: Rpc, stranger: str
) -> None:
    shown = STRANGERS[stranger](service.certs, other_certs)
    for claims in ((), ("bank",)):
        error = service.refuses(rpc, shown, *claims)
        if stranger in KNOWN_BY_THE_AUTHORITY:
            assert error.code() is PERMISSION_DENIED
            assert KNOWN_BY_THE_AUTHORITY[stranger] in error.details()
        else:
            assert error.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("party", PARTIES)
def test_tls_1_2_is_refused_though_the_certificate_is_right(service: Service, party: str) -> None:
    settings = tls_handshake(service.port, LABEL_PARTY, service.certs, party, ssl.TLSVersion.TLSv1_3)
    assert settings[3:4] == b"\x04"  # HTTP/2 begins with SETTINGS
    service.desk.calls.clear()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        tls_handshake(service.port, LABEL_PARTY, service.certs, party, ssl.TLSVersion.TLSv1_2)
    assert service.desk.calls == []


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.1", "", "SSLv3"])
@pytest.mark.parametrize("rpc", every_rpc())
def test_the_roster_asks_for_tls_1_3_itself(certs: Path, rpc: Rpc, version: str) -> None:
    roster = AccessList(LABEL_PARTY, {name: name for name in PARTIES}, Revocations(None))
    for party in PARTIES:
        pem = (certs / f"{party}.pem").read_bytes()
        with pytest.raises(Denied, match=r"TLS 1\.3"):
            roster.identify_caller(rpc, pem, version, [])


@pytest.mark.parametrize("rpc", every_rpc())
def test_a_revoked_certificate_is_refused_at_once(tmp_path: Path, rpc: Rpc) -> None:
    issue(tmp_path, PARTIES)
    service = Service(tmp_path)
    try:
        caller = "bank" if Role.FEATURE_PARTY in rpc.callers else LABEL_PARTY
        shown = own_identity(tmp_path, caller)
        revoke(tmp_path, caller)
        error = service.refuses(rpc, shown, caller)
        assert error.code() is PERMISSION_DENIED
        assert "revoked" in error.details()
        assert len(service.denied) == 1
        renew(tmp_path, caller)
        with channel_to(service.port, LABEL_PARTY, own_identity(tmp_path, caller)) as channel:
            assert rpc.streams or called(channel, rpc, [caller])
    finally:
        service.listener.stop()


# Every call there is, and any that may come -----------------------------------------------------------------------


class Untold(Exception):
    """What gRPC raises where a handler aborts."""


class NoBody:
    """A context without a peer: no certificate, no TLS."""

    def __init__(self) -> None:
        self.code: Any = None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("thinwire-party", "bank")]

    def abort(self, code: Any, details: str) -> None:
        self.code = code
        raise Untold

    def add_callback(self, _: Any) -> bool:
        return True

    def cancel(self) -> None:
        """There is no connection."""


def served_handlers(monkeypatch: pytest.MonkeyPatch, certs: Path) -> tuple[dict[str, Any], Service]:
    """What a listener really registers, whatever RPCS says."""
    registered: dict[str, Any] = {}

    make_handler = grpc.method_handlers_generic_handler

    def register(service: str, handlers: dict[str, Any]) -> Any:
        registered.update({f"/{service}/{name}": handler for name, handler in handlers.items()})
        return make_handler(service, handlers)

    monkeypatch.setattr(grpc, "method_handlers_generic_handler", register)
    return registered, Service(certs)


def require_each_asks_who_calls(handlers: dict[str, Any], desk: RecordingDesk) -> None:
    for path, handler in handlers.items():
        context = NoBody()
        hello = json_record(Record.HELLO, {"received": 0, "kept": 0})
        call = handler.stream_stream or handler.stream_unary
        with pytest.raises(Untold):
            list(call(iter([hello]), context))
        assert context.code is PERMISSION_DENIED, path
        assert desk.calls == [], path


def test_whatever_is_served_asks_first_who_calls(monkeypatch: pytest.MonkeyPatch, certs: Path) -> None:
    handlers, service = served_handlers(monkeypatch, certs)
    service.listener.stop()
    assert handlers.keys() == {rpc.path for rpc in RPCS.values()}
    require_each_asks_who_calls(handlers, service.desk)


@pytest.mark.parametrize("streams", [False, True], ids=["question", "stream"])
def test_a_new_call_is_served_with_the_same_question(
    monkeypatch: pytest.MonkeyPatch, certs: Path, other_certs: Path, streams: bool
) -> None:
    new = Rpc("New", streams=streams, callers=frozenset({Role.FEATURE_PARTY}))
    monkeypatch.setitem(RPCS, "New", new)
    handlers, service = served_handlers(monkeypatch, certs)
    try:
        assert new.path in handlers
        require_each_asks_who_calls(handlers, service.desk)
        for stranger in STRANGERS.values():
            service.refuses(new, stranger(certs, other_certs), "bank")
        assert service.refuses(new, own_identity(certs, "bank"), "shop").code() is PERMISSION_DENIED
        assert service.refuses(new, own_identity(certs, LABEL_PARTY)).code() is PERMISSION_DENIED
    finally:
        service.listener.stop()


@pytest.mark.parametrize("method", ["admit", "welcome", "answer", "Talk2", "", "../Talk", "talk"])
def test_nothing_else_is_served(service: Service, method: str) -> None:
    unknown = Rpc(method, streams=False, callers=frozenset(Role))
    assert service.refuses(unknown, own_identity(service.certs, "bank")).code() is grpc.StatusCode.UNIMPLEMENTED


def test_every_call_belongs_to_this_service() -> None:
    assert all(rpc.path == f"/{SERVICE}/{name}" and rpc.callers for name, rpc in RPCS.items())
    assert RPCS["Talk"].callers == {Role.FEATURE_PARTY}


# A real run's folder ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Place, PartyRun]]:
    """A label party that listens and waits for the others."""
    place = made(tmp_path_factory.mktemp("waiting"), SVFL)
    party = PartyThread(place.job, LABEL_PARTY, place.out(LABEL_PARTY))
    party.start()
    assert isinstance(party.run.role, LabelRole)
    yield place, party.run
    party.over()


def hello_of(place: Place, name: str) -> bytes:
    """What this party would say, whoever says it."""
    party = PartyThread(place.job, name, place.folder / "hello" / name)
    try:
        assert isinstance(party.run.role, FeatureRole)
        return json_record(Record.HELLO, party.run.role.hello())
    finally:
        party.run.session.channel.close()
        party.run.session.events.close()
        party.over()


@pytest.mark.parametrize("rpc", every_rpc())
def test_a_refused_caller_leaves_no_trace_at_the_label_party(
    waiting: tuple[Place, PartyRun], other_certs: Path, rpc: Rpc
) -> None:
    place, run = waiting
    before, hellos = contents(run.session.folder), {name: hello_of(place, name) for name in place.feature_parties}
    for party in place.names:
        for claimed in place.names:
            if party != claimed:
                with channel_to(place.port, LABEL_PARTY, own_identity(place.certs, party)) as channel:
                    hello = hellos.get(claimed, hellos["bank"])
                    assert refusal(channel, rpc, [claimed], hello).code() is PERMISSION_DENIED
    for stranger in STRANGERS.values():
        with channel_to(place.port, LABEL_PARTY, stranger(place.certs, other_certs)) as channel:
            refusal(channel, rpc, ["bank"], hellos["bank"])
    if not allowed(rpc, LABEL_PARTY):
        with channel_to(place.port, LABEL_PARTY, own_identity(place.certs, LABEL_PARTY)) as channel:
            assert refusal(channel, rpc, [], hellos["bank"]).code() is PERMISSION_DENIED
    assert contents(run.session.folder) == before
    assert not any(link.is_connected or link.describe_state()["received"] for link in run.session.links.values())
    assert run.session.private.abort_reason is None
    assert run.session.peers["bank"].incarnation == 0


def test_a_party_cannot_greet_with_the_name_of_another(waiting: tuple[Place, PartyRun]) -> None:
    """The certificate and the claim are its own; only HELLO lies."""
    place, run = waiting
    before = contents(run.session.folder)
    with channel_to(place.port, LABEL_PARTY, own_identity(place.certs, "bank")) as channel:
        error = refusal(channel, RPCS["Talk"], ["bank"], hello_of(place, "shop"))
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "the certificate is of 'bank'" in error.details()
    assert "HELLO says 'shop'" in error.details()
    assert contents(run.session.folder) == before


# In the middle of a run -------------------------------------------------------------------------------------------


def digests(summaries: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: summary["digest"] for name, summary in summaries.items()}


def test_renewed_certificates_are_taken_up_by_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digests(ran(made(tmp_path / "undisturbed", SVFL)))
    place = made(tmp_path / "renewed", SVFL)
    serials: dict[str, list[int]] = {name: [] for name in place.feature_parties}
    ask = AccessList.identify_caller

    def noting(self: AccessList, rpc: Rpc, pem: bytes, *rest: Any) -> str:
        caller = ask(self, rpc, pem, *rest)
        serials[caller].append(x509.load_pem_x509_certificate(pem).serial_number)
        return caller

    monkeypatch.setattr(AccessList, "identify_caller", noting)
    held: dict[str, Any] = {}

    def renew_and_break(round: int) -> None:
        if round == 5:
            held["clinic"] = renew(place.certs, LABEL_PARTY)
            held["bank"] = renew(place.certs, "bank")
            held["run"].role._dialer._call.cancel()

    seen = {"bank": Seen(at_round=renew_and_break)}
    with threads(place, seen=seen) as parties:
        run = parties["bank"].run
        assert isinstance(run.role, FeatureRole)
        held["run"] = run
        summaries = finished(parties)
    assert digests(summaries) == expected
    assert len(serials["bank"]) == 2
    assert serials["bank"][1] == held["bank"].serial != serials["bank"][0]
    assert len(serials["shop"]) == 1


def test_the_label_party_shows_its_renewed_certificate(tmp_path: Path) -> None:
    issue(tmp_path, PARTIES)
    service = Service(tmp_path)
    try:
        pem = ssl_certificate_of(service.port, tmp_path)
        renew(tmp_path, LABEL_PARTY)
        renewed = ssl_certificate_of(service.port, tmp_path)
        assert pem != renewed == (tmp_path / f"{LABEL_PARTY}.pem").read_bytes()
        (tmp_path / f"{LABEL_PARTY}.pem").write_text("half a certificate")
        assert ssl_certificate_of(service.port, tmp_path) == renewed  # a bad file changes nothing
    finally:
        service.listener.stop()


def ssl_certificate_of(port: int, certs: Path) -> bytes:
    """The certificate that the service shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certs / "ca.pem")
    context.load_cert_chain(certs / "bank.pem", certs / "bank.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=300) as plain,
        context.wrap_socket(plain, server_hostname=LABEL_PARTY) as secure,
    ):
        der = secure.getpeercert(binary_form=True)
    assert der is not None
    return ssl.DER_cert_to_PEM_cert(der).encode()


def test_a_party_revoked_in_the_middle_is_cut_off_until_its_certificate_is_renewed(tmp_path: Path) -> None:
    expected = digests(ran(made(tmp_path / "undisturbed", SVFL)))
    place = made(tmp_path / "revoked", SVFL)
    revoked = Event()

    def revoke_and_wait(round: int) -> None:
        if round == 5:
            revoke(place.certs, "bank")
            until(lambda: not parties[LABEL_PARTY].run.session.links["bank"].is_connected)
            revoked.set()

    with threads(place, seen={"bank": Seen(at_round=revoke_and_wait)}) as parties:
        label = parties[LABEL_PARTY].run.session
        assert revoked.wait(300)
        before = contents(label.folder)["peers.json"]
        until(lambda: label.events.counts["denied", ""] >= 2)  # it calls again, and is refused again
        with channel_to(place.port, LABEL_PARTY, identity(place.credentials("bank"))) as channel:
            assert refusal(channel, RPCS["Talk"]).code() is PERMISSION_DENIED
        assert contents(label.folder)["peers.json"] == before
        assert not label.links["bank"].is_connected
        assert label.links["shop"].is_connected
        renew(place.certs, "bank")
        summaries = finished(parties)
    why = [line["why"] for line in log_of(place.out(LABEL_PARTY)) if line["event"] == "denied"]
    assert all("revoked" in one for one in why)
    assert digests(summaries) == expected


SIMULTANEOUS = """
import sys
from pathlib import Path
from threading import Thread

from net.callers import tls_handshake
from net.test_identity_of_callers import Service, ssl

service = Service(Path(sys.argv[1]))


def dial():
    for _ in range(150):
        tls_handshake(service.port, "clinic", service.certs, "bank", ssl.TLSVersion.TLSv1_3)


threads = [Thread(target=dial) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
service.listener.stop()
print("still here")
"""


@pytest.mark.faults
def test_simultaneous_handshakes_do_not_end_the_label_party(certs: Path) -> None:
    """gRPC forgets the certificate in use when it is given another one, also while a handshake needs it."""
    done = subprocess.run(
        [sys.executable, "-c", SIMULTANEOUS, certs],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(PYTHONPATH=os.pathsep.join((str(Path(__file__).parents[1]), *sys.path))),
    )
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr[-500:]
