"""Real servers for tests: PostgreSQL from the system's packages, and moto's, which speaks S3."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PASSWORD = "not-for-job-files"  # noqa: S105


def find_free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


@dataclass(frozen=True)
class PostgreSQL:
    """A server of its own, in a folder of its own, that asks for a password."""

    folder: Path
    port: int

    @property
    def address(self) -> str:
        """Without the password."""
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def control(self, *arguments: str) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        _run(self.folder, "pg_ctl", "-D", self.folder / "data", "-l", self.folder / "log", "-o", options, *arguments)

    def execute(self, *statements: str) -> None:
        import adbc_driver_postgresql.dbapi as driver

        address = self.address.replace("tester@", f"tester:{PASSWORD}@")
        with driver.connect(address, autocommit=True) as database, database.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def write(self, table: Any) -> None:
        """The table as `customers`, its ids sorted by the rules of a language and not by bytes."""
        import adbc_driver_postgresql.dbapi as driver

        address = self.address.replace("tester@", f"tester:{PASSWORD}@")
        with driver.connect(address) as database, database.cursor() as cursor:
            cursor.adbc_ingest("customers", table, mode="replace")
            cursor.execute('ALTER TABLE customers ALTER customer TYPE text COLLATE "und-x-icu"')
            cursor.execute("ALTER TABLE customers ALTER balance TYPE numeric(12, 2)")
            database.commit()


def _run(folder: Path, program: str, *arguments: object) -> None:
    """As the user that the packages made, where the tests run as root, which PostgreSQL refuses."""
    places = [str(place) for place in sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    found = shutil.which(program, path=os.pathsep.join([*places, os.environ["PATH"]]))
    assert found, f"{program} is missing: apt-get install postgresql"
    prefix: Sequence[str] = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*prefix, found, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0 or "stop" in arguments, done.stdout + done.stderr


@contextmanager
def run_postgresql(folder: Path) -> Iterator[PostgreSQL]:
    server = PostgreSQL(folder, find_free_port())
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if os.geteuid() == 0:
        for path in (folder, secret):
            shutil.chown(path, "postgres")
    options = ("-A", "scram-sha-256", "-U", "tester", "--pwfile", secret, "-E", "UTF8", "--locale", "C.UTF-8")
    _run(folder, "initdb", "-D", folder / "data", *options)
    server.control("-w", "start")
    try:
        yield server
    finally:
        server.control("-m", "immediate", "stop")


@contextmanager
def run_s3() -> Iterator[str]:
    """Its address, once it answers."""
    port = find_free_port()
    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            for _ in range(1_200):
                assert process.poll() is None, "moto is missing: pip install 'moto[s3,server]'"
                with socket.socket() as opened:
                    if opened.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
