"""What callers of every kind may take up: no stranger, and no party beyond its share, keeps another one waiting.

Every cell of the table of budgets has a test; `cell` says of which.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from threading import Event
from time import sleep, thread_time
from typing import Any

import grpc
import pytest

from net.callers import (
    CLIENT,
    LABEL_PARTY,
    PARTIES,
    SECONDS,
    Identity,
    Service,
    called,
    channel_to,
    own_identity,
    refusal,
    signed,
)
from net.raw_http2 import RawCaller, is_open
from processes import until
from thinwire.base.types import Kind
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.wire.frame import Frame, frame_header
from thinwire.net.grpc.server import CpuQuota
from thinwire.net.grpc.service import BUDGETS, RPCS, CallerBudget, Role, Rpc
from thinwire.net.links.outgoing_log import OutgoingLog
from thinwire.net.links.peer_end import LinkEnds
from thinwire.net.links.peer_link import PeerLink
from thinwire.net.links.records import Record, frame_records, json_record
from thinwire.net.pki.authority import issue

TESTED: set[tuple[str, Role]] = set()
CALLERS: dict[Role, Callable[[Path], Identity]] = {
    Role.ADDRESS: lambda certs: Identity((certs / "ca.pem").read_bytes(), None, None),
    Role.STRANGER: lambda certs: signed(certs, "nobody"),
    Role.CLIENT: lambda certs: signed(certs, CLIENT),
    Role.FEATURE_PARTY: lambda certs: own_identity(certs, "bank"),
}
CALLS = {role: RPCS["Score" if role is Role.CLIENT else "Probe"] for role in CALLERS}  # of those that it may make


def cell(column: str, *roles: Role) -> pytest.MarkDecorator:
    """A test of these callers' budgets."""
    TESTED.update((column, role) for role in roles)
    return pytest.mark.parametrize("role", roles, ids=[role.value for role in roles])


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    issue(folder, PARTIES)
    return folder


@pytest.fixture
def service(certs: Path) -> Iterator[Service]:
    opened = Service(certs)
    yield opened
    opened.listener.stop()


def is_answered(service: Service, party: str) -> bool:
    with channel_to(service.port, LABEL_PARTY, own_identity(service.certs, party)) as channel:
        return bool(called(channel, RPCS["Status"], [party]) == json.dumps({"caller": party}).encode())


def flood(service: Service, role: Role, connections: int, rpcs: list[Rpc], body: bytes | None) -> ExitStack:
    """Every call on each of so many connections; whoever has no certificate is hung up on."""
    held = ExitStack()
    for _ in range(connections):
        with suppress(OSError):
            shown = CALLERS[role](service.certs)
            raw = held.enter_context(RawCaller(service.port, LABEL_PARTY, shown, window=0))
            for rpc in rpcs:
                raw.call(rpc, body)
    return held


# Connections ------------------------------------------------------------------------------------------------------


@cell("connections", Role.ADDRESS)
def test_connections_that_say_nothing_are_few_and_keep_nobody_out(service: Service, role: Role) -> None:
    most = BUDGETS[role].connections
    with ExitStack() as held:
        idle = [held.enter_context(socket.create_connection(("127.0.0.1", service.port))) for _ in range(4 * most)]
        assert is_answered(service, "bank")
        until(lambda: sum(map(is_open, idle)) <= most)
        assert is_answered(service, "bank")


@cell("connections", Role.STRANGER, Role.CLIENT, Role.FEATURE_PARTY)
def test_a_caller_holds_few_connections(service: Service, role: Role) -> None:
    shown, most = CALLERS[role](service.certs), BUDGETS[role].connections
    with ExitStack() as held:
        raws = [held.enter_context(RawCaller(service.port, LABEL_PARTY, shown)) for _ in range(2 * most)]
        for raw in raws:
            raw.call(CALLS[role], b"{}")
        until(lambda: sum(is_open(raw.socket) for raw in raws) <= most)
        assert is_answered(service, "shop")


# Calls ------------------------------------------------------------------------------------------------------------


@cell("calls", Role.ADDRESS, Role.STRANGER, Role.CLIENT, Role.FEATURE_PARTY)
def test_calls_without_a_body_keep_nobody_else_waiting(service: Service, role: Role) -> None:
    with flood(service, role, 5, 8 * list(RPCS.values()), None):
        assert is_answered(service, "shop")
    assert service.desk.calls == [("Status", "shop")]


@cell("calls", Role.ADDRESS, Role.STRANGER, Role.CLIENT, Role.FEATURE_PARTY)
def test_answers_that_nobody_takes_are_few(service: Service, role: Role) -> None:
    """Every one of them is kept in memory until its window opens."""
    most, rpc = BUDGETS[role].calls, CALLS[role]
    with flood(service, role, 10, 30 * [rpc], b"{}"):
        assert is_answered(service, "shop")
        answered = [name for name, _ in service.desk.calls].count(rpc.name)
        assert (answered > 0) == (most > 0)
        assert answered <= most
    until(lambda: not any(service.listener._calls.values()))
    assert is_answered(service, "bank")


# Bytes ------------------------------------------------------------------------------------------------------------


@cell("call_bytes", Role.CLIENT, Role.FEATURE_PARTY)
def test_a_request_has_few_bytes(service: Service, role: Role) -> None:
    most = BUDGETS[role].call_bytes
    with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
        ask: Any = channel.unary_unary(CALLS[role].path)
        for size in (most, 4 * most):
            with pytest.raises(grpc.RpcError, match=r"cap|larger than max"):
                ask(b" " * size, timeout=SECONDS)
    assert service.desk.calls == []


@cell("call_bytes", Role.CLIENT, Role.FEATURE_PARTY)
def test_a_compressed_request_has_no_more(service: Service, role: Role) -> None:
    with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
        ask: Any = channel.unary_unary(CALLS[role].path)
        with pytest.raises(grpc.RpcError, match="Decompressed message larger than max"):
            ask(bytes(64 << 20), timeout=SECONDS, compression=grpc.Compression.Gzip)
    assert service.desk.calls == []


@cell("call_bytes", Role.ADDRESS, Role.STRANGER)
def test_no_byte_of_a_request_is_waited_for(service: Service, role: Role) -> None:
    never = Event()
    with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
        ask: Any = channel.stream_unary(CALLS[role].path)
        with pytest.raises(grpc.RpcError) as error:
            ask((b"" for _ in iter(lambda: never.wait(SECONDS), True)), timeout=SECONDS)
        never.set()
    assert error.value.code().name == ("UNAVAILABLE" if role is Role.ADDRESS else "PERMISSION_DENIED")
    assert service.desk.calls == []


@cell("unread_bytes", Role.ADDRESS, Role.STRANGER, Role.CLIENT)
def test_who_is_no_party_sends_no_frames(service: Service, role: Role) -> None:
    assert BUDGETS[role].unread_bytes == 0
    error = service.refuses(RPCS["Talk"], CALLERS[role](service.certs))
    assert error.code().name == ("UNAVAILABLE" if role is Role.ADDRESS else "PERMISSION_DENIED")


@cell("unread_bytes", Role.FEATURE_PARTY)
def test_frames_that_the_program_does_not_take_make_their_sender_wait(
    service: Service, role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most, size, count = BUDGETS[role].unread_bytes, 8 << 20, 12
    ends = LinkEnds(7, LABEL_PARTY, "bank", PARTIES)
    link = PeerLink(ends, OutgoingLog(tmp_path, 1, lambda _: None), Ledger(), lambda *_, **__: None)
    monkeypatch.setattr(service.desk, "admit", lambda *_: link)

    def talk() -> Iterator[bytes]:
        yield json_record(Record.HELLO, {"received": 0, "kept": 0})
        for number in range(count):
            frame = Frame(7, 1, 0, Kind.EMBEDDING, number, 0, bytes(size))
            yield from frame_records(number, frame_header(frame), frame.body)

    with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
        call: Any = channel.stream_stream(RPCS["Talk"].path)
        talking = call(talk(), timeout=SECONDS)
        until(lambda: sum(len(message.body) for message in list(link._inbox)) > most)
        assert is_answered(service, "shop")
        held = sum(len(message.body) for message in list(link._inbox))
        assert most < held <= most + size < count * size
        for number in range(count):
            taken = link.take(Kind.EMBEDDING, number, SECONDS)
            assert taken is not None
            assert len(taken.body) == size
        talking.cancel()


# Log lines --------------------------------------------------------------------------------------------------------


def mistakes(role: Role, times: int) -> Callable[[Service], None]:
    """What makes the log tell of this caller: a call that is not for it, or a HELLO that says nothing."""

    def call(service: Service) -> None:
        with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
            for _ in range(times):
                refusal(channel, RPCS["Talk"] if role is Role.FEATURE_PARTY else RPCS["Status"])

    return call


@cell("log_lines", Role.STRANGER, Role.CLIENT, Role.FEATURE_PARTY)
def test_mistakes_are_told_a_few_times_a_minute(
    service: Service, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cpu(monkeypatch, role, Role.STRANGER, cpu_ms=10_000)
    most = BUDGETS[role].log_lines
    mistakes(role, most + 20)(service)
    assert service.events == most * ["refused" if role is Role.FEATURE_PARTY else "denied"]


@cell("log_lines", Role.ADDRESS)
def test_handshakes_without_our_certificate_are_told_a_few_times_a_minute(
    certs: Path, service: Service, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go on with the one that was read before."""
    limit_cpu(monkeypatch, role, cpu_ms=10_000)
    most = BUDGETS[role].log_lines
    service.certs = certs / "gone"
    for _ in range(most + 20):
        with suppress(OSError):
            RawCaller(service.port, LABEL_PARTY, CALLERS[role](certs)).socket.close()
    until(lambda: service.credentials_read > most)
    assert service.events == most * ["certificate_problem"]


# CPU --------------------------------------------------------------------------------------------------------------


def limit_cpu(monkeypatch: pytest.MonkeyPatch, *roles: Role, cpu_ms: int) -> None:
    for role in roles:
        monkeypatch.setitem(BUDGETS, role, replace(BUDGETS[role], cpu_ms=cpu_ms))


def test_cpu_time_is_paid_off_by_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_cpu(monkeypatch, Role.CLIENT, cpu_ms=1)
    quota = CpuQuota()
    assert quota.spend((Role.CLIENT, "reader"), 0.001) == 0
    assert 9_000 < quota.spend((Role.CLIENT, "reader"), 10) <= 10_000
    assert quota.spend((Role.CLIENT, "other")) == 0


@cell("cpu_ms", Role.CLIENT, Role.FEATURE_PARTY)
def test_who_has_spent_its_cpu_time_waits_alone(
    service: Service, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cpu(monkeypatch, role, cpu_ms=1)
    answer = service.desk.answer

    def work(rpc: Rpc, caller: str, request: dict[str, Any]) -> dict[str, Any]:
        end = thread_time() + (0 if service.desk.calls else 0.4)
        while thread_time() < end:
            pass
        return answer(rpc, caller, request)

    monkeypatch.setattr(service.desk, "answer", work)
    with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
        called(channel, CALLS[role])
        ask: Any = channel.unary_unary(CALLS[role].path)
        second = ask.future(b"{}", timeout=SECONDS)
        until(lambda: any(service.listener._calls.values()))
        assert all(is_answered(service, "clinic") for _ in range(10))
        assert [name for name, _ in service.desk.calls] == [CALLS[role].name, *10 * ["Status"]]
        assert not second.done()


@pytest.mark.long
@cell("cpu_ms", Role.FEATURE_PARTY)
def test_records_without_frames_make_their_sender_wait(
    service: Service, role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cpu(monkeypatch, role, cpu_ms=1)
    heard = 0

    def hear(*_: Any, **__: Any) -> None:
        nonlocal heard
        heard += 1

    link = PeerLink(
        LinkEnds(7, LABEL_PARTY, "bank", PARTIES), OutgoingLog(tmp_path, 1, lambda _: None), Ledger(), hear
    )
    monkeypatch.setattr(service.desk, "admit", lambda *_: link)
    news = 1000 * [json_record(Record.NEWS, {"filler": 1000 * "x"})]
    hello = json_record(Record.HELLO, {"received": 0, "kept": 0})
    with channel_to(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as channel:
        call: Any = channel.stream_stream(RPCS["Talk"].path)
        talking = call(iter([hello, *news]), timeout=SECONDS)
        until(lambda: heard > 1)
        before = -1
        while before != heard:  # until nothing more is heard for a while: all of it, where nobody makes it wait
            before = heard
            sleep(0.5)
        assert heard < len(news)
        assert all(is_answered(service, "clinic") for _ in range(20))
        talking.cancel()


@cell("cpu_ms", Role.STRANGER, Role.FEATURE_PARTY)
def test_who_is_refused_and_calls_on_is_hung_up_on(
    service: Service, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUDGETS, role, replace(BUDGETS[role], calls=0, cpu_ms=1))
    with RawCaller(service.port, LABEL_PARTY, CALLERS[role](service.certs)) as raw:
        for _ in range(20):
            raw.call(RPCS["Status"], b"{}")
            sleep(0.01)
        until(lambda: not is_open(raw.socket))


@cell("cpu_ms", Role.ADDRESS)
def test_our_certificate_is_not_read_at_every_handshake_of_a_flood(
    service: Service, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_cpu(monkeypatch, role, cpu_ms=1)
    count = 60
    for _ in range(count):
        with suppress(OSError):
            RawCaller(service.port, LABEL_PARTY, CALLERS[role](service.certs)).socket.close()
    assert is_answered(service, "bank")
    assert service.credentials_read < count / 2


# The table --------------------------------------------------------------------------------------------------------


def test_every_cell_has_a_test() -> None:
    assert {(field.name, role) for field in fields(CallerBudget) for role in CALLERS} == TESTED
    assert BUDGETS[Role.LABEL_PARTY] == BUDGETS[Role.FEATURE_PARTY]


def test_every_kind_of_caller_has_a_budget_that_the_manual_states() -> None:
    page = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    stated = {row[0]: row[1:] for row in rows}
    assert BUDGETS.keys() == set(Role)
    for role, budget in BUDGETS.items():
        name = "party" if "party" in role.value else role.value
        assert stated[name] == [f"{getattr(budget, field.name):,}" for field in fields(budget)]
