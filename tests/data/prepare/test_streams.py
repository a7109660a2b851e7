"""A table that is read in blocks is prepared as one in memory: exactly, or as exactly as the page on scale says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from data.sources.customers import make_customers, write_csv, write_job
from thinwire.base.errors import BadColumn, BadParameter
from thinwire.data.prepare import Preparation, Settings, columns, preparation, statistics
from thinwire.data.readers import large_table
from thinwire.data.readers.large_table import LargeCells, copy_csv
from thinwire.data.readers.tables import StoredTable, read_cells
from thinwire.data.readers.text_format import PLAIN
from thinwire.engine.streams import Storage, release_pages
from thinwire.job import table_reader
from thinwire.job.job_loader import load_job
from thinwire.job.job_snapshot import digest_data

ROWS = 4_000
SETTINGS = Settings(min_count=2, vocabulary=4)


def make_table() -> Any:
    rng = np.random.default_rng(3)
    days = np.datetime64("2019-01-01") + rng.integers(0, 900, ROWS)
    return pa.table(
        {
            "amount": pa.array(rng.lognormal(5, 2, ROWS), mask=rng.random(ROWS) < 0.1),
            "whole": pa.array(rng.integers(0, 50, ROWS)),
            "text": [f"{x:.3f}" for x in rng.normal(size=ROWS)],
            "since": pa.array(days.astype("datetime64[D]")),
            "day": [str(day) for day in days],
            "flag": rng.choice(["yes", "no"], ROWS),
            "town": rng.choice(["Bern", "Basel", "Chur"], ROWS),
            "street": [f"street {x}" for x in rng.integers(0, 200, ROWS)],
            "note": [f"note {x}" for x in range(ROWS)],
            "same": ["x"] * ROWS,
            "nothing": pa.array([None] * ROWS, pa.float64()),
        }
    )


def large(table: Any, storage: Storage | None = None) -> LargeCells:
    return LargeCells(StoredTable("the table", table), tuple(table.column_names), storage or Storage())


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_table, "_BLOCK_CELLS", 3_000)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("settings", [SETTINGS, Settings(scaling="quantile", missing="mean", missing_words=["Chur"])])
def test_a_table_in_blocks_is_prepared_exactly_as_in_memory(settings: Settings, tmp_path: Path) -> None:
    table, rows = make_table(), np.random.default_rng(0).permutation(ROWS)[:3_000]
    whole = Preparation.fit(table.take(rows), settings)
    fitted = Preparation.fit(large(table)[rows], settings)
    assert fitted == whole
    in_a_file = fitted.apply(large(table, Storage(0, tmp_path))[rows])
    release_pages(in_a_file)
    assert torch.equal(in_a_file, whole.apply(table.take(rows)))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("scaling", ["standard", "quantile", "none"])
def test_beyond_the_exact_rows_a_sample_stands_for_medians_and_quantiles(
    scaling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything else is of all rows; with all rows in the sample, so are the quantiles."""
    settings = SETTINGS.model_copy(update={"scaling": scaling})
    whole = Preparation.fit(make_table(), settings)
    monkeypatch.setattr(preparation, "EXACT_ROWS", 0)
    fitted = Preparation.fit(large(make_table()), settings)
    assert [column.kind for column in fitted.columns] == [column.kind for column in whole.columns]
    ours, theirs = fitted.apply(make_table()), whole.apply(make_table())
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    monkeypatch.setattr(columns, "SAMPLE_ROWS", 1_000)
    rough = Preparation.fit(large(make_table()), settings).apply(make_table())
    assert scaling == "none" or (rough - theirs).abs().max() < 0.3


def test_very_many_words_are_estimated_and_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "EXACT_ROWS", 0)
    monkeypatch.setattr(columns, "MOST_WORDS", 500)
    monkeypatch.setattr(statistics, "_LEAST_HASHES", 256)
    rng = np.random.default_rng(0)
    table = pa.table(
        {"note": [f"n{x}" for x in range(ROWS)], "street": [f"s{x}" for x in rng.integers(0, 900, ROWS)]}
    )
    note, street = Preparation.fit(large(table), SETTINGS).columns
    assert note.kind == "left out"
    assert street.kind == "hashed"
    counts = statistics.WordCounts(500)
    counts.add(table.column("note"))
    assert counts.different == pytest.approx(ROWS, rel=0.2)


@pytest.mark.usefixtures("small_blocks")
def test_a_wrong_cell_far_down_is_named_by_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = ["1"] * 3_000 + ["2"] * 999 + ["about 3"]
    monkeypatch.setattr(preparation, "EXACT_ROWS", 0)
    with pytest.raises(BadColumn, match="row 4000, column 'x' holds 'about 3'"):
        Preparation.fit(large(pa.table({"x": cells})), Settings(types={"x": "number"}))


@pytest.mark.usefixtures("small_blocks")
def test_a_long_csv_file_is_read_in_blocks_too(tmp_path: Path) -> None:
    write_csv(tmp_path, make_customers())
    file = tmp_path / "customers.csv"
    names = ("age", "balance", "since", "town")
    stored = copy_csv(file, names, PLAIN, Storage())
    cells = LargeCells(stored, names, Storage(), None, file, PLAIN)
    assert Preparation.fit(cells) == Preparation.fit(read_cells(file, names))


def test_a_job_of_a_large_table_has_the_digests_of_the_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in blocks, into files, by rows that a split has chosen."""
    pa.parquet.write_table(make_customers(), tmp_path / "customers.parquet")
    path = write_job(tmp_path, 'file = "customers.parquet"')
    before = digest_data(load_job(path))
    monkeypatch.setattr(table_reader, "HELD_ROWS", 0)
    monkeypatch.setattr(large_table, "_BLOCK_CELLS", 500)
    assert digest_data(load_job(path, ["job.memory_limit_mb=0", f'job.scratch="{tmp_path}"'])) == before


def test_a_table_without_preparation_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa.parquet.write_table(make_customers(), tmp_path / "customers.parquet")
    path = write_job(tmp_path, 'file = "customers.parquet"')
    text = path.read_text().replace(
        'columns = ["age", "balance", "since", "active"]', 'columns = ["balance", "active"]'
    )
    path.write_text(text.replace("prepare = {}\n", "", 1))
    before = digest_data(load_job(path))
    monkeypatch.setattr(table_reader, "HELD_ROWS", 0)
    assert digest_data(load_job(path)) == before
    path.write_text(path.read_text().replace('"balance", "active"', '"age", "active"'))
    with pytest.raises(BadColumn, match=r"party\.bank\.features.*row \d+, column 'age' is missing"):
        load_job(path)


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    fitted = Preparation.fit(make_table(), SETTINGS)
    with pytest.raises(BadParameter, match=r"no space for the numbers of the table of .* bytes"):
        fitted.apply(large(make_table(), Storage(0, tmp_path)))
