"""What a table of many rows costs: made, prepared, trained on for some rounds, scored; each in its own process.

    OMP_NUM_THREADS=1 python benchmarks/tables.py [--rows 1000000 4000000 16000000] [--folder FOLDER] [--json]
    OMP_NUM_THREADS=1 python benchmarks/tables.py --readers

A feature party has 20 columns in a folder of Parquet files: 12 numbers, some with gaps, 6 categories, 2 dates. The
label party has the ids and a label. Time is the process's CPU time and the wall clock's, memory its peak (ru_maxrss).

With --readers: a round's rows drawn at random from a prepared, mapped copy, beside blocks of rows that are read from
a Parquet file and shuffled in a buffer, as `LargeTable.batches` does; rows a CPU second, of a second pass.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from rich.console import Console
from rich.table import Table

SIZES = (1_000_000, 4_000_000, 16_000_000)
FILE_ROWS = 1_000_000
NUMBERS, CATEGORIES, DATES = 12, 6, 2
BATCH, ROUNDS = 8_192, 40
JOB = """
[job]
epochs = {epochs!r}
batch_size = {batch}
metrics = ["auc"]
memory_limit_mb = {limit}
scratch = {scratch}
split = {{ test = 0.1 }}

[recipe]
method = "svfl"

[optimizer]
name = "adam"
lr = 0.003

[[party]]
name = "bank"
features = {{ file = "bank/" }}
ids = {{ file = "bank/", column = "id" }}
prepare = {{ scaling = "quantile", categories = "codes" }}
model = {{ name = "deep_tower", embedding_width = 4, hidden = [32], width = 8 }}

[label_party]
name = "shop"
labels = {{ file = "shop/", column = "bought", task = "binary" }}
ids = {{ file = "shop/", column = "id" }}
top = {{ name = "linear_top" }}
"""


def make_rows(first: int, rows: int) -> tuple[Any, Any]:
    """The feature party's rows from `first` on, and the label party's."""
    rng = np.random.default_rng(first)
    ids, columns = np.arange(first, first + rows), {}
    for k in range(NUMBERS):
        values = rng.lognormal(size=rows) if k % 3 else rng.normal(size=rows)
        columns[f"n{k}"] = pa.array(values, mask=rng.random(rows) < 0.05 if k % 4 == 0 else None)
    words = np.array([f"word {k}" for k in range(40)])
    columns |= {f"c{k}": pa.array(words[rng.integers(0, 6 * (k + 1), rows)]) for k in range(CATEGORIES)}
    days = np.datetime64("2015-01-01") + rng.integers(0, 3_650, (DATES, rows))
    columns |= {f"d{k}": pa.array(days[k].astype("datetime64[D]")) for k in range(DATES)}
    score = columns["n0"].fill_null(0).to_numpy(zero_copy_only=False) + rng.normal(size=rows)
    return pa.table({"id": ids, **columns}), pa.table(
        {"id": ids, "bought": pa.array(np.where(score > 0, "yes", "no"))}
    )


def make(folder: Path, rows: int) -> None:
    for name in ("bank", "shop"):
        (folder / name).mkdir()
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        for name, table in zip(("bank", "shop"), make_rows(first, min(FILE_ROWS, rows - first)), strict=True):
            pa.parquet.write_table(table, folder / name / f"{number:05}.parquet", row_group_size=131_072)


def prepare(folder: Path, rows: int) -> None:
    from thinwire.job.job_loader import load_job

    job = load_job(folder / "job.toml")
    assert job.rows + job.test_rows == rows  # noqa: S101


def train(folder: Path, _: int) -> None:
    _call("train", str(folder / "job.toml"), "--out", str(folder / "run"))


def predict(folder: Path, _: int) -> None:
    _call("predict", str(folder / "run"), "--out", str(folder / "scores.parquet"))


def _call(*arguments: str) -> None:
    from thinwire.cli import main

    sys.argv = ["thinwire", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


STEPS: dict[str, Callable[[Path, int], None]] = {"make": make, "prepare": prepare, "train": train, "predict": predict}


def measure(step: str, folder: Path, rows: int) -> dict[str, Any]:
    """One step in a process of its own."""
    began = perf_counter()
    arguments = [sys.executable, __file__, "--step", step, "--folder", str(folder), "--rows", str(rows)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{step} of {rows} rows ended with {process.returncode}")
    return {
        "rows": rows,
        "step": step,
        "seconds": perf_counter() - began,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "memory_mb": usage.ru_maxrss / 1024,
    }


def run(rows: int, place: Path, limit: float) -> list[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(dir=place, prefix="tables-"))
    try:
        epochs = min(1.0, ROUNDS * BATCH / (0.9 * rows))
        text = JOB.format(epochs=epochs, batch=BATCH, limit=limit, scratch=json.dumps(str(folder)))
        (folder / "job.toml").write_text(text)
        found = [measure(step, folder, rows) for step in STEPS]
        size = sum(file.stat().st_size for file in folder.glob("*/*.parquet")) / 2**20
        return [{**one, "files_mb": size} for one in found]
    finally:
        shutil.rmtree(folder)


def compare_readers(place: Path, rows: int) -> dict[str, float]:
    """Rows a second of the two ways to come to shuffled batches."""
    import torch

    from thinwire.data.readers.large_table import LargeTable, Shuffle
    from thinwire.engine.protocols.context import select_rows
    from thinwire.engine.streams import Storage, make_table, release_pages

    with tempfile.TemporaryDirectory(dir=place) as name:
        file = Path(name) / "t.parquet"
        columns = [f"n{k}" for k in range(20)]
        rng = np.random.default_rng(0)
        values = rng.normal(size=(rows, len(columns))).astype(np.float32)
        pa.parquet.write_table(pa.table(dict(zip(columns, values.T, strict=True))), file, row_group_size=65_536)
        table = make_table(rows, len(columns), Storage(0, Path(name)), "the copy")
        table.copy_(torch.from_numpy(values))
        del values
        found = {}
        for _ in range(2):  # the second pass counts
            order = torch.randperm(rows)
            release_pages(table)
            began = process_time()
            for start in range(0, rows, BATCH):
                select_rows(table, order[start : start + BATCH])
            found["mapped copy"] = rows / (process_time() - began)
            began = process_time()
            with LargeTable(file) as large:
                for _ in large.batches(BATCH, Shuffle(seed=0, block=65_536, together=8)):
                    pass
            found["row groups and a buffer"] = rows / (process_time() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--memory-limit-mb", type=float, default=256)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--readers", action="store_true")
    parser.add_argument("--step", choices=list(STEPS))
    options = parser.parse_args()
    if options.step:
        STEPS[options.step](options.folder, options.rows[0])
        return
    console = Console()
    if options.readers:
        console.print_json(json.dumps(compare_readers(options.folder, options.rows[0])))
        return
    results = [one for rows in options.rows for one in run(rows, options.folder, options.memory_limit_mb)]
    if options.json:
        console.print_json(json.dumps(results))
        return
    table = Table("rows", "step", "seconds", "CPU seconds", "peak MB", "Parquet MB")
    for one in results:
        figures = [f"{one[key]:,.0f}" for key in ("seconds", "cpu_seconds", "memory_mb", "files_mb")]
        table.add_row(f"{one['rows']:,}", one["step"], *figures)
    console.print(table)


if __name__ == "__main__":
    main()
