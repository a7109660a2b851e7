"""How time, bytes and memory grow with rows N, parties K, width E, batch B and workset W, with fitted exponents.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--json] [--axis N]
    OMP_NUM_THREADS=1 python benchmarks/growth.py --rows 10000000 [--scratch FOLDER] [--memory-limit-mb 256]

The method has everything that can grow: error feedback, compressed both ways, and cached steps. One axis moves at a
time, each point in a process of its own. Time is the process's CPU time for a round, the median of the rounds;
bytes are a round's frames; memory is the peak above what the process held before training began, data included.
The exponent is the slope of a least-squares line through the logarithms: 0 does not grow, 1 grows in proportion.

With --rows, one run out of core instead: as many rows, one feature party, 64 values per row at each of its two ends.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from math import log
from pathlib import Path
from time import perf_counter, process_time

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import thinwire as tw
from thinwire.base.process import share_memory_pool
from thinwire.engine.methods import thin
from thinwire.engine.schedule import CachedSteps

COLUMNS = 4  # of each party
REUSE = 3  # updates from each exchange


@dataclass(frozen=True)
class Size:
    """One point."""

    rows: int = 100_000
    parties: int = 4
    width: int = 32
    batch: int = 1024
    workset: int = 4

    @property
    def rounds(self) -> int:
        """Until the workset is full, and some more."""
        return self.workset + 24


@dataclass(frozen=True)
class Cost:
    """What it takes."""

    cpu_ms: float  # a round
    kilobytes: float  # a round, both ways
    memory_mb: float  # peak above what was there before training


@dataclass(frozen=True)
class Growth:
    """Along one axis."""

    sizes: tuple[int, ...]
    costs: list[Cost]
    exponents: Cost


AXES: dict[str, tuple[str, tuple[int, ...]]] = {
    "N": ("rows", (25_000, 100_000, 400_000, 1_600_000)),
    "K": ("parties", (4, 8, 16, 32, 64)),
    "E": ("width", (16, 32, 64, 128, 256)),
    "B": ("batch", (256, 1024, 4096, 16_384)),
    "W": ("workset", (4, 16, 64, 256)),
}


def job_of(size: Size, storage: tw.Storage) -> tw.Job:
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    features = [torch.randn(size.rows, COLUMNS, generator=rng) for _ in range(size.parties)]
    recipe = replace(thin(), schedule=CachedSteps(capacity=size.workset, reuse=REUSE))
    return tw.Job(
        [tw.FeatureParty(f"p{k}", x, nn.Linear(COLUMNS, size.width)) for k, x in enumerate(features)],
        tw.LabelParty("labels", (features[0].sum(dim=1) > 0).long(), nn.Linear(size.width, 2)),
        recipe,
        optimizer=tw.SGD(lr=0.01),
        batch_size=size.batch,
        epochs=size.rounds * size.batch / size.rows,
        eval_every=10**9,
        diagnostics=False,
        metrics=[],
        effort="fast",
        storage=storage,
    )


def memory_mb(field: str) -> float:
    """A field of the process's status. Not getrusage: a child starts with its parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


def measured_here(size: Size) -> Cost:
    tw.train(job_of(Size(rows=200, parties=2, width=4, batch=50), tw.Storage()), callbacks=[])  # what loads late
    job = job_of(size, tw.Storage())
    marks: list[float] = []
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    result = tw.train(job, callbacks=[], on_round=lambda _: marks.append(process_time()))
    steps = [later - earlier for earlier, later in pairwise(marks[4:])]
    kilobytes = result.bytes.total / len(marks) / 1e3
    return Cost(1e3 * statistics.median(steps), kilobytes, memory_mb("VmHWM") - before)


def measured(size: Size) -> Cost:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--point", json.dumps(asdict(size))]
    return Cost(**json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def exponent(sizes: tuple[int, ...], costs: list[float]) -> float:
    """The slope of log(cost) over log(size)."""
    points = [(log(size), log(cost)) for size, cost in zip(sizes, costs, strict=True)]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def grown(axis: str) -> Growth:
    field, sizes = AXES[axis]
    costs = [measured(replace(Size(), **{field: size})) for size in sizes]
    columns = zip(*(astuple(cost) for cost in costs), strict=True)
    return Growth(sizes, costs, Cost(*(exponent(sizes, list(column)) for column in columns)))


def out_of_core(rows: int, scratch: Path | None, limit_mb: int) -> dict[str, float]:
    """One epoch of large batches with both surrogates in files; what the process held at most, and since when."""
    storage = tw.Storage(limit_mb << 20, scratch)
    size = Size(rows=rows, parties=1, width=64, batch=8192, workset=16)
    job = replace(job_of(size, storage), epochs=1.0)
    before, began = memory_mb("VmRSS"), perf_counter()
    with tempfile.TemporaryDirectory(dir=scratch) as out:
        result = tw.train(job, callbacks=[], out=Path(out) / "run")
        trained, peak = perf_counter() - began, memory_mb("VmHWM")
        saved = sum(path.stat().st_size for path in Path(out).rglob("*.safetensors")) / 2**20
        began = perf_counter()
        tw.train(replace(job, epochs=1.0 + 10 * size.batch / rows), callbacks=[], out=Path(out) / "run", resume=True)
    return {
        "rows": rows,
        "surrogates_mb": 2 * 4 * rows * size.width / 2**20,
        "limit_mb_each": limit_mb,
        "before_mb": before,  # interpreter, torch and the data
        "peak_mb": peak,
        "checkpoints_mb": saved,
        "peak_with_resume_mb": memory_mb("VmHWM"),
        "seconds": trained,
        "resume_seconds": perf_counter() - began,
        "rounds": result.summary()["rounds"],
    }


def show(found: dict[str, Growth]) -> None:
    base = asdict(Size())
    console = Console(width=118)
    for axis, grew in found.items():
        field = AXES[axis][0]
        others = ", ".join(f"{name} {value:,}" for name, value in base.items() if name != field)
        table = Table(f"{axis}: {field}", title=f"{others}; {REUSE} updates per exchange", title_justify="left")
        for heading in ("CPU ms per round", "KB per round", "MB beside the data"):
            table.add_column(heading, justify="right")
        for size, cost in zip(grew.sizes, grew.costs, strict=True):
            table.add_row(f"{size:,}", *(f"{value:,.1f}" for value in astuple(cost)))
        table.add_row("exponent", *(f"{value:.2f}" for value in astuple(grew.exponents)))
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the tables")
    parser.add_argument("--axis", choices=[*AXES], help="this axis alone")
    parser.add_argument("--rows", type=int, help="one run out of core with this many rows instead")
    parser.add_argument("--scratch", type=Path, help="where its tables lie; a disk's folder")
    parser.add_argument("--memory-limit-mb", type=int, default=256, help="of each of its tables (256 MiB)")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.point:
        print(json.dumps(asdict(measured_here(Size(**json.loads(asked.point))))))
    elif asked.rows:
        print(json.dumps(out_of_core(asked.rows, asked.scratch, asked.memory_limit_mb), indent=2))
    else:
        found = {axis: grown(axis) for axis in ([asked.axis] if asked.axis else AXES)}
        if asked.json:
            print(json.dumps({axis: asdict(grew) for axis, grew in found.items()}, indent=2))
        else:
            show(found)


if __name__ == "__main__":
    share_memory_pool()
    main()
