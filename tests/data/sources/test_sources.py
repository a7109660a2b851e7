"""A table gives the same digests wherever it is: a CSV file, SQLite, DuckDB, a folder of Parquet files."""

from __future__ import annotations

from pathlib import Path

import pytest

from data.sources.customers import make_customers, write_csv, write_duckdb, write_folder, write_job, write_sqlite
from thinwire.job.job_loader import load_job
from thinwire.job.job_snapshot import digest_data
from thinwire.job.party_view import read_party_view
from thinwire.training.train import train


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    return write_job(folder, write_csv(folder, make_customers()))


@pytest.mark.parametrize("write", [write_sqlite, write_duckdb, write_folder])
def test_a_source_has_the_digests_of_the_csv_file(csv: Path, tmp_path: Path, write: object) -> None:
    path = write_job(tmp_path, write(tmp_path, make_customers()))  # type: ignore[operator]
    job = load_job(path)
    assert digest_data(job) == digest_data(load_job(csv))
    assert read_party_view(path, "bank").row_digests() == read_party_view(csv, "bank").row_digests()


def test_a_run_from_a_database_is_the_run_from_the_file(csv: Path, tmp_path: Path) -> None:
    path = write_job(tmp_path, write_sqlite(tmp_path, make_customers()))
    ours, theirs = train(load_job(path), []), train(load_job(csv), [])
    assert ours.summary()["test"] == theirs.summary()["test"]
