"""One table of customers, written as a CSV file and into databases and folders; and a job that trains on it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset

QUERY = "SELECT * FROM customers"
ROWS = 300

JOB = """
[job]
epochs = 1
batch_size = 64
metrics = ["auc"]
split = {{ test = 0.2 }}

[recipe]
method = "svfl"

[optimizer]
name = "adam"
lr = 0.01

[[party]]
name = "bank"
features = {{ {place}, columns = ["age", "balance", "since", "active"] }}
ids = {{ {place}, column = "customer" }}
prepare = {{}}
model = {{ name = "mlp", hidden = [8], width = 4 }}

[label_party]
name = "shop"
features = {{ {place}, columns = ["town", "visits"] }}
labels = {{ {place}, column = "bought", task = "auto" }}
ids = {{ {place}, column = "customer" }}
prepare = {{}}
model = {{ name = "mlp", hidden = [8], width = 4 }}
top = {{ name = "linear_top" }}
"""


def make_customers(rows: int = ROWS) -> Any:
    """A pyarrow table in the order of its ids: text ids, a number with gaps, a date, a boolean, categories."""
    rng = np.random.default_rng(0)
    ids = sorted((f"{'Ab'[k % 2]}-{k:05d}" for k in range(rows)), key=str.encode)
    age = rng.integers(18, 90, rows)
    balance = np.round(rng.normal(1000, 300, rows), 2)
    days = np.datetime64("2020-01-01") + rng.integers(0, 900, rows)
    bought = np.where(age + rng.normal(0, 9, rows) > 50, "yes", "no")
    return pa.table(
        {
            "customer": ids,
            "age": pa.array(age, pa.int64(), mask=rng.random(rows) < 0.1),
            "balance": balance,
            "since": pa.array(days.astype("datetime64[D]")),
            "active": rng.random(rows) < 0.5,
            "town": rng.choice(["Bern", "Basel", "Zürich"], rows),
            "visits": pa.array(rng.integers(0, 9, rows), pa.int64()),
            "bought": bought,
        }
    )


def write_job(folder: Path, place: str) -> Path:
    """A job whose every table is at `place`, as a job file writes it."""
    path = folder / "job.toml"
    path.write_text(JOB.format(place=place))
    return path


def write_csv(folder: Path, table: Any) -> str:
    pa.csv.write_csv(table, folder / "customers.csv")
    return 'file = "customers.csv"'


def shuffle(table: Any) -> Any:
    """The same rows in another order, as a database may give them."""
    return table.take(np.random.default_rng(1).permutation(table.num_rows))


def write_sqlite(folder: Path, table: Any) -> str:
    with sqlite3.connect(folder / "bank.db") as database:
        names = table.column_names
        database.execute(f"CREATE TABLE customers ({', '.join(names)})")
        rows = ([_plain(row[name]) for name in names] for row in shuffle(table).to_pylist())
        marks = ", ".join("?" * len(names))
        database.executemany(f"INSERT INTO customers VALUES ({marks})", rows)  # noqa: S608
    database.close()
    return f'sql = "{QUERY}", connection = "bank.db"'


def _plain(cell: Any) -> Any:
    """SQLite has no booleans and no dates: text, as people store them."""
    return (
        str(cell).lower() if isinstance(cell, bool) else cell if isinstance(cell, int | float | None) else str(cell)
    )


def write_duckdb(folder: Path, table: Any) -> str:
    import duckdb

    with duckdb.connect(str(folder / "bank.duckdb")) as database:
        database.register("given", shuffle(table))
        database.execute("CREATE TABLE customers AS SELECT * FROM given")
    return f'sql = "{QUERY}", connection = "bank.duckdb"'


def write_folder(folder: Path, table: Any) -> str:
    """Partitioned by town, several files each: not in the order of ids."""
    pa.dataset.write_dataset(
        table,
        folder / "customers",
        format="parquet",
        partitioning=["town"],
        partitioning_flavor="hive",
        max_rows_per_file=40,
        max_rows_per_group=40,
    )
    return 'file = "customers/"'
