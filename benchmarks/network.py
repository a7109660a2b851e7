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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any

import thinwire as tw
from thinwire.bench.network import WIDTH, Loopback, loopback, parties, simulated_ms, write_job
from thinwire.bench.raw_tcp import free_port, raw_tcp_ms, round_ms
from thinwire.process import configure_grpc, share_memory_pool
from thinwire.transport.authority import issue

MBIT, ROUND_TRIP_MS = 300.0, 20.0
BODIES = (16, 64, 256, 1024)  # KB each way


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
    print(json.dumps(round_ms(times)))


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


def local_rounds(rounds: int, repeats: int) -> Local:
    found: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        issue(Path(folder), ["bank", "shop"])
        for _ in range(repeats):
            found.append((*astuple(loopback(rounds)), grpc_echo(Path(folder), 16 << 10, rounds)))
    return Local(*(statistics.median(column) for column in zip(*found, strict=True)))


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
    local = local_rounds(asked.rounds, asked.repeats)
    far = []
    for congestion in asked.congestion.split(",") if asked.wan is not None else []:
        far += shaped(asked.wan, max(40, asked.rounds // 5), congestion)
    if asked.json:
        print(json.dumps({"loopback": asdict(local), "shaped": [asdict(line) for line in far]}, indent=2))
    else:
        show(local, far)
    return None


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
    main()
