"""PostgreSQL and S3, tried on real servers: the digests of the CSV file, and what happens when they go away."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pyarrow.parquet
import pytest

import processes
from data.sources.customers import QUERY, make_customers, write_csv, write_folder, write_job
from data.sources.servers import PASSWORD, PostgreSQL, run_postgresql, run_s3
from thinwire.base.errors import BadFile, BadInput, BadTable
from thinwire.data.readers import large_table
from thinwire.job.job_loader import load_job
from thinwire.job.job_snapshot import digest_data
from thinwire.job.party_view import read_party_view

pytestmark = pytest.mark.sources


@pytest.fixture(scope="module")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    return write_job(folder, write_csv(folder, make_customers()))


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQL]:
    with tempfile.TemporaryDirectory(prefix="pg") as folder, run_postgresql(Path(folder)) as found:
        found.write(make_customers())
        yield found


@pytest.fixture
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


def write_query(folder: Path, server: PostgreSQL, query: str = QUERY) -> Path:
    return write_job(folder, f"sql = '{query}', connection = \"{server.address}\"")


@pytest.mark.usefixtures("password")
def test_postgresql_has_the_digests_of_the_csv_file(csv: Path, server: PostgreSQL, tmp_path: Path) -> None:
    """Though it sorts text ids in another way, and holds exact decimals."""
    path = write_query(tmp_path, server)
    assert digest_data(load_job(path)) == digest_data(load_job(csv))
    assert read_party_view(path, "bank").row_digests() == read_party_view(csv, "bank").row_digests()
    own = write_query(tmp_path, server, 'SELECT * FROM customers ORDER BY customer COLLATE "C";')
    assert digest_data(load_job(own)) == digest_data(load_job(csv))


def test_the_address_may_come_from_the_environment(
    csv: Path, server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANK_DB", server.address.replace("tester@", f"tester:{PASSWORD}@"))
    path = write_job(tmp_path, f'sql = "{QUERY}", connection = "$BANK_DB"')
    assert digest_data(load_job(path)) == digest_data(load_job(csv))
    monkeypatch.setenv("BANK_DB", server.address.replace("tester@", "tester:wrong-secret@"))
    with pytest.raises(BadFile, match="password authentication failed") as refused:
        load_job(path)
    assert "wrong-secret" not in str(refused.value)


@pytest.mark.usefixtures("password")
def test_a_query_that_writes_is_refused(server: PostgreSQL, tmp_path: Path) -> None:
    query = "DELETE FROM customers WHERE 1 IN (SELECT 1 ORDER BY 1) RETURNING * /* */"
    for text in (query, f"WITH gone AS ({query}) SELECT * FROM gone ORDER BY customer"):  # noqa: S608
        with pytest.raises(BadFile, match=r"read-only transaction|syntax error"):
            load_job(write_query(tmp_path, server, text))
    with pytest.raises(BadTable, match="two columns have the name 'age'"):
        load_job(write_query(tmp_path, server, "SELECT *, 1 AS age FROM customers"))


@pytest.mark.usefixtures("password")
def test_a_connection_that_is_lost_is_said_once_and_the_command_can_be_repeated(csv: Path, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pg") as folder, run_postgresql(Path(folder)) as server:
        server.write(make_customers())
        slow = write_query(tmp_path, server, "SELECT *, pg_sleep(0.1) FROM customers")

        def stop_soon() -> None:
            time.sleep(1.5)
            server.control("-m", "immediate", "stop")

        stopping = threading.Thread(target=stop_soon)
        stopping.start()
        done = processes.run("train", slow, "--out", tmp_path / "run")
        stopping.join()
        assert done.returncode == 2, done.stderr
        assert "label_party.ids" in done.stderr or "party.bank.ids" in done.stderr
        assert "cannot be read" in done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        assert not (tmp_path / "run" / "job.toml").exists()
        server.control("-w", "start")
        assert digest_data(load_job(write_query(tmp_path, server))) == digest_data(load_job(csv))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system takes root")
@pytest.mark.usefixtures("password")
def test_a_full_disk_is_one_message(server: PostgreSQL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    query = "SELECT i AS customer, random() AS age, md5(i::text) AS town FROM generate_series(1, 100000) AS t(i)"
    path = write_query(tmp_path, server, query)
    monkeypatch.setattr(large_table, "COPY_IN_MEMORY", 0)
    monkeypatch.setattr(large_table, "_GROUP_BYTES", 100_000)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", scratch], check=True)
    try:
        with pytest.raises(BadInput, match=r"no room for a copy of it in .*job\.scratch"):
            load_job(path, [f'job.scratch="{scratch}"'])
        assert list(scratch.iterdir()) == []
    finally:
        subprocess.run(["umount", scratch], check=True)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Holds the customers as a folder of Parquet files, partitioned by town, and as one file."""
    folder = tmp_path_factory.mktemp("parquet")
    write_folder(folder, make_customers())
    with pytest.MonkeyPatch.context() as patch, run_s3() as address:
        for name, value in (("ACCESS_KEY_ID", "me"), ("SECRET_ACCESS_KEY", PASSWORD), ("REGION", "us-east-1")):
            patch.setenv(f"AWS_{name}", value)
        patch.setenv("AWS_ENDPOINT_URL", address)
        system = pyarrow.fs.S3FileSystem(endpoint_override=address, allow_bucket_creation=True)
        system.create_dir("tables")
        pyarrow.fs.copy_files(str(folder / "customers"), "tables/customers", destination_filesystem=system)
        with system.open_output_stream("tables/one.parquet") as opened:
            pyarrow.parquet.write_table(make_customers(), opened)
        with system.open_output_stream("tables/two.csv") as opened:
            opened.write(b"customer,age\n1,2\n")
        yield "s3://tables"


@pytest.mark.parametrize("name", ["customers/", "one.parquet"])
def test_s3_has_the_digests_of_the_csv_file(csv: Path, bucket: str, name: str, tmp_path: Path) -> None:
    path = write_job(tmp_path, f'file = "{bucket}/{name}"')
    assert digest_data(load_job(path)) == digest_data(load_job(csv))


@pytest.mark.parametrize(
    ("name", "says"), [("nobody/", "does not exist"), ("two.csv", "only Parquet is read from an object store")]
)
def test_what_is_not_there_is_said(bucket: str, name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=says):
        load_job(write_job(tmp_path, f'file = "{bucket}/{name}"'))


def test_a_store_that_does_not_answer_is_said(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(BadFile, match="cannot be read") as refused:
        load_job(write_job(tmp_path, f'file = "{bucket}/customers/"'))
    assert PASSWORD not in str(refused.value)
