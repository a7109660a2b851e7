"""Boosted trees as bottom models on real tables: their score beside central trees, their bytes beside tuned svfl.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py search [--tables credit,bank] [--seeds 0]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py tune-svfl [--tables credit]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py judge [--tables credit] [--seeds 0,1,2,3,4]

The tables are those of benchmarks/defaults.py, each split between two companies.

`search` tries settings of the trees on validation rows alone, the same ones for every table. `tune-svfl` gives plain
split learning of networks 20 trials a table (learning rate, batch size, hidden layers, weight decay), also on
validation rows; the trial with the best score counts, and the bytes until its best evaluation. `judge` trains the job
that `thinwire init --model boosted_trees` writes and compares the delivered model on the test rows, seed by seed, with
scikit-learn's HistGradientBoostingClassifier on the joined table. Differences are means over seeds with a 95 %
bootstrap interval over test rows.

Results go to FILE as they come (--out, build/trees.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.defaults import TABLES, Record, Records, draw_scores, format_interval, write_settings
from thinwire.base.process import share_memory_pool
from thinwire.job.job_loader import load_job

_TRIALS = 20
_NETWORKS: dict[str, Sequence[str]] = {
    "optimizer.lr": ("0.001", "0.003", "0.01", "0.03"),
    "optimizer.weight_decay": ("0.0", "0.0001", "0.001", "0.01"),
    "job.batch_size": ("64", "256", "1024"),
    "hidden": ("[]", "[64]", "[128]"),
}
_OFF = ("job.baselines=false", "job.importance=false")


# Plain split learning, tuned -------------------------------------------------------------------------------------


def list_network_trials() -> list[dict[str, str]]:
    """The same for every table: our defaults first, then drawn once."""
    rng = np.random.default_rng(2)
    found = [{"optimizer.lr": "0.003", "optimizer.weight_decay": "0.001", "job.batch_size": "256", "hidden": "[64]"}]
    while len(found) < _TRIALS:
        trial = {key: str(rng.choice(list(values))) for key, values in _NETWORKS.items()}
        found += [trial] if trial not in found else []
    return found


def write_svfl(path: Path) -> Path:
    """The job that `init` writes, under plain split learning."""
    text = path.read_text().replace('method = "thin"\nreuse = 1\n', 'method = "svfl"\n')
    path.write_text(text)
    return path


def try_network(path: Path, trial: dict[str, str]) -> Record:
    result = tw.train(load_job(path, [*_OFF, *write_settings(trial, path)]), callbacks=[])
    delivered = result.summary()["delivered"]
    row = next(one for one in result.history if one["round"] == delivered["round"])
    sent = row["bytes"]
    return {
        "trial": trial,
        "validation": delivered["value"],
        "round": delivered["round"],
        "training_bytes": sent["total"],
        "bytes": sent["total"] + sent.get("evaluation", 0),
    }


def tune_svfl(tables: Sequence[str], _: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = write_svfl(TABLES[table](Path(folder)))
            for trial in list_network_trials():
                found = records.find(f"svfl {table} {json.dumps(trial)}", partial(try_network, path, trial))
                print(f"{table} {trial}: {found['validation']:.4f}, {found['bytes'] / 1e6:.2f} MB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune-svfl"])
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--out", type=Path, default=Path("build/trees.jsonl"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    {"tune-svfl": tune_svfl}[asked.what](asked.tables.split(","), seeds, Records(asked.out))
    return 0


if __name__ == "__main__":
    share_memory_pool()
    sys.exit(main())
