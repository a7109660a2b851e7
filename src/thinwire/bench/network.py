"""What a round costs between real processes: gRPC and mutual TLS, against a raw socket on loopback.

python -m thinwire.bench.network JOB.toml PARTY FOLDER      one party, as the measurement starts it
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from thinwire.bench.raw_tcp import free_port, raw_tcp_ms, round_ms
from thinwire.bench.rows import Row, middle, pair

__all__ = ["WIDTH", "Loopback", "loopback", "parties", "rows", "simulated_ms", "write_job"]

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


def rows() -> list[Row]:
    """Against the socket alone, and against the socket and the same rounds in one process together."""
    runs = [loopback(_ROUNDS) for _ in range(_REPEATS)]
    help = "a round between two processes, gRPC and mutual TLS"
    whole = [pair(one.thinwire_ms, one.raw_tcp_ms) for one in runs]
    apart = [pair(one.thinwire_ms, one.raw_tcp_ms + one.simulated_ms) for one in runs]
    ahead = [pair(one.ahead_ms, one.raw_tcp_ms + one.simulated_ms) for one in runs]
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
    from thinwire.transport.authority import issue

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
    command = [sys.executable, "-m", "thinwire.bench.network", str(job)]
    shop_command = [*spaces[0], *command, "shop", str(job.parent / "run-shop")]
    bank_command = [*spaces[1], *command, "bank", str(job.parent / "run-bank")]
    with subprocess.Popen(shop_command, stdout=subprocess.PIPE) as shop:  # noqa: S603
        bank = subprocess.run(bank_command, stdout=subprocess.PIPE, check=True)  # noqa: S603
        theirs = json.loads(shop.communicate(timeout=60)[0])
    measured: dict[str, Any] = json.loads(bank.stdout)
    return {**measured, "compute_ms": measured["compute_ms"] + theirs["compute_ms"]}


def simulated_ms(job: Path, link: Any = None) -> tuple[float, float]:
    """The median round in one process; and by the link's clock, where there is one."""
    from thinwire.job import train
    from thinwire.job.job_loader import load_job

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
    from thinwire.network.party_run import Audience
    from thinwire.network.starting import party_run

    times: list[float] = []
    audience = Audience(lambda _: None, lambda _: None, lambda _: times.append(perf_counter()))
    run = party_run(read_party_view(job, name), Path(out), audience)
    computing = _Computing(run.channel)
    run.channel = computing  # type: ignore[assignment]
    outcome = run.execute()
    print(json.dumps({**round_ms(times), "compute_ms": computing.median_ms(), "summary": outcome.summary}))


if __name__ == "__main__":
    _party(*sys.argv[1:4])
