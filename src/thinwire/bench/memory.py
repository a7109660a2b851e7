"""The peak memory of a process that trains, by the engine or by a plain torch loop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

from thinwire.bench.engine import engine_ms, full_batch, plain_ms
from thinwire.bench.rows import Row, pair

__all__ = ["peak_mib", "rows"]

_STATUS = Path("/proc/self/status")


def rows() -> list[Row]:
    name, help = "peak", "a process that simulates a run, MNIST network, full batch"
    if not _STATUS.exists():
        return [Row(name, help, "plain torch", "MiB", note="read from /proc, which this system does not have")]
    ours, other = peak_mib("engine"), peak_mib("plain")
    return [pair(ours, other).row(name, help, "plain torch", "MiB")]


def peak_mib(which: str) -> float:
    """Of a process of its own that runs this loop alone."""
    command = [sys.executable, "-m", "thinwire.bench.memory", which]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def _own_peak_mib() -> float:
    """Not by getrusage: a child starts with its parent's peak."""
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    (engine_ms if sys.argv[1] == "engine" else plain_ms)(full_batch(4))
    print(_own_peak_mib())
