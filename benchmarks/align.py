"""What an alignment costs: two parties, each a process of its own, over TCP on this machine.

    python benchmarks/align.py [--ids 100000] [--workers 1] [--repeats 1] [--json] [--openmined-python PATH]

Both parties have so many ids, half of them in common. Wall and CPU seconds run from two lists of text to both
parties' rows; CPU seconds and peak memory are the two processes' together. With --openmined-python the same lists
go through openmined-psi in the same run, also as two processes over TCP, with its setup and its request computed at
the same time; only its client learns the intersection. It pins protobuf, so it needs an environment of its own:

    python -m venv openmined && openmined/bin/pip install openmined-psi
    python benchmarks/align.py --openmined-python openmined/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

from thinwire.bench.psi import Cost, cost_of, openmined_command, our_command


def _shown(name: str, cost: Cost, ids: int) -> str:
    return (
        f"{name:14} {cost.wall_seconds:8.1f} s wall {cost.cpu_seconds:8.1f} s CPU {cost.bytes / 2**20:8.1f} MiB "
        f"{cost.bytes / ids:6.1f} bytes an id {cost.peak_mb:7.0f} MB peak {cost.common:9} in common "
        f"{cost.others_cpu_seconds:7.1f} s CPU by others"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1, help="of each party")
    parser.add_argument("--openmined-python", help="a Python that has openmined-psi")
    parser.add_argument("--repeats", type=int, default=1, help="of both in turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    commands = {"thinwire": our_command()}
    if options.openmined_python:
        commands["openmined-psi"] = openmined_command(options.openmined_python)
    load = os.getloadavg()[0]
    runs = [
        {name: cost_of(command, options.ids, options.workers) for name, command in commands.items()}
        for _ in range(options.repeats)
    ]
    ratios = {
        field: median(getattr(run["openmined-psi"], field) / getattr(run["thinwire"], field) for run in runs)
        for field in ("wall_seconds", "cpu_seconds", "bytes")
        if len(commands) == 2
    }
    if options.json:
        shown = [{name: asdict(cost) for name, cost in run.items()} for run in runs]
        print(json.dumps({"ids": options.ids, "load_before": load, "runs": shown, "openmined_over_thinwire": ratios}))
        return
    print(f"{options.ids} x {options.ids} ids, half in common; load before: {load:.1f} on {os.cpu_count()} cores")
    for run in runs:
        for name, cost in run.items():
            print(_shown(name, cost, options.ids))
    if ratios:
        shares = ", ".join(f"{ratio:.2f} ({field})" for field, ratio in ratios.items())
        print(f"openmined-psi over thinwire, median of ratios: {shares}")


if __name__ == "__main__":
    main()
