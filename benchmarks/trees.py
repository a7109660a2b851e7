"""Boosted trees as bottom models on real tables: their score beside central trees, their bytes beside tuned svfl.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py search [--tables credit,bank] [--seeds 0]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py tune-svfl [--tables credit]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/trees.py judge [--tables credit] [--seeds 0,1,2,3,4]

The tables are those of benchmarks/defaults.py, each split between two companies.

`search` tries settings of the trees on validation rows alone, the same ones for every table. `tune-svfl` gives plain
split learning of networks 20 trials a table (learning rate, batch size, hidden layers, weight decay), also on
validation rows; the trial with the best score counts, and the bytes until its best evaluation. `judge` trains the job
that `thinwire init --model boosted_trees` writes and compares the delivered model on the test rows, seed by seed,
with scikit-learn's HistGradientBoostingClassifier on the joined table. Differences are means over seeds with a 95 %
bootstrap interval over test rows.

Results go to FILE as they come (--out, build/trees.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.defaults import (
    TABLES,
    Network,
    Record,
    Records,
    draw_scores,
    fit_baseline,
    format_interval,
    list_tables,
    write_settings,
)
from thinwire.base.process import share_memory_pool
from thinwire.job.job_file import toml_text
from thinwire.job.job_loader import load_job

_TRIALS = 20
_NETWORKS: dict[str, Sequence[str]] = {
    "optimizer.lr": ("0.001", "0.003", "0.01", "0.03"),
    "optimizer.weight_decay": ("0.0", "0.0001", "0.001", "0.01"),
    "job.batch_size": ("64", "256", "1024"),
    "hidden": ("[]", "[64]", "[128]"),
}
_TEMPLATE = "trees"
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


# Trees ------------------------------------------------------------------------------------------------------------


def list_tree_trials() -> list[dict[str, Any]]:
    """A first setting, those that differ from it in one key, and faster ones with more regularisation."""
    first = {"shrinkage": 0.15, "leaves": 31, "l2": 1.0, "trees": 1, "down_step": 0.5}
    changes: list[dict[str, Any]] = [
        {"shrinkage": 0.1}, {"shrinkage": 0.25}, {"leaves": 16}, {"l2": 10.0}, {"trees": 2}, {"down_step": 1.0},
        {"curvature": 0.25}, {"shrinkage": 0.25, "l2": 10.0}, {"shrinkage": 0.25, "l2": 10.0, "leaves": 16},
        {"shrinkage": 0.2, "l2": 10.0}, {"shrinkage": 0.25, "l2": 30.0}, {"shrinkage": 0.4, "l2": 30.0},
    ]  # fmt: skip
    return [first, *({**first, **change} for change in changes)]


def write_trees(path: Path, trial: dict[str, Any] | None = None) -> Path:
    """The job that `init --model boosted_trees` writes, in this setting."""
    document = tomllib.loads(path.read_text())
    settings = dict(trial or {})
    if "down_step" in settings:
        document["recipe"]["down_step"] = settings.pop("down_step")
    for section in (*document["party"], document["label_party"]):
        section["model"] |= settings
    found = path.with_name("trees.toml")
    found.write_text(toml_text(document))
    return found


def try_trees(path: Path, trial: dict[str, Any], seed: int) -> Record:
    summary = tw.train(load_job(write_trees(path, trial), [f"job.seed={seed}", *_OFF]), callbacks=[]).summary()
    delivered = summary["delivered"]
    return {"trial": trial, "validation": delivered["value"], "round": delivered["round"], "bytes": summary["bytes"]}


def search(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    regrets: dict[str, list[float]] = {}
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder), _TEMPLATE)
            found: dict[str, float] = {}
            for trial in list_tree_trials():
                keys = {seed: f"trees {table} {json.dumps(trial)} {seed}" for seed in seeds}
                runs = [records.find(key, partial(try_trees, path, trial, seed)) for seed, key in keys.items()]
                found[json.dumps(trial)] = fmean(run["validation"] for run in runs)
                sent = fmean(run["bytes"]["all"] for run in runs) / 1e6
                print(f"{table} {trial}: {found[json.dumps(trial)]:.4f}, {sent:.2f} MB", flush=True)
        for name, value in found.items():
            regrets.setdefault(name, []).append(max(found.values()) - value)
    for name in sorted(regrets, key=lambda one: fmean(regrets[one])):
        each = ", ".join(f"{one:.4f}" for one in regrets[name])
        print(f"{fmean(regrets[name]):.4f}  {name}  ({each})")


# Judge: test rows, once a seed ------------------------------------------------------------------------------------


def judge_once(path: Path, seed: int) -> Record:
    """The delivered trees and scikit-learn's on the joined table: the same rows, gaps and categories as they are."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    job = load_job(write_trees(path), [f"job.seed={seed}", *_OFF])
    central = HistGradientBoostingClassifier(random_state=seed)
    found = {"central trees": fit_baseline(central, job, partial(list_tables, job))}
    result = tw.train(job, callbacks=[])
    with torch.no_grad():
        found["together"] = as_logits(Network(job).eval()(list_tables(job, "test_")))
    alone = HistGradientBoostingClassifier(random_state=seed)
    label = job.label_party
    found["label party alone"] = fit_baseline(alone, job, lambda rows: [getattr(label, f"{rows}features")])
    summary = result.summary()
    kept = {key: summary[key] for key in ("bytes", "delivered", "rounds")}
    return {**draw_scores(job, found), **kept}


def as_logits(outputs: Tensor) -> Tensor:
    """Of two classes where there is one logit, as a baseline's probabilities are."""
    return torch.cat([torch.zeros_like(outputs), outputs], dim=1) if outputs.shape[1] == 1 else outputs


def judge(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder), _TEMPLATE)
            runs = [records.find(f"judge {table} {seed}", partial(judge_once, path, seed)) for seed in seeds]
        means = {name: fmean(run["scores"][name] for run in runs) for name in runs[0]["scores"]}
        listed = ", ".join(f"{name} {value:.4f}" for name, value in means.items())
        print(f"{table} ({runs[0]['metric']}, {len(seeds)} seeds): {listed}")
        for name in means.keys() - {"together"}:
            print(f"  together - {name}: {format_interval([run['differences'][name] for run in runs])}")
        sent = fmean(run["bytes"]["all"] for run in runs)
        print(f"  {fmean(run['rounds'] for run in runs):.0f} exchanges, {sent / 1e6:.2f} MB in all")
        tuned = records.list(f"svfl {table} ")
        if tuned:
            best = max(tuned, key=lambda one: float(one["validation"]))
            ratio = best["bytes"] / sent
            print(
                f"  svfl's best of {len(tuned)} trials needed {best['bytes'] / 1e6:.1f} MB: {ratio:.0f} times as many"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"search": search, "tune-svfl": tune_svfl, "judge": judge}
    parser.add_argument("what", choices=list(commands))
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default=None)
    parser.add_argument("--out", type=Path, default=Path("build/trees.jsonl"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in (asked.seeds or ("0,1,2,3,4" if asked.what == "judge" else "0")).split(",")]
    commands[asked.what](asked.tables.split(","), seeds, Records(asked.out))
    return 0


if __name__ == "__main__":
    share_memory_pool()
    sys.exit(main())
