"""A ping-pong of bytes between two processes: the least that a round could cost.

Over a plain socket, and over a bare gRPC stream with mutual TLS, which nobody who speaks gRPC can do without.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean, median
from time import perf_counter
from typing import Any

from thinwire.base.process import configure_grpc

__all__ = ["bare_grpc_ms", "free_port", "raw_tcp_ms", "round_ms"]

_WARM_UP = 5  # rounds


def raw_tcp_ms(address: str, size: int, rounds: int, spaces: tuple[list[str], list[str]] = ([], [])) -> float:
    """The median round of `size` bytes there and as many back; `spaces` begin the two processes' commands."""
    command = [sys.executable, __file__]
    arguments = [address, str(size), str(rounds)]
    with subprocess.Popen([*spaces[0], *command, "tcp-server", *arguments], stdout=subprocess.PIPE) as server:
        if server.stdout is not None:
            server.stdout.readline()
        client = [*spaces[1], *command, "tcp-client", *arguments]
        shown = subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout
    return float(json.loads(shown)["median_ms"])


def bare_grpc_ms(certs: Path, size: int, rounds: int) -> float:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, __file__, "grpc-server", address, str(certs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        if server.stdout is not None:
            server.stdout.readline()
        client = [sys.executable, __file__, "grpc-client", address, str(certs), str(size), str(rounds)]
        measured = json.loads(subprocess.run(client, stdout=subprocess.PIPE, check=True).stdout)
    return float(measured["median_ms"])


def round_ms(times: Sequence[float]) -> dict[str, float]:
    """The median and mean time between these moments, the first ones left out."""
    steps = [1e3 * (after - before) for before, after in pairwise(times)][_WARM_UP:]
    return {"median_ms": median(steps), "mean_ms": fmean(steps)}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _tcp_client(address: tuple[str, int], size: int, rounds: int) -> None:
    with socket.create_connection(address) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = [perf_counter()]
        for _ in range(rounds):
            line.sendall(bytes(size))
            _exactly(line, size)
            times.append(perf_counter())
    print(json.dumps(round_ms(times)))


def _tcp_server(address: tuple[str, int], size: int, _: int) -> None:
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


def _grpc_client(address: str, certs: str, size: int, rounds: int) -> None:
    """Sends `size` bytes on one long stream and waits for as many."""
    from thinwire.net.grpc.client import OPTIONS, grpc

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


def _grpc_server(address: str, certs: str) -> None:
    """Sends back what comes, until its standard input ends."""
    from thinwire.net.grpc.client import OPTIONS, grpc

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


def _main(role: str, address: str, *rest: str) -> None:
    host, _, port = address.rpartition(":")
    if role == "grpc-server":
        _grpc_server(address, rest[0])
    elif role == "grpc-client":
        _grpc_client(address, rest[0], int(rest[1]), int(rest[2]))
    else:
        work = _tcp_server if role == "tcp-server" else _tcp_client
        work((host, int(port)), int(rest[0]), int(rest[1]))


if __name__ == "__main__":
    configure_grpc()
    _main(*sys.argv[1:])
