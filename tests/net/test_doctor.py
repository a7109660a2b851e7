"""`thinwire doctor`: every check's good and bad outcome, with real files, real TLS and real sockets on loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from job.small import JOB, ROWS, TESTS, write_job
from processes import THINWIRE, Process, Processes
from thinwire import __version__, cli
from thinwire.base.format import format_bytes
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.party_view import count_rows, read_party_view
from thinwire.net.doctor import dial
from thinwire.net.doctor import listen as desks
from thinwire.net.doctor.check import Check, CheckVerdict
from thinwire.net.doctor.listen import ProbeDesk
from thinwire.net.doctor.route import NetworkRoute
from thinwire.net.grpc.client import ask
from thinwire.net.grpc.server import Listener
from thinwire.net.grpc.service import RPCS, AccessList, NotYet, Refused
from thinwire.net.handshake import MOST_FILLER, ProbeHello, answer_probe
from thinwire.net.pki.authority import issue, renew, revoke
from thinwire.net.pki.certificates import Revocations, public_pem
from thinwire.storage.private_state import PrivateState
from thinwire.training import preflight
from thinwire.training.preflight import DoctorRequest, run_checks

OK, WARNING, PROBLEM, NOT_CHECKED = CheckVerdict
OF_THE_NETWORK = ("address", "connection", "TLS", "version there", "same job", "clock", "round trip", "bandwidth")
IDS = 'ids = {{ file = "{}", key = "train" }}\ntest_ids = {{ file = "{}", key = "test" }}\n'


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@pytest.fixture(autouse=True)
def no_proxy_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two parties and a label party that name their row ids, with certificates."""
    np.savez(tmp_path / "ids.npz", train=np.arange(ROWS), test=np.arange(TESTS))
    text = JOB
    for name in ("bank", "shop", "clinic"):
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\n{IDS.format("ids.npz", "ids.npz")}')
    issue(tmp_path / "certs", ["bank", "shop", "clinic"])
    return write_job(tmp_path, f'{text}\n[network]\nlisten = "127.0.0.1:{free_port()}"\n')


def edit(job: Path, old: str, new: str, name: str = "edited.toml") -> Path:
    """Another job file, beside the first."""
    text = job.read_text()
    assert old in text
    path = job.with_name(name)
    path.write_text(text.replace(old, new, 1))
    return path


def checks(job: Path, name: str = "bank", wait: float = 0.0, out: str = "runs/bank") -> dict[str, Check]:
    return {check.name: check for check in run_checks(DoctorRequest(job, name, job.parent / out, wait), format_bytes)}


def brought(job: Path, name: str = "clinic", **changes: Any) -> ProbeHello:
    own = read_party_view(job, name)
    ids, tests = own.row_ids(), own.held_out_row_ids(HeldOut.TEST)
    found = ProbeHello(
        party=name,
        version=__version__,
        agreement=own.agreement(),
        rows=ROWS,
        test_rows=TESTS,
        row_ids=None if ids is None else ids.digest,
        test_row_ids=None if tests is None else tests.digest,
        width=4,
    )
    return found.model_copy(update=changes)


@contextmanager
def reception(job: Path, **changes: Any) -> Iterator[ProbeDesk]:
    """The label party's doctor, as long as the block lasts."""
    own = read_party_view(job, "clinic")
    desk = ProbeDesk(brought(job, **changes))
    roster = AccessList(own.label_party, own.certificate_names, Revocations(own.certificate_files.revoked))
    network = own.network_party
    listener = Listener(network.listen_address(), network.load_credentials, roster, desk, desk.report)
    listener.start()
    try:
        yield desk
    finally:
        listener.stop()


# Both sides -----------------------------------------------------------------------------------------------------


def test_doctors_of_all_parties_meet(job: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        clinic = pool.submit(checks, job, "clinic", 60, "runs/clinic")
        bank, shop = checks(job, "bank", 30), checks(job, "shop", 30, "runs/shop")
        met = clinic.result(timeout=300)  # long before its time is over: all have been here
    for found in (bank, shop, met):
        assert {check.verdict for check in found.values() if check.name != "approval"} == {OK}, found
    assert [name for name in bank if name in OF_THE_NETWORK] == list(OF_THE_NETWORK)
    assert "recipe, settings and parties, row counts, row ids in order" in bank["same job"].says
    assert bank["TLS"].says == "TLS 1.3; the certificate there is for 'clinic', and ours is accepted"
    assert bank["certificate"].facts["days_left"] == 364
    assert bank["data"].facts["shapes"] == {"features": [ROWS, 3], "test features": [TESTS, 3]}
    assert bank["model"].facts == {"parameters": 3 * 8 + 8 + 8 * 4 + 4, "width": 4}
    assert {"round_trip_ms"} == set(bank["round trip"].facts)
    assert {"up_mbit", "down_mbit", "up_is_bound", "down_is_bound"} == set(bank["bandwidth"].facts)
    assert "bank sees its own derivative" in " ".join(bank["recipe"].more)
    assert "its job matches ours, embedding of width 4" in met["party bank"].says
    assert "for embeddings of width bank 4, shop 4" in met["top model"].says
    assert met["memory"].facts["state_bytes"] >= 2 * 4 * ROWS * 4  # two surrogates


def test_the_label_party_says_who_was_not_seen_and_whose_job_differs(job: Path) -> None:
    other = edit(job, "epochs = 2", "epochs = 3", "bank.toml")
    with ThreadPoolExecutor(1) as pool:
        clinic = pool.submit(checks, job, "clinic", 3.0, "runs/clinic")
        bank = checks(other, "bank", 30)
        met = clinic.result(timeout=300)
    sentence = "job.epochs is 3 at 'bank' and 2 at 'clinic'"
    assert (bank["same job"].verdict, bank["same job"].more) == (PROBLEM, (sentence,))
    assert (met["party bank"].verdict, met["party bank"].more) == (PROBLEM, (sentence,))
    assert (met["party shop"].verdict, met["party shop"].says) == (WARNING, "not seen")
    assert met["top model"].verdict is NOT_CHECKED
    assert "'shop'" in met["top model"].says


def test_a_run_that_has_begun_is_not_disturbed_by_a_doctor(job: Path) -> None:
    folder = job.parent / "runs/clinic"
    folder.mkdir(parents=True)
    (folder / "events.jsonl").touch()
    found = checks(job, "clinic", 60, "runs/clinic")
    assert found["party bank"].verdict is NOT_CHECKED
    assert "a run has started" in found["party bank"].says


# The same job? --------------------------------------------------------------------------------------------------


def test_another_seed_is_named(job: Path) -> None:
    with reception(job):
        found = checks(edit(job, "epochs = 2", "epochs = 2\nseed = 7"))["same job"]
    assert (found.verdict, found.more) == (PROBLEM, ("job.seed is 7 at 'bank' and 0 at 'clinic'",))


def test_another_order_of_rows_is_found_by_the_ids(job: Path) -> None:
    np.savez(job.parent / "mine.npz", train=np.arange(ROWS)[::-1], test=np.arange(TESTS))
    with reception(job):
        found = checks(edit(job, IDS.format("ids.npz", "ids.npz"), IDS.format("mine.npz", "mine.npz")))["same job"]
    assert found.verdict is PROBLEM
    assert len(found.more) == 1
    assert "'bank' and 'clinic' list different row ids, or the same in a different order" in found.more[0]


def test_row_counts_and_several_differences_at_once(job: Path) -> None:
    with reception(job, rows=95, test_rows=31, agreement={**brought(job).agreement, "job.seed": "7"}):
        found = checks(job)["same job"]
    assert found.more == (
        "job.seed is 0 at 'bank' and 7 at 'clinic'",
        "'bank' has 96 training rows, 'clinic' has 95; all parties must hold the same rows",
        "'bank' has 32 test rows, 'clinic' has 31; all parties must hold the same rows",
    )


def test_what_could_not_be_read_is_not_compared(job: Path) -> None:
    (job.parent / "bank.npz").unlink()
    with reception(job):
        found = checks(job)
    assert found["data"].verdict is PROBLEM
    assert "bank.npz" in found["data"].more[0]
    assert [found[name].verdict for name in ("model", "memory")] == [NOT_CHECKED] * 2
    assert found["same job"].says == "the same as at 'clinic': recipe, settings and parties"
    assert found["bandwidth"].verdict is OK


def test_another_version_there(job: Path) -> None:
    with reception(job, version="9.9"):
        found = checks(job)
    assert found["version there"].says == f"'clinic' runs thinwire 9.9, this is {__version__}"
    assert [found[name].verdict for name in OF_THE_NETWORK[3:]] == [PROBLEM, *[NOT_CHECKED] * 4]


def test_a_clock_that_is_wrong(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(request: Any, caller: str, ours: ProbeHello, now: float) -> dict[str, Any]:
        return answer_probe(request, caller, ours, now - 120)

    monkeypatch.setattr(desks, "answer_probe", late)
    with reception(job):
        found = checks(job)["clock"]
    assert (found.verdict, found.says) == (WARNING, "120 s ahead of the label party's")


def test_what_a_peer_says_cannot_steer_the_terminal(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rude(*_: Any) -> dict[str, Any]:
        return {"version": __version__, "time": 0.0, "differences": ["\x1b[2Jgone\nok  all is well"]}

    monkeypatch.setattr(desks, "answer_probe", rude)
    with reception(job):
        found = checks(job)["same job"]
    assert found.more == (r"'\x1b[2Jgone\nok  all is well'",)


# The way there --------------------------------------------------------------------------------------------------


def test_nobody_listens(job: Path) -> None:
    found = checks(job)
    address = read_party_view(job, "bank").network_party.dial_address()
    assert (found["connection"].verdict, found["connection"].says) == (PROBLEM, f"nothing listens on {address}")
    assert "thinwire doctor" in found["connection"].more[0]
    rest = [found[name] for name in OF_THE_NETWORK[2:]]
    assert {(check.verdict, check.says) for check in rest} == {(NOT_CHECKED, "needs the connection")}


def test_no_such_host_and_no_address(job: Path) -> None:
    found = checks(edit(job, "[network]", '[network]\naddress = "no-such-host.invalid:7443"'))
    assert found["address"].verdict is PROBLEM
    assert "no host is called no-such-host.invalid" in found["address"].says
    assert "network.address" in found["address"].more[0]
    assert found["connection"].says == "needs the address"
    assert "network.address is missing" in checks(edit(job, "listen", "# listen"))["address"].says


def test_what_listens_does_not_speak_tls(job: Path) -> None:
    with serving(job, lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")):
        found = checks(job)
    assert (found["TLS"].verdict, found["TLS"].says) == (PROBLEM, "what listens there does not speak TLS")
    assert found["same job"].verdict is NOT_CHECKED


def test_what_listens_hangs_up(job: Path) -> None:
    with serving(job, lambda _: None):
        assert checks(job)["TLS"].verdict is PROBLEM


@contextmanager
def serving(job: Path, answer: Callable[[socket.socket], Any], port: int | None = None) -> Iterator[int]:
    """Anything but a thinwire, at the label party's address or at another port."""
    place = port or int(re.findall(r"127.0.0.1:(\d+)", job.read_text())[0])
    with socket.create_server(("127.0.0.1", place)) as server:
        server.settimeout(0.1)
        open_ = True

        def serve() -> None:
            while open_:
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                peer.settimeout(5)
                with peer:
                    peer.recv(1 << 16)
                    answer(peer)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield place
        finally:
            open_ = False
            thread.join()


def test_an_authority_that_is_not_the_others(job: Path) -> None:
    issue(job.parent / "foreign", ["bank"])
    with reception(job):
        found = checks(edit(job, "[network]", '[network]\ncerts = "foreign"'))
        assert found["certificate"].verdict is OK
        assert found["TLS"].verdict is PROBLEM
        assert "the certificate there is not accepted here" in found["TLS"].says
        # We take theirs now, but they do not take ours.
        ours = job.parent / "foreign/ca.pem"
        ours.write_bytes(ours.read_bytes() + (job.parent / "certs/ca.pem").read_bytes())
        found = checks(edit(job, "[network]", '[network]\ncerts = "foreign"'))
        assert found["TLS"].verdict is PROBLEM
        assert "our certificate" in found["TLS"].says, found["TLS"]
    assert found["version there"].verdict is NOT_CHECKED


def test_somebody_else_answers_at_the_address(job: Path) -> None:
    with reception(job):
        found = checks(edit(job, 'name = "clinic"', 'name = "clinic"\ncertificate_name = "hospital"'))["TLS"]
    assert (found.verdict, found.says) == (PROBLEM, "the certificate there is for clinic, not 'hospital'")


def test_a_party_of_another_job_is_refused(job: Path) -> None:
    issue(job.parent / "certs", ["gym"])
    stranger = edit(job, 'name = "bank"', 'name = "gym"')
    with reception(job) as desk:
        found = checks(stranger, "gym")["version there"]
    assert found.verdict is PROBLEM
    assert "the certificate is of gym, which is not a party of this run" in found.more[0]
    assert desk.callers == {}
    assert list(desk.refusals) == ["the certificate is of gym, which is not a party of this run"]


@pytest.fixture
def proxy(job: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """An HTTP proxy; gives the lines it was asked with."""
    asked: list[str] = []
    port = free_port()

    def forward(client: socket.socket, first: bytes) -> None:
        asked.append(first.decode().split("\r\n")[0])
        host, _, number = asked[-1].split()[1].rpartition(":")
        with client, socket.create_connection((host, int(number))) as server:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            back = Thread(target=pump, args=(server, client))
            back.start()
            pump(client, server)
            back.join()

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    threads: list[Thread] = []
    with socket.create_server(("127.0.0.1", port)) as server:

        def serve() -> None:
            while True:
                client, _ = server.accept()
                first = client.recv(1 << 16)
                if not first.startswith(b"CONNECT"):
                    client.close()
                    return
                threads.append(Thread(target=forward, args=(client, first)))
                threads[-1].start()

        thread = Thread(target=serve)
        thread.start()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        yield asked
        with socket.create_connection(("127.0.0.1", port)) as last:
            last.sendall(b"stop")
            thread.join()
        for one in threads:
            one.join()


def test_through_a_proxy_as_grpc_itself_goes(job: Path, proxy: list[str]) -> None:
    with reception(job):
        found = checks(job)
    assert {found[name].verdict for name in OF_THE_NETWORK} == {OK}
    assert "through the proxy 127.0.0.1:" in found["address"].says
    assert "of https_proxy" in found["address"].says
    address = read_party_view(job, "bank").network_party.dial_address()
    assert [line for line in proxy if line == f"CONNECT {address} HTTP/1.1"] == proxy
    assert len(proxy) == 3  # the doctor's own, a probe, the measurement


def test_proxies_that_refuse_or_are_not_there(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("grpc_proxy", f"http://user:secret@127.0.0.1:{port}")
    found = checks(job)["connection"]
    assert (found.verdict, found.says) == (PROBLEM, f"nothing listens on 127.0.0.1:{port}")
    assert "grpc_proxy" in found.more[0]
    with serving(job, lambda peer: peer.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n"), port):
        found = checks(job)["connection"]
    assert found.verdict is PROBLEM
    assert "does not connect" in found.says
    assert "403 Forbidden" in found.says
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("environment", "proxied"),
    [
        ({}, None),
        ({"http_proxy": "http://p:3128"}, "p:3128"),
        ({"http_proxy": "http://p:3128", "https_proxy": "http://q:1"}, "q:1"),
        ({"https_proxy": "http://q:1", "grpc_proxy": "http://r:2"}, "r:2"),
        ({"http_proxy": "http://p:3128", "no_proxy": "other.example, clinic.example"}, None),
        ({"http_proxy": "http://p:3128", "no_grpc_proxy": "other.example", "no_proxy": "clinic.example"}, "p:3128"),
        ({"http_proxy": "socks5://p:3128"}, None),
    ],
)
def test_which_proxy(environment: dict[str, str], proxied: str | None) -> None:
    way = NetworkRoute.to("fl.clinic.example:7443", environment)
    assert (None if way.proxy is None else str(way.proxy)) == proxied


def test_networks_without_a_proxy() -> None:
    environment = {"http_proxy": "http://p:3128", "no_proxy": "10.0.0.0/8"}
    assert NetworkRoute.to("10.1.2.3:7443", environment).proxy is None
    assert NetworkRoute.to("11.1.2.3:7443", environment).proxy is not None


def test_a_short_transfer_bounds_the_bandwidth_from_below() -> None:
    slow = dial._rate(0.01, lambda size: 0.01 + size / 125_000)  # 1 Mbit/s
    assert slow.mbit == pytest.approx(1.0)
    assert not slow.is_bound
    assert dial._rate(0.01, lambda _: 0.011).is_bound
    assert dial._rate(0.1, lambda _: 0.5).is_bound


# Certificates ---------------------------------------------------------------------------------------------------


def test_a_key_that_others_can_read(job: Path) -> None:
    (job.parent / "certs/bank.key").chmod(0o644)
    found = checks(job)
    assert found["key"].verdict is PROBLEM
    assert "chmod 600" in found["key"].more[0]
    assert [found[name].verdict for name in ("name", "certificate", "data")] == [OK, NOT_CHECKED, OK]
    with reception(job):
        found = checks(job)
    assert [found[name].verdict for name in ("connection", "TLS")] == [OK, NOT_CHECKED]
    assert found["TLS"].says == "needs the certificate"


def test_missing_certificates_and_keys(job: Path) -> None:
    shutil.rmtree(job.parent / "certs")
    found = checks(job)
    assert [found[name].verdict for name in ("key", "name", "certificate")] == [PROBLEM, PROBLEM, NOT_CHECKED]
    assert "thinwire certs creates them" in found["key"].more[0]


def test_another_partys_certificate(job: Path) -> None:
    for kind in ("pem", "key"):
        shutil.copy(job.parent / f"certs/shop.{kind}", job.parent / f"certs/bank.{kind}")
    found = checks(job)
    assert (found["name"].verdict, found["name"].says) == (PROBLEM, "the certificate is for shop, not 'bank'")
    assert found["certificate"].verdict is NOT_CHECKED


def test_certificates_end(job: Path) -> None:
    renew(job.parent / "certs", "bank", days=20)
    found = checks(job)["certificate"]
    assert (found.verdict, found.facts["days_left"]) == (WARNING, 19)
    assert "--renew bank" in found.more[0]
    expire(job.parent / "certs", "bank")
    found = checks(job)["certificate"]
    assert found.verdict is PROBLEM
    assert "expired on" in found.more[0]


def expire(folder: Path, name: str) -> None:
    """The same certificate, over since yesterday."""
    old = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
    key: Any = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        old.issuer, old.subject, old.public_key(), old.serial_number, now - timedelta(9), now - timedelta(1)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    (folder / f"{name}.pem").write_bytes(public_pem(builder.sign(key, SHA256())))


def test_revoked_certificates(job: Path) -> None:
    revoke(job.parent / "certs", "shop")
    found = checks(job)["revoked list"]
    assert (found.verdict, found.facts["revoked"]) == (OK, 1)
    revoke(job.parent / "certs", "bank")
    found = checks(job)["revoked list"]
    assert found.verdict is PROBLEM
    assert "our own certificate is on it" in found.says
    (job.parent / "certs/revoked.txt").write_text("not a serial\n")
    assert checks(job)["revoked list"].verdict is PROBLEM


# The job, the data and this machine -----------------------------------------------------------------------------


def test_without_a_job_nothing_else_is_looked_at(job: Path) -> None:
    for path, name, said in (
        (job.with_name("missing.toml"), "bank", "missing.toml"),
        (job, "bnak", "did you mean 'bank'?"),
        (edit(job, "fraction = 0.25", "fraction = 25", "bad.toml"), "bank", "fraction"),
    ):
        found = checks(path, name)
        assert found["job file"].verdict is PROBLEM
        assert said in found["job file"].more[0]
        assert found["versions"].verdict is OK
        assert {one.verdict for one in found.values()} == {OK, PROBLEM, NOT_CHECKED}


def test_approval(job: Path) -> None:
    found = checks(job)["approval"]
    assert found.verdict is WARNING
    digest = read_party_view(job, "bank").consent.digest
    assert f'approved = "{digest[:16]}"' in found.more[0]
    for approved, verdict in ((digest[:16], OK), ("0" * 16, PROBLEM)):
        other = edit(job, 'name = "bank"', f'name = "bank"\napproved = "{approved}"')
        assert checks(other)["approval"].verdict is verdict


def test_row_ids(job: Path) -> None:
    found = checks(job)["row ids"]
    assert (found.verdict, len(found.facts["row_ids"])) == (OK, 64)
    np.savez(job.parent / "ids.npz", train=np.arange(ROWS) // 2, test=np.arange(TESTS))
    found = checks(job)["row ids"]
    assert found.verdict is PROBLEM
    assert "row 2 repeats the id of row 1" in found.more[0]
    found = checks(edit(job, IDS.format("ids.npz", "ids.npz"), ""))["row ids"]
    assert found.verdict is WARNING


def test_a_model_that_does_not_take_the_data(job: Path) -> None:
    found = checks(edit(job, "hidden = [8]", "hidden = [8], in_features = 5"))
    assert found["data"].verdict is PROBLEM
    assert "party.bank.model" in found["data"].more[0]


def test_a_top_model_that_does_not_fit(job: Path) -> None:
    own = read_party_view(job, "clinic")
    data = own.load_label_data()
    held = preflight.OwnData(data, *count_rows(data))
    assert preflight.check_top_model(own, held, {"bank": 4, "shop": 4}).verdict is OK
    assert preflight.check_top_model(own, held, {"bank": 4, "shop": 5}).verdict is PROBLEM


@pytest.mark.parametrize(("free_kb", "verdict"), [(1, PROBLEM), (3, WARNING), (100, OK)])
def test_memory(job: Path, monkeypatch: pytest.MonkeyPatch, free_kb: int, verdict: CheckVerdict) -> None:
    meminfo = job.with_name("meminfo")
    meminfo.write_text(f"MemTotal:  9999 kB\nMemAvailable:  {free_kb} kB\n")
    monkeypatch.setattr(preflight, "_MEMINFO", meminfo)
    found = checks(job)["memory"]  # a surrogate of 96 x 4, and 68 weights
    assert (found.facts["state_bytes"], found.facts["data_bytes"]) == (4 * 96 * 4 + 4 * 4 * 68, 128 * 3 * 4)
    assert found.verdict is verdict
    monkeypatch.setattr(preflight, "_MEMINFO", job.with_name("none"))
    assert "unknown here" in checks(job)["memory"].says


@pytest.mark.parametrize(("free", "verdict"), [(1_000_000, PROBLEM), (60_000_000, WARNING), (10**9, OK)])
def test_disk(job: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: CheckVerdict) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 0, free))
    assert checks(job)["disk"].verdict is verdict


def test_a_folder_that_cannot_be(job: Path) -> None:
    found = checks(job, out="job.toml/bank")["disk"]
    assert found.verdict is PROBLEM
    assert "job.toml cannot be written to" in found.says


def test_the_run_folder(job: Path) -> None:
    folder = job.parent / "runs/bank"
    assert "is new" in checks(job)["run folder"].says
    assert not folder.exists()
    private = PrivateState.open(folder)
    private.begin_incarnation()
    assert checks(job)["run folder"].facts == {"starts": 1}
    (folder / "job.toml").write_text("[job]\nseed = 9\n")
    (folder / "data.json").write_text("{}")
    assert checks(job)["run folder"].verdict is PROBLEM
    (folder / "job.toml").unlink()
    private.set_finished(True)
    assert checks(job)["run folder"].verdict is WARNING
    private.set_aborted("shop")
    found = checks(job)["run folder"]
    assert (found.verdict, found.more) == (PROBLEM, ("use a different --out",))
    assert "aborted by 'shop'" in found.says
    os.chmod(folder / "private.json", 0o644)
    assert "chmod 600" in checks(job)["run folder"].more[0]


# The label party listens ----------------------------------------------------------------------------------------


def test_the_port_is_in_use(job: Path) -> None:
    assert checks(job, "clinic")["listen"].verdict is OK
    with serving(job, lambda _: None):
        found = checks(job, "clinic", 60)
    assert found["listen"].verdict is PROBLEM
    assert "in use by another process" in found["listen"].says
    assert [found[name].verdict for name in ("party bank", "party shop")] == [NOT_CHECKED] * 2
    with reception(job):
        found = checks(job, "clinic")
    assert found["listen"].verdict is WARNING
    assert "a doctor of 'clinic' listens" in found["listen"].says


def test_an_address_of_another_machine_and_none_at_all(job: Path) -> None:
    found = checks(edit(job, "127.0.0.1", "192.0.2.1"), "clinic")["listen"]
    assert found.verdict is PROBLEM
    assert "network.listen must be an address of this machine" in found.more[0]
    found = checks(edit(job, "listen", "# listen"), "clinic")["listen"]
    assert (found.verdict, "network.listen is missing" in found.more[0]) == (PROBLEM, True)


def test_a_reception_answers_doctors_only(job: Path) -> None:
    target = read_party_view(job, "bank").network_party.target()
    with reception(job) as desk:
        assert ask(target, RPCS["Status"], {})["state"] == "doctor"
        with pytest.raises(Refused, match="this is the doctor, not the run"):
            ask(target, RPCS["Abort"], {})
        with pytest.raises(NotYet, match="this is the doctor, not the run"):
            desk.admit("bank", {})
    assert desk.callers == {}


def test_a_party_that_comes_too_early_joins_the_run_later(job: Path) -> None:
    with Processes() as started:

        def start(name: str) -> Process:
            return started.command([THINWIRE, "party", job.name, "--name", name, "--yes"], job.parent)

        with reception(job) as desk:
            bank = start("bank")
            deadline = monotonic() + 300
            while not desk.refusals and monotonic() < deadline:
                sleep(0.05)
            assert "this is the doctor, not the run" in next(iter(desk.refusals))
        assert bank.poll() is None
        running = (bank, start("clinic"), start("shop"))
        codes = [process.code() for process in running]
        assert codes == [0, 0, 0], [process.stderr for process in running]
        assert re.search("'clinic' does not answer: .* this is the doctor, not the run", bank.stderr)


def test_a_probe_carries_sizes_and_digests_and_nothing_else(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, Any]] = []

    def noted(request: Any, *rest: Any) -> dict[str, Any]:
        requests.append(dict(request))
        return answer_probe(request, *rest)

    monkeypatch.setattr(desks, "answer_probe", noted)
    with reception(job):
        checks(job)
    assert {key for request in requests for key in request} == {"echo", "filler", "want", "brought", "done"}
    told = [request["brought"] for request in requests if "brought" in request]
    assert {key for one in told for key in one} == set(ProbeHello.model_fields)
    assert max(len(json.dumps(request)) for request in requests) < 1 << 20


@pytest.mark.parametrize(
    "request_", [{"want": MOST_FILLER + 1}, {"want": -1}, {"want": True}, {"want": 2.5}, {"want": "9"}]
)
def test_a_probe_cannot_ask_for_too_much(job: Path, request_: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="want must be from 0 to"):
        answer_probe(request_, "bank", brought(job), 0.0)


@pytest.mark.parametrize("value", [None, [], {}, {"party": "bank", "version": "1", "agreement": {"a": 1}}])
def test_a_probe_that_cannot_be_read(job: Path, value: Any) -> None:
    with pytest.raises(Refused, match=r"probe: brought\."):
        answer_probe({"brought": value}, "bank", brought(job), 0.0)


def test_a_probe_speaks_for_its_certificate_whatever_it_says(job: Path) -> None:
    told = brought(job, "shop", rows=95).model_dump()
    answer = answer_probe({"brought": told}, "bank", brought(job), 7.0)
    assert answer["differences"][0].startswith("'bank' has 95 training rows")
    assert (answer["time"], answer["echo"], answer["filler"]) == (7.0, "", "")
    assert len(answer_probe({"want": MOST_FILLER}, "bank", brought(job), 0.0)["filler"]) == MOST_FILLER


# As a command ---------------------------------------------------------------------------------------------------


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["thinwire", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code if isinstance(ended.value.code, int) else 0


def test_lines_for_people(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(job.parent)
    assert called(monkeypatch, "doctor", "job.toml", "--name", "bank") == 2
    shown, errors = capsys.readouterr()
    assert errors == ""
    lines = shown.splitlines()
    assert "ok           job file        job.toml: 'bank' is a feature party; the label party is 'clinic'" in lines
    place = next(
        number for number, line in enumerate(lines) if line.startswith("problem      connection      nothing")
    )
    assert lines[place + 1].startswith(" " * 31 + "start `thinwire doctor`")
    assert lines[place + 2] == "not checked  TLS             needs the connection"
    assert lines[-1] == "1 problem, 1 warning, 6 not checked, 14 ok"
    assert not (job.parent / "runs").exists()
    assert called(monkeypatch, "doctor", "job.toml", "--name", "clinic") == 0
    assert "no problems, 1 warning, 1 not checked, " in capsys.readouterr().out


def test_json_for_machines(job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(job.parent)
    with reception(job):
        words = ("doctor", "job.toml", "--name", "bank", "--json", "--set", "job.seed=7", "--out", "here")
        assert called(monkeypatch, *words) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["party"], found["ok"], found["problems"], found["not_checked"]) == ("bank", False, 1, 0)
    by_name = {check["name"]: check for check in found["checks"]}
    assert by_name["same job"]["facts"] == {"differences": ["job.seed is 7 at 'bank' and 0 at 'clinic'"]}
    assert "here is new" in by_name["run folder"]["says"]
