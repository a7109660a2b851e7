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
from math import log
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import thinwire as tw
from thinwire.models import ResNet18


@dataclass(frozen=True)
class Case:
    """A network split between parties, and how long to run it."""

    name: str
    features: list[Tensor]
    labels: Tensor
    build: Callable[[], tuple[list[nn.Module], nn.Module]]
    batch_size: int | None
    rounds: int
    limit: str


@dataclass(frozen=True)
class Line:
    """One case, measured."""

    case: str
    limit: str
    plain_ms: float  # a round
    engine_ms: float
    ratio: float
    extra_ms: float  # engine less plain, a round


def cases() -> list[Case]:
    rng = torch.Generator().manual_seed(0)

    def floats(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng)

    def classes(rows: int) -> Tensor:
        return torch.randint(0, 10, (rows,), generator=rng)

    def small() -> tuple[list[nn.Module], nn.Module]:
        return [nn.Linear(64, 64)], nn.Linear(64, 10)

    def mnist() -> tuple[list[nn.Module], nn.Module]:
        bottoms: list[nn.Module] = [nn.Sequential(nn.Linear(196, 16, bias=False), nn.Sigmoid()) for _ in range(4)]
        return bottoms, nn.Linear(16, 10, bias=False)

    def resnets() -> tuple[list[nn.Module], nn.Module]:
        return [ResNet18(3, 32, base_width=16) for _ in range(4)], nn.Linear(32, 10)

    return [
        Case("1 party, 64 x 64 floats", [floats(6400, 64)], classes(6400), small, 64, 400, "1 ms extra"),
        Case(
            "MNIST network, full batch",
            [floats(60000, 196) for _ in range(4)],
            classes(60000),
            mnist,
            None,
            24,
            "1.20x",
        ),
        Case(
            "resnet18 width 16, quadrants",
            [floats(256, 3, 16, 16) for _ in range(4)],
            classes(256),
            resnets,
            128,
            6,
            "1.05x or 20 ms extra",
        ),
    ]


def plain_ms(case: Case) -> float:
    """One process, one loop, the same arithmetic."""
    torch.manual_seed(0)
    bottoms, top = case.build()
    parameters = [p for module in (*bottoms, top) for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    size = case.batch_size or len(case.labels)
    start = perf_counter()
    for t in range(case.rounds):
        first = t * size % len(case.labels)
        rows: Any = slice(None) if case.batch_size is None else torch.arange(first, first + size)
        total = bottoms[0](case.features[0][rows])
        for module, x in zip(bottoms[1:], case.features[1:], strict=True):
            total = total + module(x[rows])
        cross_entropy(top(total), case.labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (perf_counter() - start) / case.rounds * 1e3


def engine_ms(case: Case) -> float:
    torch.manual_seed(0)
    bottoms, top = case.build()
    per_epoch = len(case.labels) // (case.batch_size or len(case.labels))
    marks: list[float] = []
    job = tw.Job(
        [tw.FeatureParty(f"p{k}", x, bottoms[k]) for k, x in enumerate(case.features)],
        tw.LabelParty("labels", case.labels, top),
        tw.methods.svfl(),
        optimizer=tw.SGD(lr=0.1),
        batch_size=case.batch_size,
        epochs=case.rounds / per_epoch,
        eval_every=10**6,
        diagnostics=False,
        metrics=[],
    )
    looked: list[float] = []

    def mark(_: dict[str, Any]) -> None:
        marks.append(perf_counter())

    from thinwire.job.simulated import SimulatedParties

    look = SimulatedParties.training_outputs

    def timed_look(self: SimulatedParties) -> Tensor:
        start = perf_counter()
        outputs = look(self)
        looked.append(perf_counter() - start)
        return outputs

    SimulatedParties.training_outputs = timed_look  # type: ignore[method-assign]
    try:
        tw.train(job, [mark])
    finally:
        SimulatedParties.training_outputs = look  # type: ignore[method-assign]
    return (marks[1] - marks[0] - looked[1]) / case.rounds * 1e3


def measured(case: Case, repeats: int) -> Line:
    plain_ms(case), engine_ms(case)
    pairs = [(plain_ms(case), engine_ms(case)) for _ in range(repeats)]
    plain = statistics.median(plain for plain, _ in pairs)
    ratio = statistics.median(engine / plain for plain, engine in pairs)
    extra = statistics.median(engine - plain for plain, engine in pairs)
    return Line(case.name, case.limit, plain, plain + extra, ratio, extra)


def parties_case(parties: int) -> Case:
    """100,000 rows, two columns a party, batches of 2,000."""
    rng = torch.Generator().manual_seed(0)

    def build() -> tuple[list[nn.Module], nn.Module]:
        return [nn.Linear(2, 8) for _ in range(parties)], nn.Linear(8, 2)

    features = [torch.randn(100_000, 2, generator=rng) for _ in range(parties)]
    labels = torch.randint(0, 2, (100_000,), generator=rng)
    return Case(f"{parties} parties", features, labels, build, 2000, 50, "")


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
        (plain_ms if arguments.memory_of == "plain" else engine_ms)(cases()[1])
        # Not getrusage: a child starts with its parent's peak.
        status = Path("/proc/self/status").read_text()
        print(next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM")))
        return
    lines = [measured(case, arguments.repeats) for case in cases()]
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
    main()
