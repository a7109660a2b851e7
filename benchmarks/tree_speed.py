"""What an exchange of boosted trees costs: against LightGBM's own fitting, and between two parties over mutual TLS.

    OMP_NUM_THREADS=1 python benchmarks/tree_speed.py [--repeats 3] [--wan ../shared/tools/wan]

In one process: 100,000 rows x 50 columns, half of them at each of two parties; a round of the simulator against the
library's fitting of the same two trees, in turns. Between two processes: 45,000 x 17, 100 exchanges, each party
fitting a tree in each, without the start of the processes; on loopback, and with --wan (root; a folder with up.sh and
down.sh) at 10 Mbit/s and 50 ms one way.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.network import shape_link
from benchmarks.ping_pong import free_port
from benchmarks.results import compare, middle
from thinwire.base.process import configure_grpc, share_memory_pool
from thinwire.engine.models.networks import BiasTop
from thinwire.net.pki.authority import issue

_ROWS, _COLUMNS = 100_000, 50
_ROUNDS = 20
_LEAVES = 31
Tables = tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.int64]]]


def make_table(rows: int, columns: int) -> Tables:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    score = x[:, 0] + x[:, 1] * x[:, columns // 2] + x[:, -1] + rng.standard_normal(rows)
    return x, (score > 0).astype(np.int64)


def simulated_ms(x: Any, y: Any) -> float:
    """The median round of two parties, after the first, which bins their tables."""
    halves = np.split(x, 2, axis=1)
    trees = [tw.learners.BoostedTrees(leaves=_LEAVES) for _ in halves]
    parties = [tw.FeatureParty(f"party{i}", *one) for i, one in enumerate(zip(halves, trees, strict=True))]
    label = tw.LabelParty("label", y, BiasTop(1), loss=tw.losses.binary_cross_entropy)
    job = tw.Job(
        parties, label, tw.methods.boosting(), epochs=_ROUNDS, eval_every=_ROUNDS + 1, metrics=["auc"], effort="fast"
    )
    times: list[float] = []
    tw.train(job, callbacks=[], on_round=lambda _: times.append(perf_counter()))
    return 1e3 * median(np.diff(times))


def library_ms(x: Any, y: Any) -> float:
    """The same two trees a round by LightGBM alone, from a gradient that is there."""
    import lightgbm

    settings = {
        "objective": "none", "num_leaves": _LEAVES, "min_data_in_leaf": 20, "lambda_l2": 1.0, "deterministic": True,
        "force_col_wise": True, "num_threads": 1, "verbosity": -1,
    }  # fmt: skip
    tables = [lightgbm.Dataset(half, params=settings).construct() for half in np.split(x, 2, axis=1)]
    boosters = [lightgbm.Booster(settings, table) for table in tables]
    z, times = np.zeros(len(y)), []
    for _ in range(_ROUNDS):
        gradient = (1 / (1 + np.exp(-z)) - y).astype(np.float32)
        curvature = np.maximum(np.abs(gradient) * (1 - np.abs(gradient)), 0.05).astype(np.float32)
        began = perf_counter()
        for booster in boosters:
            booster.update(fobj=partial(_give, gradient, curvature))
        times.append(perf_counter() - began)
        z += 0.1 * x[:, 0]
    return 1e3 * median(times[1:])


def _give(gradient: Any, curvature: Any, *_: Any) -> tuple[Any, Any]:
    """What an objective is to LightGBM."""
    return gradient, curvature


# Two real parties ------------------------------------------------------------------------------------------------


def write_job(folder: Path, rounds: int, address: str) -> Path:
    """45,000 x 17: nine columns at the bank, eight at the shop, which has the labels."""
    x, y = make_table(45_000, 17)
    np.savez(folder / "bank.npz", x=x[:, :9])
    np.savez(folder / "shop.npz", x=x[:, 9:], y=y)
    issue(folder / "certs", ["bank", "shop"])
    model = f'model = {{ name = "boosted_trees", width = 1, leaves = {_LEAVES} }}'
    (folder / "job.toml").write_text(
        f"""
[job]
epochs = {rounds}
eval_every = {rounds + 1}
metrics = ["auc"]
effort = "fast"
[recipe]
method = "boosting"
[network]
listen = "{address}"
address = "{address}"
checkpoint_seconds = 60
[[party]]
name = "bank"
features = {{ file = "bank.npz", key = "x" }}
{model}
[label_party]
name = "shop"
features = {{ file = "shop.npz", key = "x" }}
{model}
labels = {{ file = "shop.npz", key = "y" }}
top = {{ name = "bias_top", width = 1 }}
loss = "binary_cross_entropy"
"""
    )
    return folder / "job.toml"


def run_parties(address: str, spaces: Sequence[Sequence[str]] = ((), ()), rounds: int = 100) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        job = write_job(Path(folder), rounds, address)
        command = [sys.executable, __file__, "--party", str(job)]
        shop = [*spaces[0], *command, "shop", f"{folder}/run-shop"]
        bank = [*spaces[1], *command, "bank", f"{folder}/run-bank"]
        with subprocess.Popen(shop, stdout=subprocess.PIPE) as label:
            found = json.loads(subprocess.run(bank, stdout=subprocess.PIPE, check=True).stdout)
            label.communicate(timeout=120)
    return dict(found)


def _party(job: str, name: str, out: str) -> None:
    """Prints the seconds from the first exchange to the last, and the bytes of training."""
    from thinwire.job.party_view import read_party_view
    from thinwire.training.party.party_run import Audience
    from thinwire.training.party.startup import open_party_run

    torch.set_num_threads(1)
    began = perf_counter()
    run = open_party_run(
        read_party_view(job, name), Path(out), Audience(lambda _: None, lambda _: None, lambda _: None)
    )
    opened = perf_counter()
    summary = run.execute().summary
    seconds = {"seconds": perf_counter() - opened, "start_seconds": opened - began}
    print(json.dumps({**seconds, "bytes": summary["sent_bytes"] + summary["received_bytes"]}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--wan", type=Path, help="the folder of the tools that shape a link")
    asked = parser.parse_args()
    x, y = make_table(_ROWS, _COLUMNS)
    found = middle([compare(simulated_ms(x, y), library_ms(x, y)) for _ in range(asked.repeats)])
    print(
        f"one exchange of {_ROWS:,} x {_COLUMNS}, two parties: {found.ours:.1f} ms, LightGBM alone "
        f"{found.other:.1f} ms: {found.ratio:.2f}x"
    )
    local = run_parties(f"127.0.0.1:{free_port()}")
    print(
        f"45,000 x 17, 100 exchanges, loopback, mutual TLS: {local['seconds']:.1f} s, {local['bytes'] / 1e6:.2f} MB"
    )
    if asked.wan is not None:
        with shape_link(asked.wan, 10.0, 50.0) as spaces:
            far = run_parties("10.99.0.1:7443", spaces)
        print(f"  the same at 10 Mbit/s, 50 ms one way: {far['seconds']:.1f} s")
    return 0


if __name__ == "__main__":
    configure_grpc()
    share_memory_pool()
    if sys.argv[1:2] == ["--party"]:
        _party(*sys.argv[2:5])
    else:
        sys.exit(main())
