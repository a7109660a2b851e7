"""Predictions of jobs whose tables were prepared: the same rows score the same however they come."""

from __future__ import annotations

import csv
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import here  # noqa: F401  the commands, in this process
from processes import run

Here = Callable[..., subprocess.CompletedProcess[str]]
SHORT = ("--out", "run", "--set", "job.epochs=1")
CLASSES = ("no", "perhaps", "yes")


def write(folder: Path, task: str) -> None:
    rng = random.Random(0)  # noqa: S311
    people: list[dict[str, Any]] = [
        {"id": f"p{k:03}", "age": rng.randint(18, 80), "job": rng.choice(["clerk", "smith", "nurse"])}
        for k in range(120)
    ]
    with (folder / "bank.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "age", "job"])
        writer.writeheader()
        writer.writerows(rng.sample(people, len(people)))
    with (folder / "shop.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["id", "spent", "label"])
        for one in people:
            spent = rng.random() * 100
            level = one["age"] + spent
            lines.writerow([one["id"], round(spent, 2), level if task == "value" else CLASSES[int(level // 70)]])


def command(folder: Path, *words: str) -> None:
    shown = run(*words, folder=folder)
    assert shown.returncode == 0, shown.stderr


def read(file: Path) -> dict[str, list[float]]:
    with file.open(newline="") as opened:
        rows = list(csv.reader(opened))
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows[1:]}


@pytest.mark.parametrize("task", ["classes", pytest.param("value", marks=pytest.mark.long)])
def test_new_files_score_as_the_rows_of_the_job(task: str, tmp_path: Path) -> None:
    write(tmp_path, task)
    words = ("--party", "bank=bank.csv", "--party", "shop=shop.csv", "--label", "shop:label")
    command(tmp_path, "init", *words, "--model", "mlp")
    command(tmp_path, "align", "job.toml")
    command(tmp_path, "train", "job.toml", "--out", "run", "--set", "job.epochs=3")
    command(tmp_path, "predict", "run", "--out", "kept.csv", "--table", "all")
    files = ("--features", "bank=bank.csv", "--features", "shop=shop.csv")
    command(tmp_path, "predict", "run", "--out", "new.csv", *files)
    kept, new = read(tmp_path / "kept.csv"), read(tmp_path / "new.csv")
    assert len(kept) > 90
    for one, scores in kept.items():
        assert new[one] == pytest.approx(scores, rel=1e-5, abs=1e-6)
    if task == "value":
        spread = [scores[0] for scores in new.values()]
        assert min(spread) > -100
        assert max(spread) > 40  # in the label's own units
    else:
        head = (tmp_path / "new.csv").read_text().splitlines()[0]
        assert head == '"id","probability_no","probability_perhaps","probability_yes"'


def test_new_files_are_read_as_the_training_files_were(here: Here, tmp_path: Path) -> None:  # noqa: F811
    """The run remembers how its files write cells: new files of the same format score the same."""
    write(tmp_path, "classes")
    for name in ("bank", "shop"):
        text = (tmp_path / f"{name}.csv").read_text().replace(",", ";").replace(".", ",").replace("smith", "Müller")
        lines = text.splitlines(keepends=True)
        (tmp_path / f"{name}.csv").write_text("".join(lines[:-3] if name == "bank" else lines), "latin-1")
    (tmp_path / "train").mkdir()
    for name in ("bank", "shop"):
        (tmp_path / f"{name}.csv").rename(tmp_path / "train" / f"{name}.csv")
    words = ("--party", "bank=bank.csv", "--party", "shop=shop.csv", "--label", "shop:label")
    for command in (("init", *words, "--encoding", "latin-1"), ("align", "job.toml"), ("train", "job.toml", *SHORT)):
        done = here(*command, folder=tmp_path / "train")
        assert done.returncode == 0, done.stderr
    (tmp_path / "train" / "run").rename(tmp_path / "run")
    files = ("--features", "bank=train/bank.csv", "--features", "shop=train/shop.csv")
    for out, more in (("kept.csv", ("--table", "all")), ("new.csv", files)):
        done = here("predict", "run", "--out", out, "--json", *more, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["unmatched"] == {
            "bank": {"rows": 0, "of": 117, "missing_at": {}, "only_here": 0},
            "shop": {"rows": 3, "of": 120, "missing_at": {"bank": 3}, "only_here": 3},
        }
        assert (
            "shop: 3 of 120 rows have no match at the other parties and get no score (ids: 3 missing at bank)"
            in done.stderr
        )
    kept, new = read(tmp_path / "kept.csv"), read(tmp_path / "new.csv")
    assert len(kept) == len(new) == 117
    for one, scores in kept.items():
        assert new[one] == pytest.approx(scores, rel=1e-5, abs=1e-6)
    (tmp_path / "plain.csv").write_text((tmp_path / "train" / "shop.csv").read_text("latin-1").replace(",", "."))
    refused = here("predict", "run", "--out", "x.csv", *files[:2], "--features", "shop=plain.csv", folder=tmp_path)
    assert refused.returncode == 2
    assert "plain.csv: line 2, column 'spent' holds" in refused.stderr


def test_a_file_without_a_column_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "classes")
    command(tmp_path, "init", "--party", "bank=bank.csv", "--party", "shop=shop.csv", "--label", "shop:label")
    command(tmp_path, "align", "job.toml")
    command(tmp_path, "train", "job.toml", "--out", "run", "--set", "job.epochs=1")
    (tmp_path / "less.csv").write_text("id,job\np001,clerk\n")
    shown = run(
        "predict", "run", "--out", "x.csv", "--features", "bank=less.csv", "--features", "shop=shop.csv",
        folder=tmp_path,
    )  # fmt: skip
    assert shown.returncode == 2
    assert "less.csv: there is no column 'age'" in shown.stderr
    assert not (tmp_path / "x.csv").exists()
