"""What the engine costs on top of the models: simulated split learning against plain torch, in one run.

    OMP_NUM_THREADS=1 python benchmarks/round.py [--json] [--repeats 7]

Engine and plain loop alternate; the median of the ratios counts. Data is random: time does not depend on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from math import log
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from thinwire.bench.engine import Case, engine_ms, full_batch, plain_ms, resnets
from thinwire.process import share_memory_pool


@dataclass(frozen=True)
class Line:
    """One case, measured."""

    case: str
    limit: str
    plain_ms: float  # a round
    engine_ms: float
    ratio: float
    extra_ms: float  # engine less plain, a round


def small() -> Case:
    """16 KB each way."""

    def build() -> tuple[list[nn.Module], nn.Module]:
        return [nn.Linear(64, 64)], nn.Linear(64, 10)

    rng = torch.Generator().manual_seed(0)
    features, labels = torch.rand(6400, 64, generator=rng), torch.randint(0, 10, (6400,), generator=rng)
    return Case("1 party, 64 x 64 floats", [features], labels, build, 64, 400)


def measured(case: Case, limit: str, repeats: int) -> Line:
    plain_ms(case), engine_ms(case)
    pairs = [(plain_ms(case), engine_ms(case)) for _ in range(repeats)]
    plain = statistics.median(plain for plain, _ in pairs)
    ratio = statistics.median(engine / plain for plain, engine in pairs)
    extra = statistics.median(engine - plain for plain, engine in pairs)
    return Line(case.name, limit, plain, plain + extra, ratio, extra)


def parties_case(parties: int) -> Case:
    """100,000 rows, two columns a party, batches of 2,000."""
    rng = torch.Generator().manual_seed(0)

    def build() -> tuple[list[nn.Module], nn.Module]:
        return [nn.Linear(2, 8) for _ in range(parties)], nn.Linear(8, 2)

    features = [torch.randn(100_000, 2, generator=rng) for _ in range(parties)]
    labels = torch.randint(0, 2, (100_000,), generator=rng)
    return Case(f"{parties} parties", features, labels, build, 2000, 50)


def growth(repeats: int) -> dict[str, Any]:
    """Milliseconds a round by the number of parties, and the exponent that fits."""
    counts = (4, 8, 16, 32)
    rounds = {n: min(engine_ms(parties_case(n)) for _ in range(repeats)) for n in counts}
    logs = [(log(n), log(ms)) for n, ms in rounds.items()]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*logs, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    return {"ms_a_round": {str(n): ms for n, ms in rounds.items()}, "exponent": slope}


def peak_mib(which: str) -> float:
    """The peak memory of a process that runs the MNIST network by this loop alone."""
    command = [sys.executable, __file__, "--memory-of", which]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of plain loop and engine a case (7)")
    parser.add_argument("--memory-of", choices=["plain", "engine"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of:
        (plain_ms if arguments.memory_of == "plain" else engine_ms)(full_batch(24))
        # Not getrusage: a child starts with its parent's peak.
        status = Path("/proc/self/status").read_text()
        print(next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")))
        return
    cases = {"1 ms extra": small(), "1.20x": full_batch(24), "1.05x or 20 ms extra": resnets()}
    lines = [measured(case, limit, arguments.repeats) for limit, case in cases.items()]
    memory = {which: peak_mib(which) for which in ("plain", "engine")}
    grown = growth(3)
    if arguments.json:
        print(json.dumps({"lines": [asdict(line) for line in lines], "peak_memory_mib": memory, "parties": grown}))
        return
    table = Table("case", "limit", title="A round of split learning: engine against a plain torch loop, one thread")
    for heading in ("plain ms", "engine ms", "ratio", "extra ms"):
        table.add_column(heading, justify="right")
    for line in lines:
        figures = (f"{line.plain_ms:.2f}", f"{line.engine_ms:.2f}", f"{line.ratio:.2f}x", f"{line.extra_ms:.2f}")
        table.add_row(line.case, line.limit, *figures)
    console = Console(width=120)
    console.print(table)
    ratio = memory["engine"] / memory["plain"]
    console.print(
        f"peak memory, MNIST network: plain {memory['plain']:.0f} MiB, engine {memory['engine']:.0f}: {ratio:.2f}x"
    )
    shown = ", ".join(f"{n}: {ms:.1f} ms" for n, ms in grown["ms_a_round"].items())
    console.print(f"a round by the number of parties, 100,000 rows: {shown}; exponent {grown['exponent']:.2f}")


if __name__ == "__main__":
    share_memory_pool()
    main()
