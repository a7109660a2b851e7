"""What a group saves: users hold one row for each user, or their columns in every rating; MovieLens-1M.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/one_to_many.py [--methods svfl,thin] [--batches 256,2048]

Rows, networks and optimiser are those of fewest_bytes.py's task "movielens": 60,000 ratings, of which 5,000 are
validation rows; the films are the label party's own. The number of rounds is the same with and without the group:
nothing stops early. The score is the best on validation rows. `--up-step` is thin's, of the runs with a group.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch

import thinwire as tw
from thinwire.base.process import share_memory_pool

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*
from benchmarks.tasks import TASKS, TaskData, build_job, load_data

_NAME = "movielens"


def find_owners(data: TaskData) -> list[torch.Tensor]:
    """Each rating's user: those with the same columns. Training rows, validation rows."""
    tables = [data.train.features[0], data.validation.features[0]]
    _, places = torch.unique(torch.cat(tables), dim=0, return_inverse=True)
    return list(places.split([len(table) for table in tables]))


def group_users(job: tw.Job, data: TaskData) -> tw.Job:
    """The same job, where the users' party holds each user once."""
    (party,), owners = job.parties, find_owners(data)
    every = torch.cat([data.train.features[0], data.validation.features[0]])
    first = torch.zeros(int(torch.cat(owners).max()) + 1, dtype=torch.long)
    first[torch.cat(owners)] = torch.arange(len(every))
    users = tw.FeatureParty(party.name, every[first], party.bottom, group=owners[0], validation_group=owners[1])
    return replace(job, parties=[users])


def measure(recipe: tw.Recipe, batch: int, grouped: bool, seed: int) -> tuple[tw.Result, tw.Job]:
    task, data = TASKS[_NAME], load_data(_NAME)
    settings = {"optimizer": tw.Adam(lr=task.lr), "batch_size": batch, "seed": seed, "patience": None}
    job = build_job(task, data, recipe, settings)
    job = group_users(job, data) if grouped else job
    return tw.train(job, callbacks=[]), job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="svfl,thin")
    parser.add_argument("--batches", default="256,2048")
    parser.add_argument("--up-step", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    share_memory_pool()
    print(
        "| method | batch | users hold | rows there | rounds | up, MB | down, MB | evaluation, MB | validation AUC |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for method in asked.methods.split(","):
        for batch in map(int, asked.batches.split(",")):
            for grouped in (False, True):
                thin = tw.methods.thin(up_step=asked.up_step if grouped else 2.0)
                recipe = {"svfl": tw.methods.svfl(), "thin": thin}[method]
                result, job = measure(recipe, batch, grouped, asked.seed)
                best = max(row["validation"]["auc"] for row in result.history)
                held = "a row a user" if grouped else "a row a rating"
                sizes = (result.bytes.up, result.bytes.down, result.bytes.evaluation)
                sent = " | ".join(f"{size / 1e6:.2f}" for size in sizes)
                rows, done = len(job.parties[0].features), result.history[-1]["round"]
                print(f"| {method} | {batch} | {held} | {rows} | {done} | {sent} | {best:.4f} |", flush=True)


if __name__ == "__main__":
    main()
