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
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import numpy as np

WIDTH = 64
MBIT, ROUND_TRIP_MS = 300.0, 20.0
BODIES = (16, 64, 256, 1024)  # KB each way


@dataclass(frozen=True)
class Loopback:
    """Milliseconds a round of 16 KB up and 16 KB down; median."""

    thinwire_ms: float
    raw_tcp_ms: float
    grpc_ms: float  # a bare stream over mutual TLS
    simulated_ms: float

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


# One party in a process of its own ---------------------------------------------------------------------------------


def party(job: str, name: str, out: str) -> None:
    """Prints the median and mean round in milliseconds."""
    from thinwire.job.own_part import read_own_part
    from thinwire.network.party_run import Audience
    from thinwire.network.starting import party_run

    times: list[float] = []
    audience = Audience(lambda _: None, lambda _: None, lambda _: times.append(perf_counter()))
    run = party_run(read_own_part(job, name), Path(out), audience)
    computing = _Computing(run.channel)
    run.channel = computing  # type: ignore[assignment]
    outcome = run.execute()
    print(json.dumps({**_rounds(times), "compute_ms": computing.median_ms(), "summary": outcome.summary}))


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


def _rounds(times: Sequence[float]) -> dict[str, float]:
    steps = np.diff(np.array(times))[5:] * 1e3  # the first ones warm up
    return {"median_ms": float(np.median(steps)), "mean_ms": float(steps.mean())}


def write_job(folder: Path, batch: int, rounds: int, address: str) -> Path:
    from thinwire.transport.authority import issue

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
method = "svfl"
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
    """Both parties to their end; what the feature party measured."""
    command = [sys.executable, __file__, "party", str(job)]
    shop = subprocess.Popen([*spaces[0], *command, "shop", str(job.parent / "run-shop")], stdout=subprocess.PIPE)
    bank = subprocess.run(
        [*spaces[1], *command, "bank", str(job.parent / "run-bank")], stdout=subprocess.PIPE, check=True
    )
    theirs = json.loads(shop.communicate(timeout=60)[0])
    measured: dict[str, Any] = json.loads(bank.stdout)
    return {**measured, "compute_ms": measured["compute_ms"] + theirs["compute_ms"]}


def simulated(job: Path, link: bool) -> tuple[float, float]:
    """Median milliseconds a round in one process; and by the link's clock, where there is one."""
    import thinwire as tw
    from thinwire.job.loading import load_job

    loaded = load_job(job)
    loaded.link = tw.Link(bandwidth_mbit=MBIT, latency_ms=ROUND_TRIP_MS / 2) if link else None
    times: list[float] = []
    result = tw.train(loaded, callbacks=[], on_round=lambda _: times.append(perf_counter()))
    seconds = result.history[-1]["link_seconds"]
    return _rounds(times)["median_ms"], 0.0 if seconds is None else 1e3 * seconds / len(times)


# A raw socket ------------------------------------------------------------------------------------------------------


def raw(address: str, size: int, rounds: int) -> None:
    """Dials when there is a listener's READY on stdin's side; sends `size` bytes and waits for as many."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = [perf_counter()]
        for _ in range(rounds):
            line.sendall(bytes(size))
            _exactly(line, size)
            times.append(perf_counter())
    print(json.dumps(_rounds(times)))


def raw_server(address: str, size: int) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_server((host, int(port))) as listening:
        print("READY", flush=True)
        line, _ = listening.accept()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _exactly(line, size):
            line.sendall(bytes(size))


def _exactly(line: socket.socket, size: int) -> bool:
    while size:
        got = len(line.recv(min(size, 1 << 20)))
        if not got:
            return False
        size -= got
    return True


def raw_tcp(address: str, size: int, rounds: int, spaces: tuple[list[str], list[str]] = ([], [])) -> float:
    server = subprocess.Popen(
        [*spaces[0], sys.executable, __file__, "raw-server", address, str(size)], stdout=subprocess.PIPE
    )
    if server.stdout is not None:
        server.stdout.readline()
    client = [*spaces[1], sys.executable, __file__, "raw", address, str(size), str(rounds)]
    measured = json.loads(subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout)
    server.wait(timeout=10)
    return float(measured["median_ms"])


# A bare gRPC stream ------------------------------------------------------------------------------------------------


def bare_grpc(address: str, certs: str, size: int, rounds: int) -> None:
    """Sends `size` bytes on one long stream and waits for as many."""
    from thinwire.transport.grpc_channel import OPTIONS, grpc

    read = Path(certs)
    secure = grpc.ssl_channel_credentials(
        (read / "ca.pem").read_bytes(), (read / "bank.key").read_bytes(), (read / "bank.pem").read_bytes()
    )
    options = [*OPTIONS, ("grpc.ssl_target_name_override", "shop")]
    outgoing: SimpleQueue[bytes | None] = SimpleQueue()
    with grpc.secure_channel(address, secure, options=options) as channel:
        echo: Any = channel.stream_stream("/bare/Echo")
        call = echo(iter(outgoing.get, None))
        times = [perf_counter()]
        for _ in range(rounds):
            outgoing.put(bytes(size))
            next(call)
            times.append(perf_counter())
        outgoing.put(None)
    print(json.dumps(_rounds(times)))


def bare_grpc_server(address: str, certs: str) -> None:
    """Sends back what comes, until its standard input ends."""
    from thinwire.transport.grpc_channel import OPTIONS, grpc

    class Echo(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(lambda requests, _: requests)

    read = Path(certs)
    keys = [((read / "shop.key").read_bytes(), (read / "shop.pem").read_bytes())]
    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    server.add_generic_rpc_handlers((Echo(),))
    server.add_secure_port(address, grpc.ssl_server_credentials(keys, (read / "ca.pem").read_bytes(), True))
    server.start()
    print("READY", flush=True)
    sys.stdin.read()
    server.stop(grace=None)


def grpc_echo(certs: Path, size: int, rounds: int) -> float:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, "bare-grpc-server", address, str(certs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        if server.stdout is not None:
            server.stdout.readline()
        client = [sys.executable, __file__, "bare-grpc", address, str(certs), str(size), str(rounds)]
        measured = json.loads(subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout)
    return float(measured["median_ms"])


# The measurements --------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def loopback(rounds: int, repeats: int) -> Loopback:
    found: list[tuple[float, ...]] = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            job = write_job(Path(folder), batch=64, rounds=rounds, address=f"127.0.0.1:{free_port()}")
            real = parties(job)["median_ms"]
            socket_ms = raw_tcp(f"127.0.0.1:{free_port()}", 16 << 10, rounds)
            grpc_ms = grpc_echo(job.parent / "certs", 16 << 10, rounds)
            found.append((real, socket_ms, grpc_ms, simulated(job, link=False)[0]))
    return Loopback(*(statistics.median(column) for column in zip(*found, strict=True)))


@contextmanager
def shaped_link(tools: Path) -> Iterator[tuple[list[str], list[str]]]:
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "WAN_STATE": state}
        subprocess.run(["bash", str(tools / "down.sh")], env=environment, check=True)
        one_way_us = str(int(ROUND_TRIP_MS / 2 * 1000))
        up = ["bash", str(tools / "up.sh"), str(int(MBIT * 1e6)), one_way_us]
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
    with shaped_link(tools) as spaces:
        set_congestion(spaces, congestion)
        for body_kb in BODIES:
            with tempfile.TemporaryDirectory() as folder:
                batch = body_kb * 1024 // (4 * WIDTH)
                job = write_job(Path(folder), batch, rounds, "10.99.0.1:7443")
                before = interface_bytes(spaces[0])
                real = parties(job, spaces)
                crossed = interface_bytes(spaces[0]) - before
                _, clock_ms = simulated(job, link=True)
                raw_ms = raw_tcp("10.99.0.1:7444", body_kb << 10, 40, spaces)
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
    if len(sys.argv) > 1 and sys.argv[1] == "party":
        return party(*sys.argv[2:5])
    if len(sys.argv) > 1 and sys.argv[1] == "raw":
        return raw(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    if len(sys.argv) > 1 and sys.argv[1] == "raw-server":
        return raw_server(sys.argv[2], int(sys.argv[3]))
    if len(sys.argv) > 1 and sys.argv[1] == "bare-grpc":
        return bare_grpc(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    if len(sys.argv) > 1 and sys.argv[1] == "bare-grpc-server":
        return bare_grpc_server(sys.argv[2], sys.argv[3])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wan", type=Path, help="the folder of the tools that shape a link")
    parser.add_argument("--congestion", default="bbr,reno", help="congestion controls to try on the shaped link")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    local = loopback(asked.rounds, asked.repeats)
    far = []
    for congestion in asked.congestion.split(",") if asked.wan is not None else []:
        far += shaped(asked.wan, max(40, asked.rounds // 5), congestion)
    if asked.json:
        print(json.dumps({"loopback": asdict(local), "shaped": [asdict(line) for line in far]}, indent=2))
    else:
        show(local, far)
    return None


def show(local: Loopback, far: list[Shaped]) -> None:
    print("a round of 16 KB up and 16 KB down on loopback, median ms (bar: 1.2 ms)")
    print(f"  thinwire, gRPC and mutual TLS, two processes  {local.thinwire_ms:.2f}")
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
    main()
