"""Tables that were prepared and split: a score stands beside the id it is of, and new rows are prepared alike."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
import torch

import thinwire as tw
from thinwire.errors import BadInput
from thinwire.job.loading import load_job, resolved
from thinwire.job.saved import save_job
from thinwire.predict import Run, load_run
from thinwire.predict.simulated import SimulatedRows, new_rows, own_rows
from thinwire.predict.table import Which

PEOPLE = [f"p{number}" for number in range(80)]
TOWNS = ("Bern", "Basel", "Chur")
JOB = """
job = { epochs = 1, batch_size = 16, split = { test = 0.3 } }
recipe = { method = "svfl" }
[[party]]
name = "bank"
features = { file = "bank.csv" }
ids = { file = "bank.csv", column = "person" }
prepare = {}
model = { name = "linear", width = 4 }
[label_party]
name = "shop"
features = { file = "shop.csv" }
labels = { file = "shop.csv", column = "bought", task = "binary" }
ids = { file = "shop.csv", column = "person" }
prepare = {}
model = { name = "linear", width = 4 }
top = { name = "linear_top" }
"""


def _write(file: Path, heading: list[str], rows: list[list[object]]) -> None:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([heading, *rows])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    draw = random.Random(0)  # noqa: S311
    bank = [[person, draw.gauss(40, 9), draw.choice(TOWNS)] for person in PEOPLE]
    _write(tmp_path / "bank.csv", ["person", "age", "town"], bank)
    shop = [[person, draw.gauss(0, 1), draw.choice(("yes", "no"))] for person in PEOPLE]
    _write(tmp_path / "shop.csv", ["person", "spent", "bought"], shop)
    (tmp_path / "job.toml").write_text(JOB)
    job, out = load_job(tmp_path / "job.toml"), tmp_path / "run"
    save_job(out, resolved(tmp_path / "job.toml"), job)
    tw.train(job, callbacks=[], out=out)
    return load_run(out)


def _scores(run: Run, rows: SimulatedRows) -> dict[str, list[float]]:
    assert rows.ids is not None
    found = run.probabilities(rows.tables)
    return dict(zip(rows.ids.ids, found.tolist(), strict=True))


def test_ids_follow_the_split(run: Run) -> None:
    training, test = _scores(run, own_rows(run, Which.TRAINING)), _scores(run, own_rows(run, None))
    assert sorted([*training, *test]) == sorted(PEOPLE)
    assert _scores(run, own_rows(run, Which.ALL)) == training | test


def test_new_rows_are_prepared_as_the_training_rows_were(run: Run, tmp_path: Path) -> None:
    few = {name: tmp_path / f"few_{name}.csv" for name in ("bank", "shop")}
    for name, file in few.items():  # few rows, in another order: fitted on them, nothing would be the same
        heading, *rows = list(csv.reader((tmp_path / f"{name}.csv").read_text().splitlines()))
        _write(file, heading, [list(row) for row in (rows[5:9] if name == "bank" else reversed(rows[5:9]))])
    again, before = _scores(run, new_rows(run, few, {})), _scores(run, own_rows(run, Which.ALL))
    assert sorted(again) == PEOPLE[5:9]
    for person, scores in again.items():
        torch.testing.assert_close(torch.tensor(scores), torch.tensor(before[person]))


def test_a_run_without_its_preparation_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run" / "models" / "bank.preparation.json").unlink()
    with pytest.raises(BadInput, match=r"bank\.preparation\.json cannot be read"):
        new_rows(run, {name: tmp_path / f"{name}.csv" for name in ("bank", "shop")}, {})
