"""A party on several ranks against the same party in one process: how much faster, and whether it is the same model.

    python benchmarks/ranks.py [--ranks 2] [--turns 3] [--rounds 8] [--batch 64] [--image 16] [--norm batch]
    python benchmarks/ranks.py --losses svfl,thin,celu,efvfl [--ranks 2,4] [--party clinic] [--parallel fsdp2]
    python benchmarks/ranks.py --losses svfl,thin --last-bits 5 [--party clinic]

Speed: a feature party with a ResNet-18 on made-up images and a label party, real processes on this machine, every
process with one thread; one rank and several take turns, and the ratio is the median over turns of the seconds that
the rounds took. Start-up is not in it. It needs as many idle cores as ranks.

Losses: the three organisations of examples/three_organisations, 100 rounds, evaluated on all training rows after
each; the largest difference to the simulator's one process. `clinic`, the label party, gets the laboratory's columns.

Last bits: the same run in one process, against itself with the last bits of the party's first weights changed: what
any other order of a sum may come to.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script finds its siblings as benchmarks.*

import thinwire as tw
from benchmarks.ping_pong import free_port
from thinwire.job.job_file import toml_text
from thinwire.job.job_loader import load_job
from thinwire.net.pki.authority import issue

EXAMPLE = Path(__file__).parents[1] / "examples/three_organisations"
ROUNDS = 100
RECIPES: dict[str, dict[str, Any]] = {
    "svfl": {"method": "svfl"},
    "thin": {"method": "thin"},
    "celu": {"method": "celu", "capacity": 5, "reuse": 5},
    "efvfl": {"method": "efvfl", "compressor": {"name": "TopK", "fraction": 0.1}, "warm_start": True},
}
_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run_parties(folder: Path, job: dict[str, Any], ranks: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Every party of the job as processes of its own, so many of them; what each says at the end."""
    port = free_port()
    job["network"] = {"listen": f"127.0.0.1:{port}", "address": f"127.0.0.1:{port}", "wait_seconds": 300}
    (folder / "job.toml").write_text(toml_text(job))
    names = [job["label_party"]["name"], *(party["name"] for party in job["party"])]
    issue(folder / "certs", names)
    started = {name: _start(folder, name, ranks.get(name, 1)) for name in names}
    printed = {name: process.communicate()[0] for name, process in started.items()}
    for name, process in started.items():
        if process.returncode:
            raise SystemExit(f"{name} failed:\n{(folder / f'{name}.err').read_text()[-4000:]}")
    return {name: json.loads(out) for name, out in printed.items()}


def _start(folder: Path, name: str, ranks: int) -> subprocess.Popen[bytes]:
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    party = ["-m", "thinwire", "party", "job.toml", "--name", name, "--out", f"runs/{name}", "--yes", "--json"]
    command = [sys.executable, *several, *party]
    with (folder / f"{name}.err").open("wb") as errors:
        return subprocess.Popen(command, cwd=folder, env=_ENVIRONMENT, stdout=subprocess.PIPE, stderr=errors)


# How much faster ----------------------------------------------------------------------------------------------------


def measure_seconds(given: argparse.Namespace, ranks: int) -> float:
    """Of the rounds, at a feature party on so many ranks."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, rows, rng = Path(scratch), 4 * given.batch, np.random.default_rng(0)
        np.savez(folder / "camera.npz", x=rng.normal(size=(rows, 3, given.image, given.image)).astype(np.float32))
        np.savez(folder / "clinic.npz", y=rng.integers(0, 2, rows))
        camera = {"name": "resnet18", "width": 16, "base_width": given.width, "norm": given.norm}
        job = {
            "job": {"epochs": given.rounds / 4, "batch_size": given.batch, "eval_every": given.rounds},
            "recipe": {"method": "svfl"},
            "optimizer": {"name": "adam", "lr": 0.001},
            "party": [{"name": "camera", "features": {"file": "camera.npz", "key": "x"}, "model": camera}],
            "label_party": {
                "name": "clinic",
                "labels": {"file": "clinic.npz", "key": "y"},
                "top": {"name": "linear_top", "classes": 2},
            },
        }
        seconds: float = run_parties(folder, job, {"camera": ranks})["camera"]["seconds"]
        return seconds


def compare_speed(given: argparse.Namespace) -> None:
    for ranks in given.ranks:
        ratios = []
        for turn in range(given.turns):
            one, several = measure_seconds(given, 1), measure_seconds(given, ranks)
            ratios.append(one / several)
            load = os.getloadavg()[0]
            print(
                f"turn {turn}: 1 rank {one:.1f} s, {ranks} ranks {several:.1f} s, {ratios[-1]:.2f}x, load {load:.1f}"
            )
        print(f"{ranks} ranks: {median(ratios):.2f}x as fast as one (median of {len(ratios)})", flush=True)


# The same model -----------------------------------------------------------------------------------------------------


def write_example(folder: Path, party: str, recipe: dict[str, Any]) -> dict[str, Any]:
    """The three organisations' job and tables; `clinic` gets the laboratory's columns, where it has the ranks."""
    shutil.copy(EXAMPLE / "make_data.py", folder)
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, capture_output=True)
    job = tomllib.loads((EXAMPLE / "job.toml").read_text())
    job["recipe"] = recipe
    job["job"] |= {"epochs": ROUNDS / 7, "eval_every": 1}
    if party == "clinic":
        job["label_party"] |= {key: job["party"][1][key] for key in ("features", "model")}
        del job["party"][1]
    for section in (*job["party"], job["label_party"]):
        section |= {f"test_{key}": section[key] for key in ("features", "labels") if key in section}
    return job


def compare_losses(given: argparse.Namespace, name: str, ranks: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        job = write_example(folder, given.party, RECIPES[name])
        sections = (*job["party"], job["label_party"])
        next(one for one in sections if one["name"] == given.party)["parallel"] = given.parallel
        run_parties(folder, job, {given.party: ranks})
        events = map(json.loads, (folder / "runs/clinic/events.jsonl").read_text().splitlines())
        losses = {event["round"]: event["test"]["loss"] for event in events}
        expected = _train_in_one_process(load_job(folder / "job.toml"))
    if losses.keys() != expected.keys():
        raise SystemExit(f"{name}: {len(losses)} evaluations on {ranks} ranks, {len(expected)} in one process")
    _print_difference(f"{name}, {given.party} on {ranks} ranks", losses, expected)


def compare_last_bits(given: argparse.Namespace, name: str) -> None:
    """One process against itself, with every weight of the party's bottom model moved by its last bit or not."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        job = write_example(folder, given.party, RECIPES[name])
        (folder / "job.toml").write_text(toml_text(job))
        expected = _train_in_one_process(load_job(folder / "job.toml"))
        for seed in range(given.last_bits):
            moved = load_job(folder / "job.toml")
            rng = torch.Generator().manual_seed(seed)
            for weights in moved.modules()[given.party].parameters():
                up = torch.nextafter(weights.data, torch.full_like(weights.data, torch.inf))
                weights.data = torch.where(torch.rand(weights.shape, generator=rng) < 0.5, up, weights.data)
            found = _train_in_one_process(moved)
            _print_difference(f"{name}, {given.party}'s weights moved by a bit, draw {seed}", found, expected)


def _train_in_one_process(job: tw.Job) -> dict[int, float]:
    return {event["round"]: event["test"]["loss"] for event in tw.train(job).history}


def _print_difference(what: str, losses: dict[int, float], expected: dict[int, float]) -> None:
    """The largest, the first round with more than a hundredth of it, and how large it was before that round."""
    differences = {number: abs(losses[number] - expected[number]) for number in sorted(expected)}
    most = max(differences.values())
    jump = next((number for number, one in differences.items() if one > most / 100), 0)
    before = max((one for number, one in differences.items() if number < jump), default=0.0)
    print(
        f"{what}: differs by {most:.1e}, by {before:.1e} at most before round {jump}, "
        f"loss {expected[0]:.2f} to {expected[ROUNDS]:.3f}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=lambda text: [int(one) for one in text.split(",")], default=[2])
    parser.add_argument("--losses", type=lambda text: text.split(","), help="recipes; without it, speed")
    parser.add_argument("--party", choices=["imaging", "clinic"], default="imaging")
    for name, default in (("turns", 3), ("rounds", 8), ("batch", 64), ("image", 16), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--last-bits", type=int, default=0, help="instead of ranks: so many draws of last bits")
    parser.add_argument("--parallel", choices=["ddp", "fsdp2"], default="ddp")
    parser.add_argument("--norm", choices=["batch", "group"], default="batch")
    given = parser.parse_args(arguments)
    if given.losses is None:
        compare_speed(given)
    for name in given.losses or ():
        if given.last_bits:
            compare_last_bits(given, name)
            continue
        for ranks in given.ranks:
            compare_losses(given, name, ranks)


if __name__ == "__main__":
    main()
