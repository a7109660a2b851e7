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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

from benchmarks.results import Row, compare, measure_in_turns
from thinwire.base.process import share_memory_pool
from thinwire.engine.methods import svfl
from thinwire.engine.models import SGD, ResNet18
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.job.job import Job
from thinwire.training.train import train

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Case:
    """A network split between parties, and how long to run it. Data is random: time does not depend on it."""

    name: str
    features: list[Tensor]
    labels: Tensor
    build: Callable[[], tuple[list[nn.Module], nn.Module]]
    batch_size: int | None
    rounds: int


@dataclass(frozen=True)
class Line:
    """One case, measured."""

    case: str
    limit: str
    plain_ms: float  # a round
    engine_ms: float
    ratio: float
    extra_ms: float  # engine less plain, a round


def rows() -> list[Row]:
    torch.set_num_threads(1)
    found = []
    for name, case, repeats in (("full batch", full_batch(), 5), ("resnet18", resnets(4), 3)):
        pair = measure_in_turns(lambda case=case: engine_ms(case), lambda case=case: plain_ms(case), repeats)  # type: ignore[misc]
        found.append(pair.row(name, f"a simulated round, {case.name}", "plain torch", "ms"))
    return found


def memory_rows() -> list[Row]:
    name, help = "peak", "a process that simulates a run, MNIST network, full batch"
    if not _STATUS.exists():
        return [Row(name, help, "plain torch", "MiB", note="read from /proc, which this system does not have")]
    ours, other = peak_mib("engine"), peak_mib("plain")
    return [compare(ours, other).row(name, help, "plain torch", "MiB")]


def small() -> Case:
    """16 KB each way."""

    def build() -> tuple[list[nn.Module], nn.Module]:
        return [nn.Linear(64, 64)], nn.Linear(64, 10)

    rng = torch.Generator().manual_seed(0)
    features, labels = torch.rand(6400, 64, generator=rng), torch.randint(0, 10, (6400,), generator=rng)
    return Case("1 party, 64 x 64 floats", [features], labels, build, 64, 400)


def full_batch(rounds: int = 12) -> Case:
    """The EF-VFL paper's network on as many rows as MNIST has."""

    def build() -> tuple[list[nn.Module], nn.Module]:
        bottoms: list[nn.Module] = [nn.Sequential(nn.Linear(196, 16, bias=False), nn.Sigmoid()) for _ in range(4)]
        return bottoms, nn.Linear(16, 10, bias=False)

    rng = torch.Generator().manual_seed(0)
    features = [torch.rand(60000, 196, generator=rng) for _ in range(4)]
    labels = torch.randint(0, 10, (60000,), generator=rng)
    return Case("MNIST network, full batch", features, labels, build, None, rounds)


def resnets(rounds: int = 6) -> Case:
    def build() -> tuple[list[nn.Module], nn.Module]:
        return [ResNet18(3, 32, base_width=16) for _ in range(4)], nn.Linear(32, 10)

    rng = torch.Generator().manual_seed(0)
    features = [torch.rand(256, 3, 16, 16, generator=rng) for _ in range(4)]
    labels = torch.randint(0, 10, (256,), generator=rng)
    return Case("resnet18 width 16, quadrants", features, labels, build, 128, rounds)


def parties_case(parties: int) -> Case:
    """100,000 rows, two columns a party, batches of 2,000."""
    rng = torch.Generator().manual_seed(0)

    def build() -> tuple[list[nn.Module], nn.Module]:
        return [nn.Linear(2, 8) for _ in range(parties)], nn.Linear(8, 2)

    features = [torch.randn(100_000, 2, generator=rng) for _ in range(parties)]
    labels = torch.randint(0, 2, (100_000,), generator=rng)
    return Case(f"{parties} parties", features, labels, build, 2000, 50)


def plain_ms(case: Case) -> float:
    """A median round in one loop, the same arithmetic; the first one is left out."""
    torch.manual_seed(0)
    bottoms, top = case.build()
    optimizer = torch.optim.SGD([p for module in (*bottoms, top) for p in module.parameters()], lr=0.1)
    size = case.batch_size or len(case.labels)
    marks = []
    for t in range(case.rounds):
        first = t * size % len(case.labels)
        rows: Any = slice(None) if case.batch_size is None else torch.arange(first, first + size)
        total = bottoms[0](case.features[0][rows])
        for module, x in zip(bottoms[1:], case.features[1:], strict=True):
            total = total + module(x[rows])
        cross_entropy(top(total), case.labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        marks.append(perf_counter())
    return _median_ms(marks)


def engine_ms(case: Case) -> float:
    """A median round of svfl between simulated parties; the first one is left out."""
    torch.manual_seed(0)
    bottoms, top = case.build()
    per_epoch = -(-len(case.labels) // (case.batch_size or len(case.labels)))
    job = Job(
        [FeatureParty(f"p{k}", x, bottoms[k]) for k, x in enumerate(case.features)],
        LabelParty("labels", case.labels, top),
        svfl(),
        optimizer=SGD(lr=0.1),
        batch_size=case.batch_size,
        epochs=case.rounds / per_epoch,
        eval_every=10**6,
        diagnostics=False,
        metrics=[],
    )
    marks: list[float] = []
    train(job, callbacks=[], on_round=lambda _: marks.append(perf_counter()))
    return _median_ms(marks)


def _median_ms(marks: list[float]) -> float:
    """Not the mean: a round that the machine disturbs says nothing of the others."""
    return 1e3 * statistics.median(later - sooner for sooner, later in pairwise(marks))


def measure(case: Case, limit: str, repeats: int) -> Line:
    plain_ms(case), engine_ms(case)
    pairs = [(plain_ms(case), engine_ms(case)) for _ in range(repeats)]
    plain = statistics.median(plain for plain, _ in pairs)
    ratio = statistics.median(engine / plain for plain, engine in pairs)
    extra = statistics.median(engine - plain for plain, engine in pairs)
    return Line(case.name, limit, plain, plain + extra, ratio, extra)


def growth(repeats: int) -> dict[str, Any]:
    """Milliseconds a round by the number of parties, and the exponent that fits."""
    counts = (4, 8, 16, 32)
    rounds = {n: min(engine_ms(parties_case(n)) for _ in range(repeats)) for n in counts}
    logs = [(log(n), log(ms)) for n, ms in rounds.items()]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*logs, strict=True))
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    return {"ms_a_round": {str(n): ms for n, ms in rounds.items()}, "exponent": slope}


def peak_mib(which: str, rounds: int = 4) -> float:
    """The peak memory of a process that runs the MNIST network by this loop alone."""
    command = [sys.executable, __file__, "--memory-of", which, str(rounds)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def print_own_peak(which: str, rounds: int) -> None:
    """Not by getrusage: a child starts with its parent's peak."""
    (plain_ms if which == "plain" else engine_ms)(full_batch(rounds))
    lines = _STATUS.read_text().splitlines()
    print(next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of plain loop and engine a case (7)")
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory_of:
        print_own_peak(arguments.memory_of[0], int(arguments.memory_of[1]))
        return
    cases = {"1 ms extra": small(), "1.20x": full_batch(24), "1.05x or 20 ms extra": resnets()}
    lines = [measure(case, limit, arguments.repeats) for limit, case in cases.items()]
    memory = {which: peak_mib(which, 24) for which in ("plain", "engine")}
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
