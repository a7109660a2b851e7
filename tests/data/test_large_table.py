"""Tables larger than memory: every row once, the same order for the same seed, and memory that does not grow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from thinwire.base.errors import BadInput, BadParameter
from thinwire.data.readers.large_table import LargeTable, Shuffle, write_arrow

ROWS = 1000


def numbers() -> pa.Table:
    """Row k holds k, 2 k and k mod 7."""
    k = np.arange(ROWS)
    return pa.table({"a": k, "b": 2.0 * k, "c": (k % 7).astype(np.int8)})


def stored(folder: Path, kind: str) -> Path:
    file = folder / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(numbers(), file, row_group_size=130)
    else:
        write_arrow(file, [numbers().slice(0, 333), numbers().slice(333)])
    return file


def epoch(
    file: Path, size: int, shuffle: Shuffle, epoch: int = 0
) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    with LargeTable(file) as table:
        return list(table.batches(size, shuffle, epoch))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
@pytest.mark.parametrize("shuffle", [Shuffle(0), Shuffle(1, 64, 3), Shuffle(2, 7, 1), Shuffle(3, 1, 1000)])
@pytest.mark.parametrize("size", [1, 96, 1000, 5000])
def test_every_row_once_with_its_values(tmp_path: Path, kind: str, shuffle: Shuffle, size: int) -> None:
    batches = epoch(stored(tmp_path, kind), size, shuffle)
    rows = np.concatenate([rows for rows, _ in batches])
    assert sorted(rows.tolist()) == list(range(ROWS))
    assert [len(rows) for rows, _ in batches[:-1]] == [size] * (len(batches) - 1)
    for own, values in batches:
        assert values.dtype == np.float32
        assert np.array_equal(values, np.stack([own, 2 * own, own % 7], axis=1))


def test_the_order_depends_on_the_seed_and_epoch_not_on_the_file(tmp_path: Path) -> None:
    shuffle = Shuffle(5, 50, 4)
    order, same, stored_otherwise, later, other = (
        np.concatenate([rows for rows, _ in epoch(file, size, own, when)]).tolist()
        for file, size, own, when in (
            (stored(tmp_path, "arrow"), 64, shuffle, 0),
            (stored(tmp_path, "arrow"), 10, shuffle, 0),
            (stored(tmp_path, "parquet"), 64, shuffle, 0),
            (stored(tmp_path, "arrow"), 64, shuffle, 1),
            (stored(tmp_path, "arrow"), 64, Shuffle(6, 50, 4), 0),
        )
    )
    assert order == same == stored_otherwise
    assert len({tuple(one) for one in (order, later, other)}) == 3


def test_rows_are_really_mixed() -> None:
    groups = list(Shuffle(0, 100, 10).groups(10_000, 0))
    assert [len(group) for group in groups] == [1000] * 10
    for group in groups:
        assert len(set((group // 100).tolist())) == 10  # ten blocks ...
        assert len(set((group[:100] // 100).tolist())) == 10  # ... that are mixed from the first batch on
        assert abs(np.corrcoef(np.arange(1000), group)[0, 1]) < 0.2
    firsts = [int(group.min()) for group in groups]
    assert firsts != sorted(firsts)


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_any_rows_of_some_columns(tmp_path: Path, kind: str) -> None:
    wanted = np.array([999, 0, 333, 332, 0])
    with LargeTable(stored(tmp_path, kind), ["c", "a"]) as table:
        assert len(table) == ROWS
        assert table.take(wanted).tolist() == [[k % 7, k] for k in wanted.tolist()]
        assert table.take(np.zeros(0, dtype=np.int64)).shape == (0, 2)
        with pytest.raises(BadParameter, match="row 0 or 1000 is not one of its 1000 rows"):
            table.take(np.array([0, 1000]))


def test_what_is_refused(tmp_path: Path) -> None:
    file = stored(tmp_path, "parquet")
    with pytest.raises(BadInput, match="there is no column 'z'; the columns are 'a', 'b', 'c'"):
        LargeTable(file, ["z"])
    pq.write_table(pa.table({"w": ["x"], "n": pa.array([None], pa.float32())}), file)
    with pytest.raises(BadInput, match="column 'w' holds string, not numbers"):
        LargeTable(file)
    with LargeTable(file, ["n"]) as table, pytest.raises(BadInput, match="column 'n' has an empty value"):
        table.take(np.array([0]))
    for name, content in (("x.arrow", b"ARROW1 no"), ("x.parquet", b"PAR1 no PAR1"), ("e.arrow", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(BadInput, match=re.escape(name)):
            LargeTable(tmp_path / name)
    with pytest.raises(BadInput, match="nothing to write"):
        write_arrow(tmp_path / "n.arrow", [])
    with pytest.raises(BadInput, match="cannot be written"):
        write_arrow(tmp_path / "n.arrow", [pa.table({"w": ["word"]})])
    assert not list(tmp_path.glob("*n.arrow*"))
    with pytest.raises(BadParameter, match="block must be 1 or more"):
        Shuffle(0, 0)
    with LargeTable(stored(tmp_path, "arrow")) as table, pytest.raises(BadParameter, match="size must be 1 or more"):
        next(table.batches(0, Shuffle(0)))


def test_a_damaged_file_says_where(tmp_path: Path) -> None:
    file = stored(tmp_path, "parquet")
    content = bytearray(file.read_bytes())
    content[4:200] = b"\xff" * 196  # the first row group's first column
    file.write_bytes(content)
    with LargeTable(file) as table, pytest.raises(BadInput, match="damaged after row 0"):
        table.take(np.arange(10))
    arrow = stored(tmp_path, "arrow")
    arrow.write_bytes(arrow.read_bytes()[:-200])
    with pytest.raises(BadInput, match="not an Arrow file, or damaged"):
        LargeTable(arrow)


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from thinwire.data.readers.large_table import LargeTable, Shuffle

def go(file, how):
    with LargeTable(Path(file)) as table:
        if how == "whole":
            table.take(np.arange(len(table)))
            return
        rows, total = 0, 0.0
        for own, values in table.batches(2048, Shuffle(0, 1024, 8)):
            rows += len(own)
            total += float(values[:, 0].sum(dtype=np.float64))
        assert rows == total == len(table), (rows, total)

large, small, spare_mib, how = sys.argv[1:]
go(small, "batches")  # so that the libraries have what they need for themselves
lines = Path("/proc/self/status").read_text().splitlines()
used_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
limit = (used_kib + int(spare_mib) * 1024) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    go(large, how)
    print("done")
except MemoryError:
    print("out of memory")
"""


def limited(large: Path, small: Path, spare_mib: int, how: str) -> str:
    shown = subprocess.run(
        [sys.executable, "-c", LIMITED, str(large), str(small), str(spare_mib), how],
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return shown.stdout.strip() or shown.stderr


def columns(rows: int) -> Iterator[pa.Table]:
    """20 columns of 4-byte numbers, the first one all ones; 10,000 rows at a time."""
    for start in range(0, rows, 10_000):
        x = np.random.default_rng(start).random((20, 10_000), dtype=np.float32)
        x[0] = 1
        yield pa.table({f"c{k}": x[k] for k in range(20)})


@pytest.mark.long
@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_memory_is_bounded(tmp_path: Path, kind: str) -> None:
    """120 MB pass through 32 MiB; twice that is too little to hold them, so the limit is a real one."""
    files = []
    for name, rows in (("large", 1_500_000), ("small", 20_000)):
        files.append(tmp_path / f"{name}.{kind}")
        if kind == "arrow":
            write_arrow(files[-1], columns(rows))
        else:
            with pq.ParquetWriter(files[-1], next(columns(1)).schema) as writer:
                for table in columns(rows):
                    writer.write_table(table)
    large, small = files
    assert large.stat().st_size > 120e6
    assert limited(large, small, 32, "batches") == "done"
    assert limited(large, small, 64, "whole") == "out of memory"
