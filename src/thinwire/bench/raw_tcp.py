"""A ping-pong of bytes over a plain socket between two processes: the least that a round could cost.

python -m thinwire.bench.raw_tcp server|client HOST:PORT BYTES ROUNDS
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter

__all__ = ["free_port", "raw_tcp_ms", "round_ms"]

_WARM_UP = 5  # rounds


def raw_tcp_ms(address: str, size: int, rounds: int, spaces: tuple[list[str], list[str]] = ([], [])) -> float:
    """The median round of `size` bytes there and as many back; `spaces` begin the two processes' commands."""
    command = [sys.executable, "-m", "thinwire.bench.raw_tcp"]
    arguments = [address, str(size), str(rounds)]
    with subprocess.Popen([*spaces[0], *command, "server", *arguments], stdout=subprocess.PIPE) as server:  # noqa: S603
        if server.stdout is not None:
            server.stdout.readline()
        client = [*spaces[1], *command, "client", *arguments]
        shown = subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout  # noqa: S603
    return float(json.loads(shown)["median_ms"])


def round_ms(times: Sequence[float]) -> dict[str, float]:
    """The median and mean time between these moments, the first ones left out."""
    steps = [1e3 * (after - before) for before, after in pairwise(times)][_WARM_UP:]
    return {"median_ms": median(steps), "mean_ms": fmean(steps)}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _client(address: tuple[str, int], size: int, rounds: int) -> None:
    with socket.create_connection(address) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = [perf_counter()]
        for _ in range(rounds):
            line.sendall(bytes(size))
            _exactly(line, size)
            times.append(perf_counter())
    print(json.dumps(round_ms(times)))


def _server(address: tuple[str, int], size: int, _: int) -> None:
    with socket.create_server(address) as listening:
        print("READY", flush=True)
        line, _peer = listening.accept()
        with line:
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


if __name__ == "__main__":
    host, _, port = sys.argv[2].rpartition(":")
    work = _server if sys.argv[1] == "server" else _client
    work((host, int(port)), int(sys.argv[3]), int(sys.argv[4]))
