"""What one exchange of codes costs and scores: MNIST, Fashion-MNIST and credit default.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/once.py [--tasks mnist,credit] [--seeds 0,1,2]
    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/once.py --epsilons 11,22,44,88

    mnist, fashion   quadrants; 16 principal directions at most and 17 bits per row and party; a network of two hidden
                     layers on the codes; 7,000 and 9,000 training rows, drawn by the seed, 1,500 validation rows
    credit           two parties, 6 bins per column, boosted trees on the codes; blocks of 6,000 rows until the
                     validation score has not risen for two of them, 2,400 validation rows

With --epsilons: credit default by randomised response, at so much epsilon a row and party in one release; all rows
are sent, and the number of bins (2, 3 or 6) is the one with the best mean validation score.

Training and validation codes are counted together; test codes are what predictions cost, and stand beside. Test rows
are looked at once, at the end of a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import thinwire as tw
from thinwire.base.process import share_memory_pool
from thinwire.lab.datasets import Scale, load_split
from thinwire.lab.datasets.vertical import VerticalData

_BINS = (2, 3, 6)  # to choose from, with noise


def divide(data: VerticalData, rows: int | None, validation_rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation rows, drawn by the seed."""
    order = torch.randperm(len(data.labels), generator=torch.Generator().manual_seed(seed))
    held, rest = order[:validation_rows], order[validation_rows:]
    return rest[:rows], held


def list_parties(
    data: VerticalData, train: Tensor, held: Tensor, encode: Callable[[int], nn.Module]
) -> list[tw.FeatureParty]:
    return [
        tw.FeatureParty(
            name, x.flatten(1)[train], encode(x[0].numel()), test.flatten(1), validation_features=x.flatten(1)[held]
        )
        for name, x, test in zip(data.names, data.features, data.test_features, strict=True)
    ]


def build_pictures(name: str, rows: int, seed: int) -> tw.Job:
    data = load_split(name, scale=Scale.UNIT)
    train, held = divide(data, rows, 1500, seed)
    torch.manual_seed(seed)
    parties = list_parties(data, train, held, lambda columns: tw.learners.PrincipalDirections(columns, 16, 17.0))
    layers: list[nn.Module] = [nn.BatchNorm1d(64)]
    for before, after in pairwise((64, 256, 128)):
        layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(0.3)]
    top = nn.Sequential(*layers, nn.Linear(128, 10))
    label = tw.LabelParty(
        "labels", data.labels[train], top, data.test_labels, validation_labels=data.labels[held], fusion="concat"
    )
    recipe = tw.methods.once(passes=60, patience=8)
    return tw.Job(parties, label, recipe, tw.Adam(lr=0.001, weight_decay=1e-4), epochs=1, metrics=["accuracy"])


def build_credit(seed: int, bins: int = 6, epsilon: float | None = None) -> tw.Job:
    data = load_split("credit_card")
    train, held = divide(data, None, 2400, seed)
    parties = list_parties(data, train, held, lambda columns: tw.learners.Bins(columns, bins))
    label = tw.LabelParty(
        "labels",
        data.labels[train],
        tw.learners.BoostedTrees(1, shrinkage=0.1, leaves=16),
        data.test_labels,
        validation_labels=data.labels[held],
        fusion="concat",
        loss=tw.losses.binary_cross_entropy,
    )
    noise = None if epsilon is None else tw.compress.RandomizedResponse(epsilon, bins)
    recipe = tw.methods.once(passes=300, patience=20, noise=noise)
    blocks: dict[str, Any] = {"batch_size": 6000, "eval_every": 1, "patience": 2} if noise is None else {}
    return tw.Job(parties, label, recipe, epochs=1, seed=seed, metrics=["auc"], **blocks)


TASKS: dict[str, Callable[[int], tw.Job]] = {
    "mnist": lambda seed: build_pictures("mnist", 7000, seed),
    "fashion": lambda seed: build_pictures("fashion_mnist", 9000, seed),
    "credit": build_credit,
}


def measure_noise(epsilon: float, seeds: Sequence[int]) -> None:
    """Test scores with the bins that do best on validation rows, on average; noise is drawn anew in every run."""
    tried: dict[int, list[tuple[float, float]]] = {bins: [] for bins in _BINS}
    for bins, seed in product(_BINS, seeds):
        summary = tw.train(build_credit(seed, bins, epsilon), callbacks=[]).summary()
        tried[bins].append((summary["validation"]["auc"], summary["test"]["auc"]))
        print(f"epsilon {epsilon:g}, {bins} bins, seed {seed}: validation auc {tried[bins][-1][0]:.4f}", flush=True)
    best = max(_BINS, key=lambda bins: fmean(validation for validation, _ in tried[bins]))
    scores = [test for _, test in tried[best]]
    shown = ", ".join(f"{score:.4f}" for score in scores)
    print(f"epsilon {epsilon:g}: {best} bins, test auc {shown}, mean {fmean(scores):.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epsilons", default="")
    asked = parser.parse_args()
    for epsilon in filter(None, asked.epsilons.split(",")):
        measure_noise(float(epsilon), [int(seed) for seed in asked.seeds.split(",")])
    for name in () if asked.epsilons else asked.tasks.split(","):
        found = []
        for seed in map(int, asked.seeds.split(",")):
            job = TASKS[name](seed)
            summary = tw.train(job, callbacks=[]).summary()
            metric = job.metrics[0]
            tested = summary["bytes"]["evaluation"] * job.test_rows // (job.test_rows + job.validation_rows)
            codes = summary["bytes"]["all"] - tested
            found.append(summary["test"][metric])
            sent = f"{codes / 1e3:.1f} kB, test codes {tested / 1e3:.1f} kB"
            print(f"{name}, seed {seed}: {sent}, {metric} {found[-1]:.4f}", flush=True)
        print(f"{name}: mean {fmean(found):.4f}")


if __name__ == "__main__":
    share_memory_pool()
    main()
