"""Two companies with a CSV file each: some customers in common, and a label that needs both files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

CUSTOMERS, COMMON = 600, 480

JOB = """
[job]
epochs = 4
batch_size = 64
metrics = ["auc"]
split = { test = 0.25 }

[recipe]
method = "svfl"

[optimizer]
name = "adam"
lr = 0.01

[[party]]
name = "bank"
features = { file = "bank.csv" }
ids = { file = "bank.csv", column = "customer" }
alignment = "bank.alignment"
prepare = {}
model = { name = "mlp", hidden = [16], width = 8 }

[label_party]
name = "shop"
features = { file = "shop.csv" }
labels = { file = "shop.csv", column = "bought", task = "auto" }
ids = { file = "shop.csv", column = "customer" }
alignment = "shop.alignment"
prepare = {}
model = { name = "mlp", hidden = [16], width = 8 }
top = { name = "linear_top" }
"""


def write_companies(folder: Path, seed: int = 0) -> None:
    """bank.csv and shop.csv, in different orders."""
    rng = np.random.default_rng(seed)
    age, spend = rng.normal(40, 12, CUSTOMERS), rng.normal(0, 1, CUSTOMERS)
    job = rng.choice(["clerk", "farmer", "nurse"], CUSTOMERS)
    visits, year = rng.poisson(3, CUSTOMERS), rng.integers(2012, 2024, CUSTOMERS)
    score = (age - 40) / 12 + (job == "nurse") + spend + (visits - 3) / 2 + rng.normal(0, 0.5, CUSTOMERS)
    known = {
        "customer": [f"c{k:04}" for k in rng.permutation(CUSTOMERS)],
        "age": ["" if k % 19 == 0 else f"{x:.0f}" for k, x in enumerate(age)],
        "job": list(job),
        "note": [f"said {x:.5f} on the phone" for x in rng.normal(size=CUSTOMERS)],
        "spend": [f"{x:.3f}" for x in spend],
        "visits": list(visits),
        "joined": [f"{y}-{m:02}-15" for y, m in zip(year, rng.integers(1, 13, CUSTOMERS), strict=True)],
        "bought": ["yes" if x > 0 else "no" for x in score],
        "worth": [f"{1000 + 300 * x:.2f}" for x in score],
    }
    extra = (CUSTOMERS - COMMON) // 2
    at_bank, at_shop = np.arange(0, COMMON + extra), rng.permutation(np.arange(extra, CUSTOMERS))
    write_csv(folder / "bank.csv", {name: known[name] for name in ("customer", "age", "job", "note")}, at_bank)
    shop = ("customer", "spend", "visits", "joined", "bought", "worth")
    write_csv(folder / "shop.csv", {name: known[name] for name in shop if name != "worth"}, at_shop)
    write_csv(folder / "worth.csv", {name: known[name] for name in shop if name != "bought"}, at_shop)


def write_csv(file: Path, columns: dict[str, Any], rows: Any) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(columns)
        writer.writerows([values[row] for values in columns.values()] for row in rows)


def write_job(folder: Path, text: str = JOB) -> Path:
    write_companies(folder)
    path = folder / "job.toml"
    path.write_text(text)
    return path
