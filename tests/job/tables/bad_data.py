"""Everything that can be wrong with a party's data, each as a change of a job that is right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from job.tables.companies import write_companies
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import require_same_job, save_job
from thinwire.training.dry_run import describe_preparation

__all__ = ["CASES", "message"]

JOB = """
[job]
epochs = 1
metrics = ["auc"]

[recipe]
method = "svfl"

[[party]]
name = "bank"
features = { file = "bank.csv" }
test_features = { file = "bank_test.csv" }
ids = { file = "bank.csv", column = "customer" }
test_ids = { file = "bank_test.csv", column = "customer" }
prepare = {}
model = { name = "mlp", hidden = [4], width = 4 }

[label_party]
name = "shop"
labels = { file = "shop.csv", column = "bought", task = "auto" }
test_labels = { file = "shop_test.csv", column = "bought" }
ids = { file = "shop.csv", column = "customer" }
top = { name = "linear_top" }
"""

Change = Callable[[Path], object]
BANK = "customer,age,job,since\n" + "".join(
    f"c{k},{20 + k % 50},{('clerk', 'nurse')[k % 2]},2{k // 28:03}-01-{k % 28 + 1:02}\n" for k in range(60)
)
SHOP = "customer,bought\n" + "".join(f"c{k},{('no', 'yes')[k // 3 % 2]}\n" for k in range(60))


def write(folder: Path) -> Path:
    """A job of two parties that hold the same rows, with test rows in files of their own."""
    for name, text in (("bank", BANK), ("shop", SHOP)):
        (folder / f"{name}.csv").write_text(text)
        (folder / f"{name}_test.csv").write_text(text)
    (folder / "job.toml").write_text(JOB)
    return folder / "job.toml"


def message(folder: Path, change: Change) -> str:
    """What is said once the data is changed; without the folder's name."""
    path = write(folder)
    try:
        change(folder)
        columns = describe_preparation(load_job(path))["bank"]
    except BadInput as error:
        return f"{str(error).replace(f'{folder}/', '')} [{error.code()}]"
    left_out = [f"; {column['column']} is left out: {column['says']}" for column in columns if not column["outputs"]]
    return f"nothing: the job is read as it stands{''.join(left_out)}"


def put(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def swap(name: str, old: str, new: str, count: int = 1) -> Change:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new, count))


def as_folder(folder: Path) -> None:
    (folder / "bank.csv").unlink()
    (folder / "bank.csv").mkdir()


def parquet(folder: Path) -> None:
    (folder / "bank.parquet").write_bytes(b"PAR1 and no more")
    swap("job.toml", "bank.csv", "bank.parquet", 2)(folder)


def changed(folder: Path) -> None:
    path = folder / "job.toml"
    save_job(folder / "run", resolve_job(path), load_job(path))
    swap("bank.csv", "c7,27", "c7,72")(folder)
    require_same_job(folder / "run", resolve_job(path), load_job(path))


def not_aligned(folder: Path) -> None:
    write_companies(folder)
    for name in ("test_features", "test_ids", "test_labels"):
        lines = (folder / "job.toml").read_text().splitlines()
        (folder / "job.toml").write_text("\n".join(line for line in lines if not line.startswith(name)))


def no_such_alignment(folder: Path) -> None:
    swap("job.toml", "prepare = {}", 'prepare = {}\nalignment = "bank.alignment"')(folder)


def all_columns(name: str, number: int) -> str:
    """A table without one column."""
    lines = [line.split(",") for line in BANK.splitlines()]
    return "\n".join(",".join(cell for k, cell in enumerate(line) if k != number) for line in lines) + f"\n{name}"


CASES: dict[str, Change] = {
    "nothing is wrong": lambda _: None,
    "missing file": lambda folder: (folder / "bank.csv").unlink(),
    "a folder": as_folder,
    "empty": put("bank.csv", ""),
    "header only": put("bank.csv", "customer,age,job,since\n"),
    "ragged": swap("bank.csv", "c7,27", "c7,27,extra"),
    "a byte order mark": put("bank.csv", "\ufeff" + BANK),
    "UTF-16": put("bank.csv", BANK.encode("utf-16")),
    "Latin-1": put("bank.csv", BANK.replace("clerk", "d\u00e9put\u00e9").encode("latin-1")),
    "an encoding that is none": swap("job.toml", '"bank.csv" }\ntest', '"bank.csv", encoding = "latin-0" }\ntest'),
    "a decimal sign that is none": swap("job.toml", '"bank.csv" }\ntest', '"bank.csv", decimal = ";" }\ntest'),
    "one sign for decimals and thousands": swap(
        "job.toml", '"bank.csv" }\ntest', '"bank.csv", thousands = "." }\ntest'
    ),
    "CRLF": put("bank.csv", BANK.replace("\n", "\r\n")),
    "NUL": swap("bank.csv", "c7,27", "c7,\0"),
    "wrong delimiter": put("bank.csv", BANK.replace(",", ";")),
    "no line of names": put("bank.csv", "1,2,3,4\n5,6,7,8\n"),
    "a name twice": swap("bank.csv", "age,job", "age,age"),
    "another kind of file": lambda folder: (
        put("bank.xlsx", "PK")(folder),
        swap("job.toml", '"bank.csv" }\ntest', '"bank.xlsx" }\ntest')(folder),
    ),
    "a damaged Parquet file": parquet,
    "text in a number column": swap("bank.csv", "c7,27", "c7,old"),
    "a decimal comma": swap("bank.csv", "c7,27", 'c7,"27,5"'),
    "nothing but decimal commas": put("bank.csv", re.sub(r",(\d+),([cn])", r',"\1,5",\2', BANK)),
    "a name that TOML quotes": lambda folder: (
        [swap(name, "age", "net age")(folder) for name in ("bank.csv", "bank_test.csv")],
        swap("bank.csv", "c7,27", "c7,old")(folder),
    ),
    "text in a number column of test rows": swap("bank_test.csv", "c7,27", "c7,old"),
    "dates of two kinds": lambda folder: (
        swap("job.toml", "prepare = {}", 'prepare = { types = { since = "date" } }')(folder),
        swap("bank.csv", "2000-01-08", "8.1.2000")(folder),
    ),
    "a constant column": put("bank.csv", BANK.replace("nurse", "clerk")),
    "nothing but constant columns": lambda folder: [
        put(name, "customer,a\n" + "".join(f"c{k},1\n" for k in range(60)))(folder)
        for name in ("bank.csv", "bank_test.csv")
    ],
    "a missing column of test rows": put("bank_test.csv", all_columns("", 1)),
    "an extra column of test rows": put("bank_test.csv", BANK.replace("\n", ",1\n").replace("since,1", "since,more")),
    "a column that is not there": swap("job.toml", "prepare = {}", 'prepare = { types = { aeg = "number" } }'),
    "a pattern that nothing fits": swap("job.toml", '"bank.csv" }\ntest', '"bank.csv", columns = ["x_*"] }\ntest'),
    "a type that is none": swap("job.toml", "prepare = {}", 'prepare = { types = { age = "numeric" } }'),
    "a setting that is none": swap("job.toml", "prepare = {}", "prepare = { vocabluary = 3 }"),
    "the id among the features": swap("job.toml", '"bank.csv" }\ntest', '"bank.csv", columns = ["customer"] }\ntest'),
    "changed since the checkpoint": changed,
    "an id column that is not there": swap(
        "job.toml", '"bank.csv", column = "customer"', '"bank.csv", column = "custmer"'
    ),
    "an id twice": swap("bank.csv", "c7,", "c8,"),
    "no id": swap("bank.csv", "c7,", ","),
    "rows in another order": not_aligned,
    "an alignment that is not there": no_such_alignment,
    "single-class labels": put("shop.csv", SHOP.replace("yes", "no")),
    "an unseen class": swap("shop_test.csv", "c7,no", "c7,maybe"),
    "no label": swap("shop.csv", "c7,no", "c7,"),
    "a label column that is not there": swap("job.toml", 'column = "bought", task', 'column = "boughtt", task'),
    "labels that are not classes": put(
        "shop.csv", "customer,bought\n" + "".join(f"c{k},{k / 7}\n" for k in range(60))
    ),
}
