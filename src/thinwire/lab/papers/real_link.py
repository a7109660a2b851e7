"""The same runs between real processes over a really shaped link, beside the link's clock.

A folder of tools makes the link: `up.sh BITS_PER_SECOND ONE_WAY_MICROSECONDS` between the network namespaces wanA
(10.99.0.1, the label party's) and wanB, and `down.sh` ends it. Both need root.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.engine.channel.link import Link
from thinwire.job.job_file import toml_text
from thinwire.job.job_loader import build_link
from thinwire.lab.datasets.vertical import LABEL, VerticalData
from thinwire.lab.papers.experiment import Curve, Experiment
from thinwire.lab.papers.jobs import add_categories
from thinwire.lab.papers.runs import ExperimentPlan, ExperimentRun, load_plan_data
from thinwire.net.pki import authority
from thinwire.report.record import Evaluation
from thinwire.storage import layout
from thinwire.storage.json_file import read_lines
from thinwire.training.result import meets

_LABELS = "labels"


def write_job_folder(
    folder: Path, experiment: Experiment, curve: Curve, seed: int, data: VerticalData, address: str
) -> Path:
    """The job file, for parties that meet at `address`; with the weights and batches of the simulated run."""
    if curve.settings.lr_factors:
        raise BadInput(f"{experiment.name}: lr_factors are in epochs; a job file has none")
    folder.mkdir(parents=True, exist_ok=True)
    tables = [
        *zip(data.names, data.features, data.test_features, strict=True),
        (_LABELS, data.labels, data.test_labels),
    ]
    if data.label_features is not None and data.test_label_features is not None:
        tables.append((LABEL, data.label_features, data.test_label_features))
    for name, training, test in tables:
        np.savez(folder / f"{name}.npz", train=training.numpy(), test=test.numpy())
    authority.issue(folder / "certs", [*data.names, LABEL], [address.rpartition(":")[0]], 30)
    document = {
        "job": _settings(curve, seed),
        "recipe": dict(curve.recipe),
        "optimizer": curve.settings.optimizer,
        "network": {"listen": address, "address": address, "certs": "certs"},
        "party": [_party_section(experiment, name, data) for name in data.names],
        "label_party": _label_section(experiment, data),
    }
    path = folder / layout.JOB
    path.write_text(toml_text(document))
    return path


def _settings(curve: Curve, seed: int) -> dict[str, Any]:
    kept = {"epochs", "batch_size", "eval_every", "metrics", "effort"}
    return {**curve.settings.model_dump(include=kept, exclude_none=True), "seed": seed}


def _party_section(experiment: Experiment, name: str, data: VerticalData) -> dict[str, Any]:
    model = add_categories(experiment.model.bottom, data.categories.get(name))
    return {"name": name, **_tables("features", name), "model": model}


def _tables(kind: str, name: str) -> dict[str, Any]:
    return {key: {"file": f"{name}.npz", "key": part} for key, part in ((kind, "train"), (f"test_{kind}", "test"))}


def _label_section(experiment: Experiment, data: VerticalData) -> dict[str, Any]:
    model = experiment.model
    own = model.model_dump(include={"top", "fusion", "loss", "class_weights"}, exclude_none=True)
    found = {"name": LABEL, **_tables("labels", _LABELS), **own}
    if data.label_features is not None and model.label_bottom is not None:
        found |= {
            **_tables("features", LABEL),
            "model": add_categories(model.label_bottom, data.categories.get(LABEL)),
        }
    return found


# The same runs between real processes over a really shaped link, beside the link's clock --------------------------


_ADDRESS = "10.99.0.1:7443"
_MOST_SECONDS = 3600


class LinkFailed(ThinwireError):
    """A link or a party could not be started, or ended badly."""


@dataclass(frozen=True)
class RealRun:
    """One curve over the real link: its evaluations, with the seconds that really passed.

    Of training: what evaluations took is counted apart, as their bytes are, and so is the way to the first round.
    """

    curve: str
    seed: int
    history: list[Evaluation]
    same_scores: bool  # as in the simulated run, to the bit

    def seconds_to(self, metric: str, value: float) -> float | None:
        """Until the test metric was first this good."""
        return next((self._trained(row) for row in self.history if meets(row, (metric, value))), None)

    def seconds(self) -> float:
        return self._trained(self.history[-1])

    def _trained(self, row: Evaluation) -> float:
        return _but_evaluations(row) - _but_evaluations(self.history[0])


def _but_evaluations(row: Evaluation) -> float:
    return float(row.seconds - row.diagnostics["evaluation_seconds"])


def run_on_real_link(plan: ExperimentPlan, tools: Path, simulated: list[ExperimentRun]) -> Iterator[RealRun]:
    """Every curve once, with the first seed."""
    experiment = plan.experiment()
    seed = experiment.seeds[0]
    for curve in experiment.curves:
        link = curve.settings.link
        if link is None or link.parties:
            raise BadInput(f"{experiment.name}: curve {curve.name!r} has no link to shape that all parties share")
        twin = next(one for one in simulated if one.curve == curve.name and one.seed == seed)
        folder = plan.out / "real" / curve.folder
        with shape_link(tools, build_link(link, [])):
            history = _run_parties(plan, experiment, curve, seed, folder)
        scores = [row.test for row in history], [row["test"] for row in twin.history]
        yield RealRun(curve.name, seed, history, scores[0] == scores[1])


@contextmanager
def shape_link(tools: Path, link: Link) -> Iterator[None]:
    """The link is up inside."""
    if not (tools / "up.sh").exists():
        raise BadInput(f"--real-link: {tools} holds no up.sh")
    there = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout  # noqa: S607
    if "wanA" in there or "wanB" in there:
        raise BadInput("--real-link: namespaces wanA and wanB already exist; end that link with down.sh first")
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "WAN_STATE": state}
        rate, delay = str(int(link.bandwidth_mbit * 1e6)), str(int(link.latency_ms * 1000))
        try:
            _script(tools / "up.sh", environment, rate, delay)
            yield
        finally:
            _script(tools / "down.sh", environment)


def _script(script: Path, environment: dict[str, str], *arguments: str) -> None:
    ended = subprocess.run(  # noqa: S603
        ["/bin/bash", str(script), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # the link itself stays, and would hold a pipe open
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    if ended.returncode:
        raise LinkFailed(f"{script.name} failed ({ended.returncode}); it needs root, iproute2 and /dev/net/tun")


def _run_parties(
    plan: ExperimentPlan, experiment: Experiment, curve: Curve, seed: int, folder: Path
) -> list[Evaluation]:
    """The label party's evaluations."""
    data = load_plan_data(plan)
    job = write_job_folder(folder, experiment, curve, seed, data, _ADDRESS)
    sides = {LABEL: "wanA", **dict.fromkeys(data.names, "wanB")}
    with tempfile.TemporaryDirectory() as runs:
        started = {name: _start_party(job, name, side, Path(runs) / name) for name, side in sides.items()}
        try:
            for name, process in started.items():
                if process.wait(_MOST_SECONDS):
                    said = (Path(runs) / f"{name}.log").read_text()[-400:]
                    raise LinkFailed(f"party {name!r} ended with {process.returncode}: {said}")
        finally:
            for process in started.values():
                process.kill()
                process.wait()
        return [Evaluation.model_validate(line) for line in read_lines(Path(runs) / LABEL / layout.EVENTS)]


def _start_party(job: Path, name: str, side: str, out: Path) -> subprocess.Popen[bytes]:
    """A process of its own, on its side of the link."""
    thinwire = Path(sys.executable).with_name("thinwire")
    command = ["ip", "netns", "exec", side, str(thinwire), "party", str(job), "--name", name, "--yes"]
    log = (out.parent / f"{name}.log").open("wb")
    with log:
        return subprocess.Popen(  # noqa: S603
            [*command, "--out", str(out)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
