"""The defaults of `thinwire init --model mlp` on real tables: how they were chosen, and what their model is worth.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/defaults.py search [--tables credit,bank] [--seeds 0,1]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/defaults.py judge [--tables credit] [--seeds 0,1,2,3,4]

    credit     default of credit card clients: person and limit / bills and payments
    bank       bank marketing without `duration`: client / campaign and economy
    icu        PhysioNet 2012, 48 hours as a table of means, extremes and last values: vitals / laboratory
    covertype  forest cover type, 40,000 of its places: terrain / soil and wilderness

`search` tries settings on validation rows alone, the same ones for every table, and prints each one's mean distance
to the best setting of a table: the smallest is the default. No test row is looked at.

`judge` trains the job as `init --model mlp` writes it and compares the delivered model on the test rows, seed by
seed, with the same network trained in one place with early stopping, with logistic regression and with boosted trees
of scikit-learn on the joined table, and with the label party alone. Differences are means over seeds with a 95 %
bootstrap interval over test rows.

Results go to FILE as they come (--out, build/defaults.jsonl); the same command resumes.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.process import share_memory_pool
from thinwire.engine.models.losses import cross_entropy
from thinwire.engine.models.metrics import metric
from thinwire.job.job_loader import load_job
from thinwire.job.wizard import JobAnswers, write_job
from thinwire.lab.datasets.dataset_files import find_data_folder
from thinwire.lab.datasets.tabular_sets import BANK_MARKETING, COVTYPE, CREDIT_CARD, TabularSet

Floats = NDArray[np.float64]
Record = dict[str, Any]

_COVERTYPE_ROWS = 40_000
_NETWORKS = "tabular"  # the template of `init --model mlp`
_BOOTSTRAPS = 1000
_TRIALS = 12  # settings of a search
_VITALS: tuple[str, ...] = (
    "DiasABP",
    "FiO2",
    "GCS",
    "HR",
    "MAP",
    "MechVent",
    "NIDiasABP",
    "NIMAP",
    "NISysABP",
    "RespRate",
    "SaO2",
)
_VITALS += ("SysABP", "Temp", "Urine", "Weight")
_SPACE: dict[str, Sequence[str]] = {
    "optimizer.weight_decay": ("0.0", "0.0001", "0.001", "0.01"),
    "optimizer.lr": ("0.001", "0.003", "0.01"),
    "job.batch_size": ("64", "256"),
    "hidden": ("[64]", "[128]"),
}


# The tables, as two companies would have them --------------------------------------------------------------------


def _place(table: TabularSet) -> Path:
    folder = find_data_folder(None, table.source)
    files = (folder / place for place in table.source.places if place.endswith(".parquet"))
    return next(file for file in files if file.exists())


def write_two(table: pa.Table, sides: Mapping[str, Sequence[str]], label: str, folder: Path, template: str) -> Path:
    """A Parquet file for each side, the label in the second one, and the job that `init` writes for them."""
    ids = pa.array([f"row-{number:06d}" for number in range(len(table))])
    names = list(sides)
    for name, columns in sides.items():
        held = table.select([*columns, *([label] if name == names[1] else [])]).append_column("id", ids)
        pq.write_table(held, folder / f"{name}.parquet")
    files = {name: folder / f"{name}.parquet" for name in names}
    write_job(JobAnswers(template, files, (names[1], label), dict.fromkeys(files, "id")), folder / "job.toml")
    return folder / "job.toml"


def _write_known(known: TabularSet, folder: Path, template: str, rows: int | None = None) -> Path:
    table = pq.read_table(_place(known))
    if rows is not None:
        chosen = np.sort(np.random.default_rng(0).choice(len(table), rows, replace=False))
        table = table.take(pa.array(chosen))
    label = next(name for name in known.label if name in table.column_names)
    sides = {name: list(columns) for name, columns in known.parties.items()}
    return write_two(table, sides, label, folder, template)


def write_icu(folder: Path, template: str = _NETWORKS) -> Path:
    """Of every measurement its mean, extremes and last value: what one would make of a series for a table."""
    held = np.load(Path(os.environ["THINWIRE_DATA"]) / "icu" / "physionet2012_48h_ab.npz", allow_pickle=False)
    columns: dict[str, Floats] = {}
    for number, name in enumerate(held["params"]):
        columns |= {f"{name}_{what}": found for what, found in summarise(held["x"][:, :, number]).items()}
    vitals = [column for column in columns if column.rpartition("_")[0] in _VITALS]
    columns |= {str(name): held["static"][:, number] for number, name in enumerate(held["static_names"])}
    table = pa.table({name: pa.array(found, from_pandas=True) for name, found in columns.items()})
    table = table.append_column("died", pa.array(held["y"].astype(int)))
    rest = [name for name in columns if name not in vitals]
    return write_two(table, {"bedside": vitals, "laboratory": rest}, "died", folder, template)


def summarise(series: Floats) -> dict[str, Floats]:
    """[stays, hours] with gaps -> one value a stay; NaN where nothing was measured."""
    seen = ~np.isnan(series)
    last = series.shape[1] - 1 - seen[:, ::-1].argmax(axis=1)
    count = seen.sum(axis=1)
    total = np.where(seen, series, 0).sum(axis=1)
    found = {
        "mean": total / np.maximum(count, 1),
        "min": np.where(seen, series, np.inf).min(axis=1),
        "max": np.where(seen, series, -np.inf).max(axis=1),
        "last": series[np.arange(len(series)), last],
    }
    return {name: np.where(count > 0, values, np.nan) for name, values in found.items()}


def write_credit(folder: Path, template: str = _NETWORKS) -> Path:
    return _write_known(CREDIT_CARD, folder, template)


def write_bank(folder: Path, template: str = _NETWORKS) -> Path:
    return _write_known(BANK_MARKETING, folder, template)


def write_covertype(folder: Path, template: str = _NETWORKS) -> Path:
    return _write_known(COVTYPE, folder, template, _COVERTYPE_ROWS)


TABLES: dict[str, Callable[..., Path]] = {
    "credit": write_credit,
    "bank": write_bank,
    "icu": write_icu,
    "covertype": write_covertype,
}


# What was done already --------------------------------------------------------------------------------------------


class Records:
    """One JSON object per line; what is there is not computed again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text().splitlines() if file.exists() else []
        self._known: dict[str, Record] = {one["key"]: one for one in map(json.loads, lines)}

    def list(self, start: str) -> list[Record]:
        """Those whose key starts so."""
        return [one for key, one in self._known.items() if key.startswith(start)]

    def find(self, key: str, compute: Callable[[], Record]) -> Record:
        if key not in self._known:
            began = perf_counter()
            found = {"key": key, **compute(), "seconds": perf_counter() - began}
            self._known[key] = found
            with self._file.open("a") as file:
                file.write(json.dumps(found) + "\n")
        return self._known[key]


# Search: validation rows alone ------------------------------------------------------------------------------------


def list_trials() -> Iterator[dict[str, str]]:
    """A first setting, those that differ from it in one key, then some that were drawn once for all tables."""
    first = {"optimizer.lr": "0.003", "optimizer.weight_decay": "0.0", "job.batch_size": "256", "hidden": "[64]"}
    rng = np.random.default_rng(1)
    single = ({**first, key: value} for key, values in _SPACE.items() for value in values)
    drawn = ({key: str(rng.choice(list(values))) for key, values in _SPACE.items()} for _ in range(1000))
    seen: list[dict[str, str]] = []
    for trial in chain([first], single, drawn):
        if trial not in seen and len(seen) < _TRIALS:
            seen.append(trial)
            yield trial


def write_settings(trial: dict[str, str], path: Path) -> list[str]:
    """As `--set` takes them; every party has the same hidden layers."""
    import tomllib

    parties = [one["name"] for one in tomllib.loads(path.read_text())["party"]]
    places = [*(f"party.{name}.model.hidden" for name in parties), "label_party.model.hidden"]
    plain = [f"{key}={value}" for key, value in trial.items() if key != "hidden"]
    return [*plain, *(f"{place}={trial['hidden']}" for place in places)]


def try_settings(path: Path, trial: dict[str, str], seed: int) -> Record:
    off = ["job.baselines=false", "job.importance=false"]
    settings = [f"job.seed={seed}", *off, *write_settings(trial, path)]
    summary = tw.train(load_job(path, settings), callbacks=[]).summary()
    best = summary["best"]
    return {
        "trial": trial,
        "seed": seed,
        "validation": best["value"],
        "round": best["round"],
        "bytes": summary["bytes"],
    }


def search(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    regrets: dict[str, list[float]] = {}
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder))
            found: dict[str, float] = {}
            for trial in list_trials():
                runs = []
                for seed in seeds:
                    key = f"search {table} {json.dumps(trial)} {seed}"
                    runs.append(records.find(key, partial(try_settings, path, trial, seed))["validation"])
                found[json.dumps(trial)] = fmean(runs)
                print(f"{table} {trial}: {found[json.dumps(trial)]:.4f}", flush=True)
        best = max(found.values())
        for name, value in found.items():
            regrets.setdefault(name, []).append(best - value)
    for name in sorted(regrets, key=lambda one: fmean(regrets[one])):
        each = ", ".join(f"{one:.4f}" for one in regrets[name])
        print(f"{fmean(regrets[name]):.4f}  {name}  ({each})")


# Judge: the default job on test rows -------------------------------------------------------------------------------


class Network(nn.Module):
    """A job's bottom models, their sum, and its top model, in one piece."""

    def __init__(self, job: tw.Job) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(
            copy.deepcopy(party.bottom) for party in job.everyone if party.bottom is not None
        )
        self.top = copy.deepcopy(job.label_party.top)

    def forward(self, tables: Sequence[Tensor]) -> Tensor:
        h = torch.stack([bottom(x) for bottom, x in zip(self.bottoms, tables, strict=True)]).sum(dim=0)
        outputs: Tensor = self.top(h)
        return outputs


def list_tables(job: tw.Job, rows: str) -> list[Tensor]:
    return [getattr(party, f"{rows}features") for party in job.everyone if party.features is not None]


def train_in_one_place(job: tw.Job) -> Tensor:
    """Test outputs of the same network with the same early stopping: a plain loop with its own shuffles."""
    network, label = Network(job), job.label_party
    spec = job.optimizer
    optimizer = torch.optim.Adam(
        network.parameters(), lr=spec.lr_at(0, 1), weight_decay=getattr(spec, "weight_decay", 0)
    )
    tables, rng = list_tables(job, ""), torch.Generator().manual_seed(job.seed)
    score = metric(job.metrics[0])
    best, kept, waited = -float("inf"), copy.deepcopy(network.state_dict()), 0
    for _ in range(int(job.epochs)):
        for rows in torch.randperm(job.rows, generator=rng).split(job.batch_size or job.rows):
            optimizer.zero_grad()
            cross_entropy(network([x[rows] for x in tables]), label.labels[rows]).mean().backward()
            optimizer.step()
        with torch.no_grad():
            value = score.compute(network(list_tables(job, "validation_")), label.validation_labels)
        waited += 1
        if value > best:
            best, kept, waited = value, copy.deepcopy(network.state_dict()), 0
        if job.patience is not None and waited >= job.patience:
            break
    network.load_state_dict(kept)
    with torch.no_grad():
        outputs: Tensor = network(list_tables(job, "test_"))
    return outputs


def fit_baseline(model: Any, job: tw.Job, tables: Callable[[str], list[Tensor]]) -> Tensor:
    """Test outputs of a scikit-learn model of these tables, trained on training rows alone."""
    x, x_test = (torch.cat(tables(rows), dim=1).numpy() for rows in ("", "test_"))
    model.fit(x, job.label_party.labels.numpy())
    return torch.log(torch.from_numpy(model.predict_proba(x_test)).clamp(min=1e-12))


def judge_once(path: Path, seed: int) -> tuple[tw.Job, dict[str, Tensor], Record]:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    job = load_job(path, [f"job.seed={seed}", "job.baselines=false", "job.importance=false"])
    found = {"one place": train_in_one_place(job)}
    result = tw.train(job, callbacks=[])
    with torch.no_grad():
        found["together"] = Network(job).eval()(list_tables(job, "test_"))
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    label = job.label_party
    found["logistic regression"] = fit_baseline(logistic, job, lambda rows: list_tables(job, rows))
    trees = HistGradientBoostingClassifier(random_state=seed)
    found["boosted trees"] = fit_baseline(trees, job, lambda rows: list_tables(job, rows))
    alone = HistGradientBoostingClassifier(random_state=seed)
    found["label party alone"] = fit_baseline(alone, job, lambda rows: [getattr(label, f"{rows}features")])
    return job, found, result.summary()


def judge(tables: Sequence[str], seeds: Sequence[int], records: Records) -> None:
    for table in tables:
        with TemporaryDirectory() as folder:
            path = TABLES[table](Path(folder))
            runs = [records.find(f"judge {table} {seed}", partial(_judged, path, seed)) for seed in seeds]
        names = list(runs[0]["scores"])
        said = ", ".join(f"{name} {fmean(run['scores'][name] for run in runs):.4f}" for name in names)
        sent = fmean(run["bytes"]["all"] for run in runs)
        print(f"{table} ({runs[0]['metric']}, {len(seeds)} seeds): {said}; {sent / 1e6:.2f} MB in all")
        changed = max(abs(run["as_scored"] - run["scores"]["together"]) for run in runs)
        print(f"  scoring at 8 bits per value changes the score by {changed:.5f} at most")
        for name in names:
            if name != "together":
                print(f"  together - {name}: {format_interval([run['differences'][name] for run in runs])}")


def format_interval(differences: Sequence[Sequence[float]]) -> str:
    """The mean over seeds, and a 95 % interval; each seed's differences are of all test rows, then of bootstraps."""
    draws = np.mean(differences, axis=0)
    low, high = np.quantile(draws[1:], [0.025, 0.975])
    return f"{100 * draws[0]:+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}"


def draw_scores(job: tw.Job, outputs: dict[str, Tensor]) -> Record:
    """Every model's score on the test rows, and what "together" is above each: of all rows, then of bootstraps."""
    name, labels = job.metrics[0], job.label_party.test_labels
    score = metric(name)
    rng = np.random.default_rng(0)  # the same rows for every seed: differences are paired
    samples = [
        torch.arange(len(labels)),
        *(torch.from_numpy(rng.integers(0, len(labels), len(labels))) for _ in range(_BOOTSTRAPS)),
    ]
    drawn = {one: [score.compute(said[rows], labels[rows]) for rows in samples] for one, said in outputs.items()}
    ours = np.array(drawn["together"])
    return {
        "metric": name,
        "scores": {one: values[0] for one, values in drawn.items()},
        "differences": {
            one: (ours - np.array(values)).tolist() for one, values in drawn.items() if one != "together"
        },
    }


def _judged(path: Path, seed: int) -> Record:
    job, outputs, summary = judge_once(path, seed)
    return {
        **draw_scores(job, outputs),
        "as_scored": summary["test"][job.metrics[0]],  # by embeddings as they travelled
        "delivered": summary["delivered"],
        "rounds": summary["rounds"],
        "bytes": summary["bytes"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "judge"])
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default=None)
    parser.add_argument("--out", type=Path, default=Path("build/defaults.jsonl"))
    asked = parser.parse_args()
    seeds = [int(seed) for seed in (asked.seeds or ("0" if asked.what == "search" else "0,1,2,3,4")).split(",")]
    {"search": search, "judge": judge}[asked.what](asked.tables.split(","), seeds, Records(asked.out))
    return 0


if __name__ == "__main__":
    share_memory_pool()
    sys.exit(main())
