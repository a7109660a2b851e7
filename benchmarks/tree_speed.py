"""What an exchange of boosted trees costs: against LightGBM's own fitting, and between two parties over mutual TLS.

    OMP_NUM_THREADS=1 python benchmarks/tree_speed.py [--repeats 7] [--wan ../shared/tools/wan]

In one process: 100,000 rows x 50 columns, half of them at each of two parties; a round of the simulator against the
library's fitting of the same trees from the same derivatives, in turns and in seconds of computing, so that what else
the machine does counts for neither. Between two processes: 45,000 x 17, 100 exchanges, each party fitting a tree in
each, without the start of the processes; on loopback, and with --wan (root; a folder with up.sh and down.sh) at 10
Mbit/s and 50 ms one way.
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
from time import perf_counter, process_time
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.network import shape_link
from benchmarks.ping_pong import free_port
from benchmarks.results import compare, middle
from thinwire.base.process import configure_grpc, share_memory_pool
from thinwire.engine.models.learners import TreeFitter, list_settings
from thinwire.engine.models.networks import BiasTop
from thinwire.engine.wire.entropy import Effort
from thinwire.net.pki.authority import issue

_ROWS, _COLUMNS = 100_000, 50
_ROUNDS = 20
_LEAVES = 31
Tables = tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.int64]]]
Fit = tuple[Any, Any]  # gradient and curvature of every row


def make_table(rows: int, columns: int) -> Tables:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, columns), dtype=np.float32)
    score = x[:, 0] + x[:, 1] * x[:, columns // 2] + x[:, -1] + rng.standard_normal(rows)
    return x, (score > 0).astype(np.int64)


def train_rounds(x: Any, y: Any, effort: Effort) -> tuple[list[float], int]:
    """When each round of two parties ended, in seconds of computing; and the bytes of all."""
    halves = np.split(x, 2, axis=1)
    trees = [tw.learners.BoostedTrees(leaves=_LEAVES) for _ in halves]
    parties = [tw.FeatureParty(f"party{i}", *one) for i, one in enumerate(zip(halves, trees, strict=True))]
    label = tw.LabelParty("label", y, BiasTop(1), loss=tw.losses.binary_cross_entropy)
    times: list[float] = []
    job = tw.Job(
        parties, label, tw.methods.boosting(), epochs=_ROUNDS, eval_every=_ROUNDS + 1, metrics=["auc"], effort=effort
    )
    result = tw.train(job, callbacks=[], on_round=lambda _: times.append(process_time()))
    return times, result.bytes.total


def simulated_ms(x: Any, y: Any, effort: Effort) -> float:
    """The median round, after the first, which bins the parties' tables."""
    return float(1e3 * median(np.diff(train_rounds(x, y, effort)[0])))


def record_fits(x: Any, y: Any) -> list[Fit]:
    """What the parties' fitters are asked for, party after party and round after round: the same in every run."""
    fits: list[Fit] = []
    fit = TreeFitter.fit

    def note(fitter: TreeFitter, gradient: Any, curvature: Any) -> Any:
        fits.append((gradient.ravel().copy(), curvature.ravel().copy()))
        return fit(fitter, gradient, curvature)

    with patch.object(TreeFitter, "fit", note):
        train_rounds(x, y, "fast")
    return fits


def library_ms(x: Any, fits: Sequence[Fit]) -> float:
    """The same trees by LightGBM alone, from derivatives that are there: the median round after the first."""
    import lightgbm

    halves = np.split(x, 2, axis=1)
    settings = list_settings(tw.learners.BoostedTrees(leaves=_LEAVES), len(x))
    tables = [lightgbm.Dataset(half, params=settings).construct() for half in halves]
    boosters = [lightgbm.Booster(settings, table) for table in tables]
    times = []
    for start in range(0, len(fits), len(boosters)):
        began = process_time()
        for booster, derivatives in zip(boosters, fits[start:], strict=False):
            booster.update(fobj=partial(_give, derivatives))
        times.append(process_time() - began)
    return 1e3 * median(times[1:])


def _give(derivatives: Fit, *_: Any) -> Fit:
    """What an objective is to LightGBM."""
    return derivatives


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
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--wan", type=Path, help="the folder of the tools that shape a link")
    asked = parser.parse_args()
    x, y = make_table(_ROWS, _COLUMNS)
    fits = record_fits(x, y)
    for effort in ("fast", "small"):
        found = middle([compare(simulated_ms(x, y, effort), library_ms(x, fits)) for _ in range(asked.repeats)])
        sent = train_rounds(x, y, effort)[1] / _ROUNDS
        print(
            f"one exchange of {_ROWS:,} x {_COLUMNS}, two parties, effort {effort!r}: {found.ours:.1f} ms, "
            f"LightGBM alone {found.other:.1f} ms: {found.ratio:.2f}x; {sent:,.0f} bytes"
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
