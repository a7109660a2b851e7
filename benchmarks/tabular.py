"""From files to a model as `thinwire init --model mlp` writes it: two parties against one, and against each alone.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/tabular.py [--tasks credit,icu] [--seeds 0,1,2]
        [--json FILE]

    credit   default of credit card clients: person and limit against bills and payments, two Parquet files with an id
    icu      PhysioNet 2012, 48 hours: bedside against laboratory, two NPZ files of series with masks

Every network is judged on the same test rows after its last epoch; none is picked by its test score.

    together   the job as it was written: recipe thin
    svfl       the same job without compression or cached steps
    central    the same two bottom models and top model in one plain torch loop, with its own shuffles
    a, b       one party's bottom model and the top model, in the same loop, with the labels
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow.parquet
import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.process import share_memory_pool
from thinwire.engine.models.losses import cross_entropy
from thinwire.engine.models.metrics import metric
from thinwire.job.job_loader import load_job
from thinwire.job.wizard import JobAnswers, write_job
from thinwire.lab.datasets import VITALS_AND_LABS, PhysioNet2012, load_split
from thinwire.lab.datasets.dataset_files import find_data_folder
from thinwire.lab.datasets.tabular_sets import CREDIT_CARD

BAR = 0.005  # of AUC below the central network
LABEL = "default.payment.next.month"


def credit(folder: Path) -> Path:
    """Two Parquet files, as two companies would have them."""
    source = find_data_folder(None, CREDIT_CARD.source)
    file = next(
        source / place
        for place in CREDIT_CARD.source.places
        if (source / place).suffix == ".parquet" and (source / place).exists()
    )
    table = pyarrow.parquet.read_table(file)
    for name, columns in CREDIT_CARD.parties.items():
        label = [LABEL] if name == "bills" else []
        pyarrow.parquet.write_table(table.select(["ID", *columns, *label]), folder / f"{name}.parquet")
    files = {name: folder / f"{name}.parquet" for name in ("person", "bills")}
    write_job(JobAnswers("tabular", files, ("bills", LABEL), dict.fromkeys(files, "ID")), folder / "job.toml")
    return folder / "job.toml"


def icu(folder: Path) -> Path:
    """Two NPZ files of series; the laboratory holds the labels."""
    data = load_split(PhysioNet2012(masks=True), VITALS_AND_LABS)
    labels = {"died": data.labels.numpy(), "died_test": data.test_labels.numpy()}
    for name, x, x_test in zip(data.names, data.features, data.test_features, strict=True):
        more: dict[str, Any] = labels if name == "laboratory" else {}
        np.savez(folder / f"{name}.npz", x=x.numpy(), x_test=x_test.numpy(), **more)
    files = {name: folder / f"{name}.npz" for name in data.names}
    write_job(JobAnswers("series", files, ("laboratory", "died")), folder / "job.toml")
    return folder / "job.toml"


TASKS: dict[str, Callable[[Path], Path]] = {"credit": credit, "icu": icu}


class Network(nn.Module):
    """Some of a job's bottom models, their sum, and its top model, in one piece."""

    def __init__(self, bottoms: Sequence[nn.Module], top: nn.Module) -> None:
        super().__init__()
        self.bottoms = nn.ModuleList(bottoms)
        self.top = top

    def forward(self, *x: Tensor) -> Tensor:
        h = torch.stack([bottom(part) for bottom, part in zip(self.bottoms, x, strict=True)]).sum(dim=0)
        outputs: Tensor = self.top(h)
        return outputs


def trained_here(job: tw.Job, parties: Sequence[int], seed: int) -> float:
    """AUC of a plain torch loop over the features of some parties, the label party last."""
    label = job.label_party
    held = [
        *((p.bottom, p.features, p.test_features) for p in job.parties),
        (label.bottom, label.features, label.test_features),
    ]
    chosen = [held[place] for place in parties]
    bottoms = [copy.deepcopy(bottom) for bottom, _, _ in chosen if bottom is not None]
    network = Network(bottoms, copy.deepcopy(label.top))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(int(job.epochs)):
        for rows in torch.randperm(job.rows, generator=rng).split(job.batch_size or job.rows):
            optimizer.zero_grad()
            cross_entropy(network(*(x[rows] for _, x, _ in chosen)), label.labels[rows]).mean().backward()
            optimizer.step()
    with torch.no_grad():
        return metric("auc").compute(network.eval()(*(x for _, _, x in chosen)), label.test_labels)


def scores(path: Path, seed: int) -> dict[str, float]:
    """AUC on the test rows of every way to train."""
    settings = [f"job.seed={seed}", "job.diagnostics=false", "job.eval_every=1000000"]
    found: dict[str, float] = {}
    for name, more in (("together", []), ("svfl", ['recipe={method="svfl"}'])):
        job = load_job(path, [*settings, *more])
        found[name] = tw.train(job, callbacks=[]).summary()["test"]["auc"]
    for name, parties in (("central", (0, 1)), ("a", (0,)), ("b", (1,))):
        found[name] = trained_here(load_job(path, settings), parties, seed)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="credit,icu")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path, default=None)
    asked = parser.parse_args()
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    results: dict[str, dict[str, list[float]]] = {}
    met = True
    for task in asked.tasks.split(","):
        began = perf_counter()
        with TemporaryDirectory() as folder:
            path = TASKS[task](Path(folder))
            runs = [scores(path, seed) for seed in seeds]
        results[task] = {name: [run[name] for run in runs] for name in runs[0]}
        mean = {name: statistics.mean(values) for name, values in results[task].items()}
        good = mean["together"] >= mean["central"] - BAR and mean["together"] > max(mean["a"], mean["b"])
        met &= good
        print(f"{task}: {', '.join(f'{name} {value:.4f}' for name, value in mean.items())}", end="")
        print(f"; together - central {mean['together'] - mean['central']:+.4f}", end="")
        print(f"; {'met' if good else 'NOT MET'}; {perf_counter() - began:.0f} s", flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    share_memory_pool()
    sys.exit(main())
