"""What noise costs on real data: accuracy of pbm on MNIST beside its honest epsilon.

    THINWIRE_DATA=FOLDER OMP_NUM_THREADS=2 python benchmarks/pbm_mnist.py [--epochs 5] [--seeds 1] [--json]

FOLDER holds mnist/ with the four official files. Four parties with a quadrant of the pixels each, 16 tanh units a
party, batches of 256, Adam. Test rows are looked at once, in the end, by the same noisy sum as the training rows; the
column "clean" is the same model with exact sums, as only a simulator can look at it. The first line is split learning
without any noise. epsilon is of the releases (delta 1e-5), against the label party alone and against all others
together; from end to end it is infinite where the bottom models learn from raw rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import thinwire as tw
from lab.datasets.real_mnist import quadrants
from thinwire.base.process import share_memory_pool
from thinwire.engine.privacy import DPBottom, TrainedOnRawRows
from thinwire.engine.privacy.dp_bottom import Training
from thinwire.engine.recipe import Recipe

WIDTH, PARTIES, BATCH = 16, 4, 256
SETTINGS = [(1, 0.25), (4, 0.05), (4, 0.15), (4, 0.25), (16, 0.05), (16, 0.15), (16, 0.25), (64, 0.15), (64, 0.25)]
PRIVATE = [(16, 0.25, 1.0, 1.0), (16, 0.25, 1.0, 4.0), (4, 0.25, 1.0, 8.0)]  # clip, noise multiplier


@dataclass(frozen=True)
class Line:
    """One setting."""

    what: str
    accuracy: float
    clean_accuracy: float
    label_party: float | str  # epsilon of the releases
    all_others: float | str
    end_to_end: float | str
    up_mb: float


def job(recipe: Recipe, training: Training, epochs: float, seed: int) -> tw.Job:
    x, y = quadrants("train")
    xt, yt = quadrants("t10k")
    torch.manual_seed(seed)
    bottoms = [nn.Sequential(nn.Linear(196, WIDTH), nn.Tanh()) for _ in range(PARTIES)]
    return tw.Job(
        [tw.FeatureParty(f"q{k}", x[k], bottoms[k], xt[k]) for k in range(PARTIES)],
        tw.LabelParty("labels", y, nn.Linear(WIDTH, 10), yt),
        recipe,
        tw.Adam(lr=0.003),
        batch_size=BATCH,
        epochs=epochs,
        seed=seed,
        eval_every=10**9,
        diagnostics=False,
        effort="fast",
        training=training,
    )


def line(what: str, recipe: Recipe, training: Training, epochs: float, seeds: int) -> Line:
    scores, clean, privacy, up = [], [], {}, 0.0
    for seed in range(seeds):
        given = job(recipe, training, epochs, seed)
        result = tw.train(given, callbacks=[])
        scores.append(result.history[-1]["test"]["accuracy"])
        clean.append(_clean(given))
        privacy = {row["observer"]: row for row in result.summary()["privacy"][0]["observers"]}
        up = result.bytes.up / 1e6
    return Line(
        what,
        statistics.mean(scores),
        statistics.mean(clean),
        privacy["label_party"]["releases_epsilon"],
        privacy["all_others"]["releases_epsilon"],
        privacy["label_party"]["end_to_end_epsilon"],
        up,
    )


def _clean(given: tw.Job) -> float:
    xt, yt = quadrants("t10k")
    with torch.no_grad():
        summed: Any = sum(party.bottom(x) for party, x in zip(given.parties, xt, strict=True))
        outputs: Tensor = given.label_party.top(summed)
    return float((outputs.argmax(1) == yt).float().mean())


def shown(epsilon: float | str) -> str:
    return f"{epsilon:8.3g}" if isinstance(epsilon, float) else "infinite"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=float, default=5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    lines: list[Line] = []

    def add(what: str, recipe: Recipe, training: Training) -> None:
        lines.append(line(what, recipe, training, asked.epochs, asked.seeds))
        if not asked.json:
            one = lines[-1]
            print(
                f"{one.what:36}{one.accuracy:9.1%}{one.clean_accuracy:9.1%}{shown(one.label_party):>13}"
                f"{shown(one.all_others):>13}{shown(one.end_to_end):>13}{one.up_mb:9.1f}",
                flush=True,
            )

    if not asked.json:
        print(f"{asked.epochs:g} epochs{'':28} accuracy    clean  label party   all others   end to end    MB up")
    add("no noise", tw.methods.svfl(), TrainedOnRawRows())
    for trials, beta in SETTINGS:
        add(f"b {trials}, beta {beta}", tw.methods.pbm(trials, beta), TrainedOnRawRows())
    for trials, beta, clip, noise in PRIVATE:
        add(f"b {trials}, beta {beta}, DPBottom s {noise:g}", tw.methods.pbm(trials, beta), DPBottom(clip, noise))
    if asked.json:
        print(json.dumps([asdict(one) for one in lines], indent=2))


if __name__ == "__main__":
    share_memory_pool()
    main()
