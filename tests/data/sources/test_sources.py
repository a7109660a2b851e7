"""A table gives the same digests wherever it is: a CSV file, SQLite, DuckDB, a folder of Parquet files."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from data.sources.customers import make_customers, write_csv, write_duckdb, write_folder, write_job, write_sqlite
from thinwire.base.errors import BadFile, BadIds, BadInput, BadTable
from thinwire.data.readers import large_table, sources
from thinwire.data.readers.sources import TableOrigin, TableStore
from thinwire.data.readers.tables import StoredTable
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import digest_data, require_same_job, save_job
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


def test_a_copy_in_a_file_sorted_by_duckdb_has_the_same_digests(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "COPY_IN_MEMORY", 0)
    monkeypatch.setattr(large_table, "COPY_IN_MEMORY", 0)
    monkeypatch.setattr(large_table, "_GROUP_BYTES", 2_000)
    job = load_job(write_job(tmp_path, write_folder(tmp_path, make_customers())), [f'job.scratch="{tmp_path}"'])
    assert digest_data(job) == digest_data(load_job(csv))


def test_a_table_that_changed_since_the_run_began_is_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path, write_sqlite(tmp_path, make_customers()))
    text = resolve_job(path)
    save_job(tmp_path / "run", text, load_job(path))
    require_same_job(tmp_path / "run", text, load_job(path))
    with closing(sqlite3.connect(tmp_path / "bank.db")) as database:
        database.execute("UPDATE customers SET balance = balance + 1 WHERE customer = 'A-00000'")
        database.commit()
    with pytest.raises(BadInput, match=r"bank\.features has changed since the run"):
        require_same_job(tmp_path / "run", text, load_job(path))


@pytest.mark.parametrize(
    "place",
    [
        'sql = "SELECT 1", connection = "postgresql://me:hunter2@db.example/bank"',
        'sql = "SELECT 1", connection = "postgresql://db.example/bank?user=me&password=hunter2"',
        'sql = "SELECT 1", connection = "host=db.example password=hunter2"',
        'sql = "SELECT 1", connection = { password = "hunter2" }',
        'file = "s3://key:hunter2@bucket/customers/"',
    ],
)
def test_a_password_is_refused_and_not_printed(tmp_path: Path, place: str) -> None:
    with pytest.raises(BadInput, match=r"PGPASSWORD|must be a string") as refused:
        load_job(write_job(tmp_path, place))
    assert "hunter2" not in str(refused.value)


def write_database(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "bank.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 1 AS age", "the query has no column 'customer' of ids.*end the query with ORDER BY"),
        ("SELECT * FROM nobody", "no such table: nobody"),
        ("SELECT * FROM t", "row 3 repeats the 'customer' 2 of the row before"),
        ("SELECT nullif(customer, 1) AS customer FROM t", "row 1 has no 'customer'"),
    ],
)
def test_a_query_without_an_order_is_refused(tmp_path: Path, query: str, says: str) -> None:
    write_database(tmp_path, "CREATE TABLE t (customer, age)", "INSERT INTO t VALUES (2, 3), (1, 4), (2, 5)")
    with pytest.raises(BadInput, match=says):
        load_job(write_job(tmp_path, f'sql = "{query}", connection = "bank.db"'))


def open_query(folder: Path, query: str, order_by: str | None = "id") -> StoredTable:
    found = TableStore().open(TableOrigin(folder, None, query, "bank.db"), order_by)
    assert isinstance(found, StoredTable)
    return found


def test_a_query_with_an_order_of_its_own_keeps_it(tmp_path: Path) -> None:
    write_database(tmp_path, "CREATE TABLE t (id, x)", "INSERT INTO t VALUES (2, 'order by'), (3, 1.5), (10, 7)")
    asked = open_query(tmp_path, "SELECT * FROM t ORDER BY x;", None).read(["id", "x"])
    assert asked.to_pylist() == [{"id": 3, "x": "1.5"}, {"id": 10, "x": "7"}, {"id": 2, "x": "order by"}]
    inside = "SELECT * FROM (SELECT * FROM t ORDER BY x) -- order by x\nWHERE x <> ' order by '"
    assert open_query(tmp_path, inside).read(["id"]).column("id").to_pylist() == [2, 3, 10]
    with pytest.raises(BadIds, match="names no ids"):
        open_query(tmp_path, inside, None)


def test_ids_and_features_of_one_query_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, real = [], sources._open

    def watch(origin: TableOrigin, *about: Any) -> StoredTable:
        asked.append(origin)
        return real(origin, *about)

    monkeypatch.setattr(sources, "_open", watch)
    load_job(write_job(tmp_path, write_sqlite(tmp_path, make_customers())))
    assert len(asked) == 1


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    with pytest.raises(BadInput, match=r"needs adbc-driver-postgresql.*pip install 'thinwire\[sql\]'"):
        load_job(write_job(tmp_path, 'sql = "SELECT 1", connection = "postgresql://db.example/bank"'))
    with pytest.raises(BadInput, match=r"needs adbc-driver-oracle.*pip install adbc-driver-oracle"):
        load_job(write_job(tmp_path, 'sql = "SELECT 1", connection = "oracle://db.example/bank"'))
    monkeypatch.delenv("BANK_DB", raising=False)
    with pytest.raises(BadInput, match="environment variable BANK_DB is not set"):
        load_job(write_job(tmp_path, 'sql = "SELECT 1", connection = "$BANK_DB"'))
    (tmp_path / "notes.db").write_text("these are no tables, but a text of some length")
    with pytest.raises(BadFile, match="is not a SQLite or DuckDB database"):
        load_job(write_job(tmp_path, 'sql = "SELECT 1", connection = "notes.db"'))
    with pytest.raises(BadInput, match="takes either file"):
        load_job(write_job(tmp_path, 'sql = "SELECT 1", file = "bank.csv"'))


def test_folders_that_are_no_table_are_refused(tmp_path: Path) -> None:
    path, folder = write_job(tmp_path, 'file = "customers/"'), tmp_path / "customers"
    folder.mkdir()
    with pytest.raises(BadFile, match="no Parquet file"):
        load_job(path)
    (folder / "_SUCCESS").touch()
    table = make_customers()
    pa.parquet.write_table(table, folder / "a.parquet")
    pa.parquet.write_table(table.drop_columns(["age"]), folder / "b.parquet")
    with pytest.raises(BadTable, match=r"b\.parquet has other columns than a\.parquet"):
        load_job(path)
    (folder / "b.parquet").write_bytes(b"PAR1 and nothing that belongs to it PAR1")
    with pytest.raises(BadFile, match=r"customers.*cannot be read"):
        load_job(path)
    (folder / "b.parquet").rename(folder / "b.csv")
    with pytest.raises(BadFile, match=r"holds b\.csv"):
        load_job(path)
    (folder / "b.csv").unlink()
    pa.parquet.write_table(table, folder / "b.parquet")
    with pytest.raises(BadIds, match="the folder has no column 'number'"):
        load_job(path, ["party.bank.ids.column=number"])
