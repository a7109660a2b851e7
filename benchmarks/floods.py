"""Rounds a second and memory of a label party under floods of callers, each beside the same run left alone.

    OMP_NUM_THREADS=1 python benchmarks/floods.py [--json] [--seconds 10] [--repeats 3] [--only "idle connections"]

Three parties train in processes of their own over mutual TLS; the label party may open 1,024 files. For each flood
the run is watched for so many seconds before it and as many from its first call on; memory is the peak of the window.
The flood comes from one more process, at the lowest priority: it is not its own CPU time that is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]  # the tests' parties and callers

from thinwire.base.process import configure_grpc, share_memory_pool  # noqa: E402

share_memory_pool()
configure_grpc()

import grpc  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from net.callers import Identity, channel_to, own_identity, refusal, signed  # noqa: E402
from net.raw_http2 import RawCaller  # noqa: E402
from net.test_signing import sign_each_other  # noqa: E402
from processes import Process, until  # noqa: E402
from thinwire.job.party_view import read_party_view  # noqa: E402
from thinwire.net.grpc.client import Unreached  # noqa: E402
from thinwire.net.grpc.service import RPCS  # noqa: E402
from thinwire.net.links.records import Record  # noqa: E402
from thinwire.net.pki.certificates import public_pem  # noqa: E402
from thinwire.training.party.status import ask_label_party  # noqa: E402
from training.party.parties import LABEL_PARTY, PartyProcesses, Place, Shape, made  # noqa: E402

FILES = 1024
CHAIN = 140  # certificates
_BOMB = bytes([Record.HELLO]) + b'{"agreement":' + 400_000 * b"[" + b"}"

Flood = Callable[[Place, ExitStack], None]


# The floods: what is opened stays open ----------------------------------------------------------------------------


def open_calls(place: Place, held: ExitStack) -> None:
    """40 calls of a stranger, without a body."""
    for _ in range(5):
        raw = held.enter_context(RawCaller(place.port, LABEL_PARTY, signed(place.certs, "nobody")))
        for _ in range(8):
            raw.call(RPCS["Status"])


def idle_connections(place: Place, held: ExitStack) -> None:
    """3,000 connections that say nothing."""
    for _ in range(3000):
        with suppress(OSError):  # hung up on
            held.enter_context(socket.create_connection(("127.0.0.1", place.port)))


def untaken_probes(place: Place, held: ExitStack) -> None:
    """1,500 probes of a party that takes no answer."""
    for _ in range(100):
        with suppress(OSError):
            raw = held.enter_context(RawCaller(place.port, LABEL_PARTY, own_identity(place.certs, "shop"), window=0))
            for _ in range(15):
                raw.call(RPCS["Probe"], b'{"want": 1000000}')


def long_chains(place: Place, held: ExitStack) -> None:
    """200 handshakes of a stranger with 140 certificates, and a call after each."""
    known = signed(place.certs, "nobody")
    chain = public_pem(*sign_each_other(CHAIN - 2))
    shown = replace(known, certificate_pem=(known.certificate_pem or b"") + chain)
    for _ in range(200):
        with suppress(OSError):
            held.enter_context(RawCaller(place.port, LABEL_PARTY, shown)).call(RPCS["Status"], b"{}")


def hello_bombs(place: Place, _held: ExitStack) -> None:
    """200 greetings of a party, nested 400,000 deep or compressed to a thousandth."""
    with channel_to(place.port, LABEL_PARTY, own_identity(place.certs, "shop")) as channel:
        for _ in range(100):
            refusal(channel, RPCS["Talk"], ["shop"], _BOMB)
            with suppress(grpc.RpcError):
                ask: Any = channel.unary_unary(RPCS["Probe"].path)
                ask(bytes(1 << 25), timeout=300, compression=grpc.Compression.Gzip)


def denied_calls(place: Place, _held: ExitStack) -> None:
    """5,000 calls of a stranger, as fast as they go."""
    _call_on(place, signed(place.certs, "nobody"), 5000)


def handshakes(place: Place, _held: ExitStack) -> None:
    """2,000 handshakes without a certificate."""
    for _ in range(2000):
        with suppress(OSError):
            RawCaller(
                place.port, LABEL_PARTY, Identity((place.certs / "ca.pem").read_bytes(), None, None)
            ).socket.close()


def party_calls(place: Place, _held: ExitStack) -> None:
    """5,000 probes of a party, as fast as they are answered."""
    _call_on(place, own_identity(place.certs, "shop"), 5000)


def _call_on(place: Place, shown: Identity, times: int) -> None:
    with channel_to(place.port, LABEL_PARTY, shown) as channel:
        ask: Any = channel.unary_unary(RPCS["Probe"].path)
        for _ in range(times):
            with suppress(grpc.RpcError):
                ask(b"{}", timeout=300)


FLOODS: dict[str, Flood] = {
    flood.__name__.replace("_", " "): flood
    for flood in (
        open_calls,
        idle_connections,
        untaken_probes,
        long_chains,
        hello_bombs,
        denied_calls,
        handshakes,
        party_calls,
    )
}


# The run that is flooded ------------------------------------------------------------------------------------------


@contextmanager
def training(folder: Path, epochs: int) -> Iterator[tuple[Place, dict[str, Process]]]:
    """Three parties under way; the label party may open few files."""
    place = made(folder, Shape({"method": "svfl"}, job={"epochs": epochs, "eval_every": 1_000_000}))
    with PartyProcesses() as processes:
        running = {LABEL_PARTY: processes.party(place, LABEL_PARTY)}
        resource.prlimit(running[LABEL_PARTY].pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        running |= {name: processes.party(place, name) for name in place.feature_parties}
        until(lambda: count_rounds(place) > 50)
        yield place, running


@contextmanager
def flooded(place: Place, flood: str) -> Iterator[None]:
    """From another process, which holds what it has opened until the end."""
    spawned = get_context("spawn")
    ready, over = spawned.Event(), spawned.Event()
    attacker = spawned.Process(target=_attack, args=(place, flood, ready, over))
    attacker.start()
    try:
        ready.wait(300)  # until it has loaded what it needs
        yield
    finally:
        over.set()
        attacker.join(30)
        attacker.kill()


def _attack(place: Place, flood: str, ready: Event, over: Event) -> None:
    os.nice(19)
    ready.set()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as held:
        while not over.is_set():
            FLOODS[flood](place, held)
            over.wait(1.0 if flood in _REPEATED else 600.0)


_REPEATED = ("long chains", "hello bombs", "denied calls", "handshakes", "party calls")  # nothing of them stays


def count_rounds(place: Place) -> int:
    own = read_party_view(place.job, "bank", ())
    for _ in range(600):
        with suppress(Unreached):  # it may take a second call while others flood in
            return int(ask_label_party(own, "Status", {})[1]["round"])
        sleep(0.5)
    raise TimeoutError("the label party does not answer")


def peak_mib(process: Process) -> float:
    """Since the last look at it."""
    status, forget = (Path(f"/proc/{process.pid}/{name}") for name in ("status", "clear_refs"))
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    forget.write_text("5")
    return int(line.split()[1]) / 1024


# Measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One flood beside the run left alone."""

    flood: str
    rounds_alone: float  # a second
    rounds_flooded: float
    speed: float  # flooded over alone
    mib_alone: float
    mib_flooded: float
    memory: float


def watch(place: Place, label: Process, seconds: float) -> tuple[float, float]:
    """Rounds a second, and the peak of memory."""
    peak_mib(label)
    began, first = monotonic(), count_rounds(place)
    sleep(seconds)
    rounds = (count_rounds(place) - first) / (monotonic() - began)
    return rounds, peak_mib(label)


def measure(place: Place, label: Process, flood: str, seconds: float) -> Measured:
    alone, mib_alone = watch(place, label, seconds)
    with flooded(place, flood):
        under, mib_under = watch(place, label, seconds)
    return Measured(flood, alone, under, under / alone, mib_alone, mib_under, mib_under / mib_alone)


def pick_median(repeats: list[Measured]) -> Measured:
    """By the ratio of the speeds; of memory the highest."""
    middle = sorted(repeats, key=lambda one: one.speed)[len(repeats) // 2]
    highest = max(repeats, key=lambda one: one.memory)
    return replace(middle, mib_alone=highest.mib_alone, mib_flooded=highest.mib_flooded, memory=highest.memory)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--json", action="store_true")
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--only", choices=FLOODS, action="append")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, training(Path(folder), 1_000_000) as (place, running):
        label = running[LABEL_PARTY]
        found = [
            pick_median([measure(place, label, flood, asked.seconds) for _ in range(asked.repeats)])
            for flood in asked.only or FLOODS
        ]
    if asked.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    table = Table("flood", "rounds/s alone", "flooded", "ratio", "MiB alone", "flooded", "ratio")
    for one in found:
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:.3g}" for cell in astuple(one)))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
