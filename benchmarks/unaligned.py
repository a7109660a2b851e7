"""What `[pretrain]` is worth where few rows are aligned: bottom models that begin with all rows of their party.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/unaligned.py [--tasks mnist,credit] [--seeds 0,1,2]

Networks and test rows are those of benchmarks/tasks.py. A twentieth of the training rows, drawn by the seed, is
aligned and has labels; a fifth of these are validation rows. With pre-training each party's bottom model first learns
to rebuild all its training rows, aligned or not; nothing is sent for it. Then split learning (`svfl`) on the aligned
rows, with early stopping.

Pre-training takes five epochs. The learning rate, that of the task or a third of it, is chosen on validation rows,
seed by seed and for each side by itself; the test score is that of the chosen one.

Results go to FILE as they come (--out, build/unaligned.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.defaults import Record, Records
from benchmarks.tasks import TASKS, Rows, TaskData, build_job, load_data
from thinwire.base.process import share_memory_pool

_ALIGNED, _HELD_OUT = 0.05, 0.2
_EPOCHS, _PATIENCE, _BATCH_ROWS = 40, 5, 128
_PRETRAINING = 5  # epochs


@dataclass(frozen=True)
class Setting:
    """What is chosen on validation rows; no epochs are no pre-training."""

    lr: float
    pretraining: int

    def __str__(self) -> str:
        return f"lr {self.lr:g}, {self.pretraining} epochs of pre-training"


def list_settings(task: str, pretrains: bool) -> Iterator[Setting]:
    for lr in (TASKS[task].lr, TASKS[task].lr / 3):
        yield Setting(lr, _PRETRAINING if pretrains else 0)


def align_few(data: TaskData, seed: int) -> tuple[TaskData, Tensor]:
    """The data with its aligned rows alone, and the numbers of all others."""
    order = torch.randperm(len(data.train.labels), generator=torch.Generator().manual_seed(seed))
    aligned = round(_ALIGNED * len(order))
    held = round(_HELD_OUT * aligned)
    validation, train = select_rows(data.train, order[:held]), select_rows(data.train, order[held:aligned])
    return replace(data, train=train, validation=validation), order[aligned:]


def select_rows(rows: Rows, numbers: Tensor) -> Rows:
    own = rows.label_features
    return Rows([x[numbers] for x in rows.features], None if own is None else own[numbers], rows.labels[numbers])


def build_trial(name: str, setting: Setting, seed: int) -> tw.Job:
    data, task = load_data(name), TASKS[name]
    few, others = align_few(data, seed)
    task = replace(task, epochs=_EPOCHS, patience=_PATIENCE, eval_rows=len(few.train.labels))
    pretraining = tw.learners.Pretraining(epochs=setting.pretraining) if setting.pretraining else None
    settings = {"seed": seed, "batch_size": _BATCH_ROWS, "optimizer": tw.Adam(lr=setting.lr)}
    job = build_job(task, few, tw.methods.svfl(), {**settings, "pretraining": pretraining})
    for party, x, test in zip(job.parties, data.train.features, data.test.features, strict=True):
        party.unaligned_features, party.test_features = x[others], test
    job.label_party.test_labels = data.test.labels
    return job


def try_setting(name: str, setting: Setting, seed: int) -> Record:
    """Test rows are scored once, at the end of the run; only those of the chosen setting are looked at."""
    summary = tw.train(build_trial(name, setting, seed), callbacks=[]).summary()
    return {"validation": summary["delivered"]["value"], "test": summary["test"][TASKS[name].metric]}


def compare(name: str, seed: int, records: Records) -> tuple[float, float]:
    """Test scores without pre-training and with it."""
    found = []
    for pretrains in (False, True):
        tried = {
            setting: records.find(f"{name} {seed} {setting}", partial(try_setting, name, setting, seed))
            for setting in list_settings(name, pretrains)
        }
        best = max(tried, key=lambda setting: tried[setting]["validation"])
        print(f"{name}, seed {seed}: {best}: {tried[best]['test']:.4f}", flush=True)
        found.append(tried[best]["test"])
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="mnist,fashion,credit")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=Path("build/unaligned.jsonl"))
    asked = parser.parse_args()
    records = Records(asked.out)
    for name in asked.tasks.split(","):
        pairs = [compare(name, int(seed), records) for seed in asked.seeds.split(",")]
        without, having = (fmean(side) for side in zip(*pairs, strict=True))
        print(f"{name}, {TASKS[name].metric}: {without:.4f} without pre-training, {having:.4f} with it", flush=True)


if __name__ == "__main__":
    share_memory_pool()
    main()
