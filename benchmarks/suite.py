"""Measure thinwire against plain torch, raw TCP, the entropy, svfl and others: ratios, about three minutes.

    python benchmarks/suite.py [--only engine,memory] [--out DIR] [--json] [--openmined-python PATH]

Every row is a ratio of two things measured in the same run, thinwire's over the other. Each benchmark runs in a
process of its own with one thread, so that none disturbs another.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

from benchmarks.ratio_bars import Ratio, ratio_bars
from benchmarks.results import Results, Row, read_results, write_results
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.format import did_you_mean, format_bytes
from thinwire.base.process import configure_grpc, environment, share_memory_pool
from thinwire.report.rendering import jinja_environment, render_page

__all__ = ["BENCHMARKS", "Benchmark", "BenchmarkFailed", "main", "measure"]


class BenchmarkFailed(ThinwireError):
    """A measurement ended without a result."""


@dataclass(frozen=True)
class Benchmark:
    """Some rows that are measured together, by a function of a module beside this one."""

    module: str
    help: str
    function: str = "rows"

    def rows(self, arguments: Sequence[str]) -> list[Row]:
        found: list[Row] = getattr(import_module(f"benchmarks.{self.module}"), self.function)(*arguments)
        return found


BENCHMARKS = {
    "startup": Benchmark("startup", "importing thinwire, and its help, against a bare Python"),
    "entropy": Benchmark("codec", "bytes on the wire against the entropy of what they say"),
    "engine": Benchmark("round", "a simulated round against a plain torch loop over the same network"),
    "memory": Benchmark("round", "the peak memory of a simulated run against that loop", "memory_rows"),
    "network": Benchmark("network", "a round between two processes over gRPC and mutual TLS, against raw TCP"),
    "methods": Benchmark("methods", "bytes to 94 % of handwritten digits, every method against svfl"),
    "psi": Benchmark("align", "private set intersection against openmined-psi"),
}


def child_environment() -> dict[str, str]:
    """One thread: two of them on two busy cores measure each other."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def measure(name: str, arguments: Sequence[str] = ()) -> list[Row]:
    """The rows of one benchmark, from a process of its own."""
    command = [sys.executable, __file__, "--rows-of", name, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=child_environment())
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise BenchmarkFailed(f"{name}: {last[0]}")
    return [Row(**row) for row in json.loads(ended.stdout)]


def measure_all(names: Sequence[str], openmined_python: Path | None) -> tuple[dict[str, list[Row]], list[str]]:
    """Rows by benchmark, and what went wrong."""
    console = Console(stderr=True)
    found: dict[str, list[Row]] = {}
    failures = []
    for number, name in enumerate(names, start=1):
        place, began = f"{number}/{len(names)} {name}", perf_counter()
        arguments = [str(openmined_python)] if name == "psi" and openmined_python is not None else []
        with console.status(f"{place}: {BENCHMARKS[name].help}"):
            try:
                found[name] = measure(name, arguments)
                ended = f"{perf_counter() - began:.0f} s"
            except BenchmarkFailed as error:
                failures.append(str(error))
                ended = "failed"
        console.print(f"{place}: {ended}", markup=False, highlight=False, soft_wrap=True)
    return found, failures


# What a person looks at ---------------------------------------------------------------------------------------------


def print_table(found: Mapping[str, Sequence[Row]], last: Results, out: Path | None) -> None:
    table = Table(title="thinwire over its baseline; less is better", box=SIMPLE_HEAD)
    table.add_column("what, and against what", ratio=1)
    for heading in ("ours", "other", "ratio", *(["last"] if last.rows else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, rows in found.items():
        for row in rows:
            before = [_format_ratio(last.ratio(name, row.name))] if last.rows else []
            figures = _format(row.ours, row.unit), _format(row.other, row.unit), _format_ratio(row.ratio)
            table.add_row(f"[bold]{escape(f'{name}: {row.name}')}[/]\n{escape(row.words)}", *figures, *before)
    console = Console()
    console.print(table)
    if out is not None:
        console.print(f"kept: {out}/bench.json, {out}/bench.html", highlight=False, soft_wrap=True)


def draw_ratios(now: Results, last: Results) -> str:
    """Bars from 1, where thinwire equals its baseline: to the left less, to the right more."""
    bars = [
        Ratio(f"{name}: {row.name}", row.ratio, last.ratio(name, row.name))
        for name, rows in now.rows.items()
        for row in rows
        if row.ratio
    ]
    return ratio_bars("thinwire over its baseline; less is better", bars)


def render_results(now: Results, last: Results) -> str:
    """One HTML file that needs nothing else: a chart of the ratios, and the table."""
    template = jinja_environment().from_string(Path(__file__).with_name("suite.html").read_text(encoding="utf-8"))
    table = [_line(name, row, now, last) for name, rows in now.rows.items() for row in rows]
    values = {"chart": draw_ratios(now, last), "rows": table, "environment": environment()}
    return render_page(template, "thinwire: benchmark suite", values)


def _line(name: str, row: Row, now: Results, last: Results) -> list[str]:
    figures = _format(row.ours, row.unit), _format(row.other, row.unit)
    ratios = _format_ratio(row.ratio), _format_ratio(last.ratio(name, row.name))
    return [f"{name}: {row.name}", row.words, *figures, *ratios, now.made.get(name, "")[:10]]


def _format(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    number = f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return format_bytes(value) if unit == "bytes" else f"{number} {unit}"


def _format_ratio(value: float | None) -> str:
    """Three digits; near 1, three of what is beyond it."""
    if value is None:
        return "-"
    return f"{value:.4f}x" if abs(value - 1) < 0.05 else f"{value:.3g}x"


# The command --------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", metavar="NAME", action="append", default=[], help=f"run only these: {', '.join(BENCHMARKS)}"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="keep bench.json and bench.html there, and compare with the last run"
    )
    parser.add_argument(
        "--openmined-python", metavar="PATH", type=Path, help="a Python that has openmined-psi, for the rows of psi"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    parser.add_argument("--rows-of", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.rows_of:
        configure_grpc()
        share_memory_pool()
        print(json.dumps([asdict(row) for row in BENCHMARKS[asked.rows_of[0]].rows(asked.rows_of[1:])]))
        return 0
    try:
        names, last = _check(asked)
    except BadInput as error:
        parser.error(str(error))
    return _run(asked, names, last)


def _check(asked: argparse.Namespace) -> tuple[list[str], Results]:
    """The benchmarks to run, and the results of the last run."""
    only = [name.strip().lower() for text in asked.only for name in text.split(",")]
    for name in only:
        if name not in BENCHMARKS:
            raise BadInput(f"--only: {name!r} is not one of {', '.join(BENCHMARKS)}{did_you_mean(name, BENCHMARKS)}")
    if asked.openmined_python is not None and not asked.openmined_python.exists():
        raise BadInput(f"--openmined-python {asked.openmined_python}: the file does not exist")
    if asked.out is not None and asked.out.exists() and not asked.out.is_dir():
        raise BadInput(f"--out {asked.out}: a file; give a folder")
    last = Results() if asked.out is None else read_results(asked.out)
    return [name for name in BENCHMARKS if not only or name in only], last


def _run(asked: argparse.Namespace, names: Sequence[str], last: Results) -> int:
    found, failures = measure_all(names, asked.openmined_python)
    now = last.update(found)
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        write_results(asked.out, now)
        (asked.out / "bench.html").write_text(render_results(now, last), encoding="utf-8")
    if asked.json:
        described = now.to_json()
        fresh = {name: described["benches"][name] for name in found}
        before = {name: {row.name: last.ratio(name, row.name) for row in rows} for name, rows in found.items()}
        folder = None if asked.out is None else str(asked.out)
        print(json.dumps({**described, "benches": fresh, "last": before, "failed": failures, "out": folder}))
    else:
        print_table(found, last, asked.out)
    for failure in failures:
        print(f"suite: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
