"""Bytes to the same score: svfl, the papers' methods and thin, on real data with private labels.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=1 python benchmarks/thin.py [--tasks mnist,credit] [--methods svfl,thin]
        [--seeds 0,1,2] [--json FILE]

Every run goes on to its last epoch, so that one run gives both the bytes to the target and the score at equal epochs.
Bytes are those of all training frames in both directions, headers included. A run that never gets to the target is
said to need more than it sent. Tasks:

    mnist, fashion   quadrants of the pixels / 255, 16 sigmoid units a party, sum, SGD 1.0 and 0.3, batches of 1,024
    movielens        MovieLens-1M, users against films, two towers of width 256, cosine, AdaGrad 0.02, batches of
                     4,096, two epochs; the target is what svfl scores after the first
    credit           default of credit card clients, two parties, 16 tanh units each, SGD 0.3, batches of 512; the
                     target is svfl's best less 0.002
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import nn

import thinwire as tw
from thinwire.base.process import share_memory_pool
from thinwire.engine.models import MODELS
from thinwire.engine.recipe import Recipe
from thinwire.lab.datasets import Scale, load_split
from thinwire.lab.datasets.vertical import VerticalData


@dataclass(frozen=True)
class Task:
    """A job up to its recipe and seed, and which score is to be reached: a number, or svfl's."""

    data: Callable[[], VerticalData]
    job: Callable[[VerticalData, Recipe, int], tw.Job]
    metric: str
    target: float | Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Run:
    """One run: what it cost to the target, and what it scored at the end."""

    task: str
    method: str
    seed: int
    target: float
    reached_round: int | None
    bytes_to_target: int | None
    bytes_in_all: int
    best: float
    last: float
    cpu_seconds: float


def pictures(name: str, lr: float, epochs: float) -> tuple[Callable[[], VerticalData], Callable[..., tw.Job]]:
    def job(data: VerticalData, recipe: Recipe, seed: int) -> tw.Job:
        torch.manual_seed(seed)
        parts = zip(data.names, data.features, data.test_features, strict=True)
        parties = [
            tw.FeatureParty(one, x.flatten(1), nn.Sequential(nn.Linear(196, 16), nn.Sigmoid()), test.flatten(1))
            for one, x, test in parts
        ]
        labels = tw.LabelParty("labels", data.labels, nn.Linear(16, 10), data.test_labels)
        return tw.Job(
            parties, labels, recipe, tw.SGD(lr=lr), batch_size=1024, epochs=epochs, seed=seed, eval_every=5,
            metrics=["accuracy"], diagnostics=False,
        )  # fmt: skip

    return (lambda: load_split(name, scale=Scale.UNIT)), job


def movielens(data: VerticalData, recipe: Recipe, seed: int) -> tw.Job:
    torch.manual_seed(seed)
    if data.label_features is None:
        raise ValueError("the films are the label party's")

    def tower(categories: Sequence[int], columns: int) -> nn.Module:
        made: nn.Module = MODELS["deep_tower"](
            list(categories), columns - len(categories), embedding_width=8, hidden=[256], width=256
        )
        return made

    users, films = data.categories["users"], data.categories["label"]
    bottom = tower(users, data.features[0].shape[1])
    party = tw.FeatureParty("users", data.features[0], bottom, data.test_features[0])
    labels = tw.LabelParty(
        "films", data.labels, MODELS["scaled_cosine"](), data.test_labels, features=data.label_features,
        test_features=data.test_label_features, bottom=tower(films, data.label_features.shape[1]), fusion="concat",
        loss=tw.losses.binary_cross_entropy,
    )  # fmt: skip
    adagrad = tw.AdaGrad(lr=0.02, initial_accumulator=1e-6)
    return tw.Job(
        [party], labels, recipe, adagrad, batch_size=4096, epochs=2, seed=seed, eval_every=10,
        metrics=["auc"], diagnostics=False,
    )  # fmt: skip


def credit(data: VerticalData, recipe: Recipe, seed: int) -> tw.Job:
    torch.manual_seed(seed)
    parts = zip(data.names, data.features, data.test_features, strict=True)
    parties = [
        tw.FeatureParty(
            one, x, nn.Sequential(nn.Linear(x.shape[1], 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh()), test
        )
        for one, x, test in parts
    ]
    labels = tw.LabelParty(
        "bank", data.labels, nn.Linear(32, 1), data.test_labels, fusion="concat", loss=tw.losses.binary_cross_entropy
    )
    return tw.Job(
        parties, labels, recipe, tw.SGD(lr=0.3), batch_size=512, epochs=30, seed=seed, eval_every=10, metrics=["auc"],
        diagnostics=False,
    )  # fmt: skip


TASKS = {
    "mnist": Task(*pictures("mnist", 1.0, 20), "accuracy", 0.94),
    "fashion": Task(*pictures("fashion_mnist", 0.3, 12), "accuracy", 0.80),
    "credit": Task(lambda: load_split("credit_card"), credit, "auc", lambda scores: max(scores) - 0.002),
    "movielens": Task(lambda: load_split("movielens", test_rows=20_000), movielens, "auc", lambda scores: scores[22]),
}
METHODS: dict[str, Callable[[], Recipe]] = {
    "svfl": tw.methods.svfl,
    "thin": tw.methods.thin,
    "thin-6": lambda: tw.methods.thin(reuse=6),
    "celu": lambda: tw.methods.celu(5, 6, 60.0),
    "efvfl": lambda: tw.methods.efvfl(tw.compress.TopK(0.05), labels="private"),
    "efvfl-qsgd": lambda: tw.methods.efvfl(tw.compress.QSGD(bits=4), labels="private"),
    "cvfl": lambda: tw.methods.cvfl(tw.compress.Uniform(4), local_steps=1, labels="private"),
}


def run(name: str, method: str, seed: int, data: VerticalData, target: float | None) -> tuple[Run, float]:
    """The run, and its target, which svfl may have to set."""
    task = TASKS[name]
    began = process_time()
    result = tw.train(task.job(data, METHODS[method](), seed), callbacks=[])
    scores = [event["test"][task.metric] for event in result.history]
    if target is None:
        target = task.target if isinstance(task.target, float) else task.target(scores)
    reached: dict[str, Any] | None = next(
        (event for event in result.history if event["test"][task.metric] >= target), None
    )
    found = Run(
        name, method, seed, target,
        None if reached is None else reached["round"],
        None if reached is None else reached["bytes"]["total"],
        result.bytes.total, max(scores), scores[-1], process_time() - began,
    )  # fmt: skip
    return found, target


def shown(runs: Sequence[Run]) -> None:
    print(
        f"\n{'task':<10} {'method':<11} {'MB to target':<30} {'svfl / it':>10} {'last score':>11} {'less svfl':>10}"
    )
    for name in dict.fromkeys(one.task for one in runs):
        mine = [one for one in runs if one.task == name]
        base = {one.seed: one for one in mine if one.method == "svfl"}
        for method in dict.fromkeys(one.method for one in mine):
            chosen = [one for one in mine if one.method == method]
            print(_line(name, method, chosen, base))


def _line(name: str, method: str, chosen: Sequence[Run], base: dict[int, Run]) -> str:
    costs = [
        f"> {one.bytes_in_all / 1e6:.3g}" if one.bytes_to_target is None else f"{one.bytes_to_target / 1e6:.3g}"
        for one in chosen
    ]
    spent = [one.bytes_to_target for one in chosen]
    theirs = [base[one.seed].bytes_to_target for one in chosen if one.seed in base]
    ratio = "-"
    if None not in spent and None not in theirs and len(theirs) == len(spent):
        ratio = f"{statistics.mean(t or 0 for t in theirs) / statistics.mean(s or 0 for s in spent):.1f}"
    last = statistics.mean(one.last for one in chosen)
    less = statistics.mean(one.last - base[one.seed].last for one in chosen if one.seed in base) if base else 0.0
    return f"{name:<10} {method:<11} {', '.join(costs):<30} {ratio:>10} {last:>11.4f} {less:>+10.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS), help="with commas between")
    parser.add_argument("--methods", default="svfl,thin", help=f"of {', '.join(METHODS)}; svfl first")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    runs: list[Run] = []
    for name in given.tasks.split(","):
        data = TASKS[name].data()
        for seed in map(int, given.seeds.split(",")):
            target = None
            for method in given.methods.split(","):
                one, target = run(name, method, seed, data, target)
                runs.append(one)
                print(one, file=sys.stderr, flush=True)
                if given.json:
                    given.json.write_text(json.dumps([vars(each) for each in runs], indent=1))
    shown(runs)


if __name__ == "__main__":
    share_memory_pool()
    main()
