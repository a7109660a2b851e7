"""What there is to measure. Each is measured in a process of its own with one thread, so that none meets another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.bench.rows import Row
from thinwire.errors import ThinwireError

__all__ = ["BENCHES", "Bench", "BenchFailed", "child_environment", "measured"]


class BenchFailed(ThinwireError):
    """A measurement ended without a result."""


@dataclass(frozen=True)
class Bench:
    """Some rows that are measured together, by `rows()` of the module of this name."""

    name: str
    help: str


BENCHES = {
    bench.name: bench
    for bench in (
        Bench("startup", "importing thinwire, and its help, against a bare Python"),
        Bench("entropy", "bytes on the wire against the entropy of what they say"),
        Bench("engine", "a simulated round against a plain torch loop over the same network"),
        Bench("memory", "the peak memory of a simulated run against that loop"),
        Bench("network", "a round between two processes, gRPC and mutual TLS, against raw TCP on loopback"),
        Bench("methods", "bytes to 94 % of handwritten digits, every method against svfl"),
        Bench("psi", "private set intersection against openmined-psi"),
    )
}


def child_environment() -> dict[str, str]:
    """One thread: two of them on two busy cores measure each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measured(name: str, arguments: Sequence[str] = ()) -> list[Row]:
    """The rows of one bench, from a process of its own."""
    command = [sys.executable, "-m", "thinwire.bench", name, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment())  # noqa: S603
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise BenchFailed(f"{name}: {last[0]}")
    return [Row(**row) for row in json.loads(ended.stdout)]
