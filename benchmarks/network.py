"""What a round costs between real processes: gRPC and mutual TLS against a raw socket and the simulated engine.

    OMP_NUM_THREADS=1 python benchmarks/network.py [--json] [--rounds 300] [--wan ../shared/tools/wan]

On loopback: svfl with trivial models, 16 KB up and 16 KB down, in the same run as a raw TCP ping-pong of the same
bytes, one over a bare gRPC stream with mutual TLS, and the same rounds in one process. With --wan (root; a folder
with up.sh and down.sh, which shape a link between two network namespaces): rounds of several sizes on 300 Mbit/s
with a round trip of 20 ms, against what the link itself needs, the ledger against the interface's own counters, and
the link clock's prediction. Compute is what the two programs really took in that run between a message that came in
and the next one out: after 20 ms of waiting caches are cold, and the same work takes longer than in the simulator.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.ping_pong import bare_grpc_ms, free_port, raw_tcp_ms, round_ms
from benchmarks.results import Row, compare, middle
from thinwire.base.process import configure_grpc, share_memory_pool
from thinwire.net.pki.authority import issue

MBIT, ROUND_TRIP_MS = 300.0, 20.0
BODIES = (16, 64, 256, 1024)  # KB each way
WIDTH = 64
_BODY = 16 << 10  # bytes each way: 64 rows of 64 floats
_ROUNDS, _REPEATS = 300, 3
_SVFL = 'method = "svfl"'
_AHEAD = 'method = "celu"\ncapacity = 1\nreuse = 1\noverlap = "ahead"'  # svfl, but for what it sends ahead


@dataclass(frozen=True)
class Loopback:
    """Median milliseconds of a round of 16 KB up and 16 KB down."""

    thinwire_ms: float  # between two processes
    ahead_ms: float  # the same, where the next embedding leaves before this one's answer is here
    raw_tcp_ms: float
    simulated_ms: float  # in this process


@dataclass(frozen=True)
class Local(Loopback):
    """With a bare stream over mutual TLS beside it."""

    grpc_ms: float

    @property
    def over_both(self) -> float:
        """Against a raw socket and the engine's own time together."""
        return self.thinwire_ms / (self.raw_tcp_ms + self.simulated_ms)

    @property
    def over_grpc(self) -> float:
        """Against what nobody who speaks gRPC can do without, and the engine's own time."""
        return self.thinwire_ms / (self.grpc_ms + self.simulated_ms)


@dataclass(frozen=True)
class Shaped:
    """One size of message on the shaped link."""

    congestion: str  # the kernel's congestion control
    body_kb: int
    round_ms: float
    compute_ms: float  # of both parties
    needed_ms: float  # bits / bandwidth + round trip + compute
    ratio: float
    raw_tcp_ms: float
    over_raw: float  # against the raw socket and the compute together
    ledger_bytes: int
    interface_bytes: int
    clock_ms: float  # the link clock's prediction


def rows() -> list[Row]:
    """Against the socket alone, and against the socket and the same rounds in one process together."""
    runs = [loopback(_ROUNDS) for _ in range(_REPEATS)]
    help = "a round between two processes, gRPC and mutual TLS"
    whole = [compare(one.thinwire_ms, one.raw_tcp_ms) for one in runs]
    apart = [compare(one.thinwire_ms, one.raw_tcp_ms + one.simulated_ms) for one in runs]
    ahead = [compare(one.ahead_ms, one.raw_tcp_ms + one.simulated_ms) for one in runs]
    both = "raw TCP and a simulated round"
    return [
        middle(whole).row("16 KB", f"{help}, its computing included", "raw TCP ping-pong", "ms"),
        middle(apart).row("16 KB, computing", help, both, "ms"),
        middle(ahead).row("16 KB, ahead", f"{help}, which sends the next embedding ahead", both, "ms"),
    ]


def loopback(rounds: int) -> Loopback:
    with tempfile.TemporaryDirectory() as folder:
        job, ahead = (
            write_job(Path(folder) / name, _BODY // (4 * WIDTH), rounds, f"127.0.0.1:{free_port()}", recipe)
            for name, recipe in (("svfl", _SVFL), ("ahead", _AHEAD))
        )
        real, sooner = (float(parties(one)["median_ms"]) for one in (job, ahead))
        return Loopback(real, sooner, raw_tcp_ms(f"127.0.0.1:{free_port()}", _BODY, rounds), simulated_ms(job)[0])


def write_job(folder: Path, batch: int, rounds: int, address: str, recipe: str = _SVFL) -> Path:
    """Trivial models between a bank and a shop, `batch` x 64 floats each way."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    rows = 4 * batch
    np.savez(folder / "bank.npz", x=rng.standard_normal((rows, WIDTH), dtype=np.float32))
    np.savez(folder / "shop.npz", y=rng.integers(0, 2, rows))
    issue(folder / "certs", ["bank", "shop"])
    (folder / "job.toml").write_text(
        f"""
[job]
epochs = {rounds / 4}
batch_size = {batch}
eval_every = {rounds + 1}
diagnostics = false
effort = "fast"
[recipe]
{recipe}
[optimizer]
name = "sgd"
lr = 0.01
[network]
listen = "{address}"
address = "{address}"
checkpoint_seconds = 60
[[party]]
name = "bank"
features = {{ file = "bank.npz", key = "x" }}
model = {{ name = "mlp", hidden = [], width = {WIDTH} }}
[label_party]
name = "shop"
labels = {{ file = "shop.npz", key = "y" }}
top = {{ name = "linear_top", classes = 2 }}
"""
    )
    return folder / "job.toml"


def parties(job: Path, spaces: tuple[list[str], list[str]] = ([], [])) -> dict[str, Any]:
    """Both parties to their end; what the feature party measured, and the computing of both."""
    command = [sys.executable, __file__, "--party", str(job)]
    shop_command = [*spaces[0], *command, "shop", str(job.parent / "run-shop")]
    bank_command = [*spaces[1], *command, "bank", str(job.parent / "run-bank")]
    with subprocess.Popen(shop_command, stdout=subprocess.PIPE) as shop:
        bank = subprocess.run(bank_command, stdout=subprocess.PIPE, check=True)
        theirs = json.loads(shop.communicate(timeout=60)[0])
    measured: dict[str, Any] = json.loads(bank.stdout)
    return {**measured, "compute_ms": measured["compute_ms"] + theirs["compute_ms"]}


def simulated_ms(job: Path, link: Any = None) -> tuple[float, float]:
    """The median round in one process; and by the link's clock, where there is one."""
    from thinwire.job.job_loader import load_job
    from thinwire.training.train import train

    loaded = load_job(job)
    loaded.link = link
    times: list[float] = []
    result = train(loaded, callbacks=[], on_round=lambda _: times.append(perf_counter()))
    seconds = result.history[-1]["link_seconds"]
    return round_ms(times)["median_ms"], 0.0 if seconds is None else 1e3 * seconds / len(times)


class _Computing:
    """A channel that notes how long its program computes between what comes in and what goes out."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._got = 0.0
        self._times: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def receive(self, *arguments: Any) -> Any:
        message = self._channel.receive(*arguments)
        self._got = perf_counter()
        return message

    def send(self, message: Any) -> None:
        if self._got:
            self._times.append(perf_counter() - self._got)
        self._got = 0.0
        self._channel.send(message)

    def median_ms(self) -> float:
        return 1e3 * statistics.median(self._times[5:])


def _party(job: str, name: str, out: str) -> None:
    """Prints the median and mean round in milliseconds, the computing, and the run's summary."""
    from thinwire.job.party_view import read_party_view
    from thinwire.training.party.party_run import Audience
    from thinwire.training.party.startup import open_party_run

    times: list[float] = []
    audience = Audience(lambda _: None, lambda _: None, lambda _: times.append(perf_counter()))
    run = open_party_run(read_party_view(job, name), Path(out), audience)
    computing = _Computing(run.session.channel)
    run.session.channel = computing  # type: ignore[assignment]
    outcome = run.execute()
    print(json.dumps({**round_ms(times), "compute_ms": computing.median_ms(), "summary": outcome.summary}))


def local_rounds(rounds: int, repeats: int) -> Local:
    found: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        issue(Path(folder), ["bank", "shop"])
        for _ in range(repeats):
            found.append((*astuple(loopback(rounds)), bare_grpc_ms(Path(folder), 16 << 10, rounds)))
    return Local(*(statistics.median(column) for column in zip(*found, strict=True)))


@contextmanager
def shape_link(tools: Path, mbit: float, one_way_ms: float) -> Iterator[tuple[list[str], list[str]]]:
    """Two network namespaces with such a link between them: how a command is started in each."""
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "WAN_STATE": state}
        subprocess.run(["bash", str(tools / "down.sh")], env=environment, check=True)
        up = ["bash", str(tools / "up.sh"), str(int(mbit * 1e6)), str(int(one_way_ms * 1000))]
        subprocess.run(up, env=environment, check=True, stdin=subprocess.DEVNULL)
        try:
            yield ["ip", "netns", "exec", "wanA"], ["ip", "netns", "exec", "wanB"]
        finally:
            subprocess.run(["bash", str(tools / "down.sh")], env=environment, check=False)


def interface_bytes(space: list[str]) -> int:
    """Both directions, of the namespace's link."""
    text = subprocess.run([*space, "cat", "/proc/net/dev"], stdout=subprocess.PIPE, check=True, text=True).stdout
    fields = next(line for line in text.splitlines() if "tunw" in line).partition(":")[2].split()
    return int(fields[0]) + int(fields[8])


def set_congestion(spaces: tuple[list[str], list[str]], name: str) -> None:
    for space in spaces:
        setting = f"net.ipv4.tcp_congestion_control={name}"
        subprocess.run([*space, "sysctl", "-q", "-w", setting], check=True)


def shaped(tools: Path, rounds: int, congestion: str) -> list[Shaped]:
    found = []
    with shape_link(tools, MBIT, ROUND_TRIP_MS / 2) as spaces:
        set_congestion(spaces, congestion)
        for body_kb in BODIES:
            with tempfile.TemporaryDirectory() as folder:
                batch = body_kb * 1024 // (4 * WIDTH)
                job = write_job(Path(folder), batch, rounds, "10.99.0.1:7443")
                before = interface_bytes(spaces[0])
                real = parties(job, spaces)
                crossed = interface_bytes(spaces[0]) - before
                _, clock_ms = simulated_ms(job, tw.Link(bandwidth_mbit=MBIT, latency_ms=ROUND_TRIP_MS / 2))
                raw_ms = raw_tcp_ms("10.99.0.1:7444", body_kb << 10, 40, spaces)
                summary = real["summary"]
                ledger = summary["sent_bytes"] + summary["received_bytes"]
                compute_ms = real["compute_ms"]
                needed = 2 * body_kb * 1024 * 8 / (MBIT * 1e3) + ROUND_TRIP_MS + compute_ms
                found.append(
                    Shaped(
                        congestion,
                        body_kb,
                        real["median_ms"],
                        compute_ms,
                        needed,
                        real["median_ms"] / needed,
                        raw_ms,
                        real["median_ms"] / (raw_ms + compute_ms),
                        ledger,
                        crossed,
                        clock_ms,
                    )
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wan", type=Path, help="the folder of the tools that shape a link")
    parser.add_argument("--congestion", default="bbr,reno", help="congestion controls to try on the shaped link")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    local = local_rounds(asked.rounds, asked.repeats)
    far = []
    for congestion in asked.congestion.split(",") if asked.wan is not None else []:
        far += shaped(asked.wan, max(40, asked.rounds // 5), congestion)
    if asked.json:
        print(json.dumps({"loopback": asdict(local), "shaped": [asdict(line) for line in far]}, indent=2))
    else:
        show(local, far)


def show(local: Local, far: list[Shaped]) -> None:
    print("a round of 16 KB up and 16 KB down on loopback, median ms (bar: 1.2 ms)")
    print(f"  thinwire, gRPC and mutual TLS, two processes  {local.thinwire_ms:.2f}")
    print(f"  the same, the next embedding sent ahead       {local.ahead_ms:.2f}")
    print(f"  raw TCP ping-pong                             {local.raw_tcp_ms:.2f}")
    print(f"  bare gRPC ping-pong, mutual TLS               {local.grpc_ms:.2f}")
    print(f"  simulated, one process                        {local.simulated_ms:.2f}")
    print(f"  thinwire / (raw TCP + simulated)              {local.over_both:.2f}x")
    print(f"  thinwire / (bare gRPC + simulated)            {local.over_grpc:.2f}x")
    if not far:
        return
    print(f"{MBIT:.0f} Mbit/s, {ROUND_TRIP_MS:.0f} ms round trip, MTU 9000 (bars: 1.08x, 3 %, 10 %)")
    print(
        "       body KB  round ms  compute  needed  ratio  raw TCP  to raw  ledger B  interface B  over  clock"
        "  to real"
    )
    for line in far:
        over = line.interface_bytes / line.ledger_bytes - 1
        print(
            f"{line.congestion:5}  {line.body_kb:7d}  {line.round_ms:8.2f}  {line.compute_ms:7.2f}"
            f"  {line.needed_ms:6.2f}  {line.ratio:5.3f}  {line.raw_tcp_ms:7.2f}  {line.over_raw:6.3f}"
            f"  {line.ledger_bytes:8d}  {line.interface_bytes:11d}  {over:4.1%}  {line.clock_ms:5.2f}"
            f"  {line.clock_ms / line.round_ms:7.3f}"
        )


if __name__ == "__main__":
    configure_grpc()
    share_memory_pool()
    if sys.argv[1:2] == ["--party"]:
        _party(*sys.argv[2:5])
    else:
        main()
