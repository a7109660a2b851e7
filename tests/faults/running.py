"""Real parties in processes of their own: a job folder, its parties, and what becomes of them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

import processes
from faults.faulty import Plan
from faults.tally import Tally
from thinwire.net.pki.authority import issue
from thinwire.storage.private_state import PrivateState

LABEL = "clinic"
FEATURES = ("bank", "shop", "post")
EVERYBODY = (*FEATURES, LABEL)
ROLES = (LABEL, "shop")  # one of each kind
RECIPE = '{ method = "efvfl", compressor = { name = "TopK", fraction = 0.3 }, labels = "private" }'

_SLOW = '''
import os
import time

import torch

from thinwire.learners import Bins, BoostedTrees, PrincipalDirections


def take_time():
    time.sleep(float(os.environ.get("PAUSE_MS", "0")) / 1000)


class Slow(torch.nn.Module):
    """A small network that takes its time, so that a fault can strike in the middle of a run."""

    def __init__(self, in_features, width):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(in_features, 8), torch.nn.Tanh(), torch.nn.Linear(8, width)
        )

    def forward(self, x):
        take_time()
        return torch.tanh(self.layers(x.flatten(1)))  # bounded, as noised recipes want it


class SlowTrees(BoostedTrees):
    """Small trees that take their time."""

    def add(self, nodes):
        take_time()
        super().add(nodes)


class SlowDirections(PrincipalDirections):
    """Codes that take their time."""

    def forward(self, x):
        take_time()
        return super().forward(x)


class SlowBins(Bins):
    """The same, for noise."""

    def __init__(self, in_features, width, bins):
        super().__init__(in_features, bins)

    def forward(self, x):
        take_time()
        return super().forward(x)
'''


@dataclass(frozen=True)
class JobKind:
    """What makes two runs the same run."""

    recipe: str = RECIPE
    epochs: float = 20  # of six rounds
    batches: str = "derived"
    width: int = 4
    rows: int = 240
    training: str = "raw_rows"
    batches_an_epoch: int = 6
    model: str = "Slow, in_features = 6"
    eval_every: int | None = None
    sections: str = ""  # more of the job file

    @property
    def has_noise(self) -> bool:
        return "pbm" in self.recipe or "noise" in self.recipe

    @property
    def rounds(self) -> int:
        return int(self.batches_an_epoch * self.epochs)


NOISY = JobKind(recipe='{ method = "pbm", trials = 8, beta = 0.2 }', epochs=40, training="frozen")


# The processes ----------------------------------------------------------------------------------------------------


class Process(processes.Process):
    """One start of a party."""

    def __init__(self, name: str, *place: Any) -> None:
        super().__init__(*place)
        self.name = name
        self.began = monotonic()


def free_port() -> int:
    """Below the ports that systems give to callers: none of our own connections can be in its way."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


class Site:
    """A job folder with certificates and everybody's data."""

    def __init__(self, folder: Path, kind: JobKind | None = None, network: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.kind = kind or JobKind()
        self.port = free_port()
        self.job = folder / "job.toml"
        folder.mkdir(parents=True, exist_ok=True)
        issue(folder / "certs", EVERYBODY)
        (folder / "slow.py").write_text(_SLOW)
        self._write_data()
        settings = {"checkpoint_seconds": 0.2, "wait_seconds": 90, **(network or {})}
        self.job.write_text(self._text(settings))
        if self.kind.has_noise:
            # Two runs with noise are the same only where every party has one secret in both, and both have one nonce.
            for number, name in enumerate(EVERYBODY):
                private = PrivateState.open(self.out(name))
                private.set_noise_secret(bytes([number]) * 32)
                private.set_run_nonce("5" * 32)

    def out(self, name: str) -> Path:
        return self.folder / "runs" / name

    def _write_data(self) -> None:
        rng = np.random.default_rng(5)
        rows, tests = self.kind.rows, 30
        latent = rng.normal(size=(rows + tests, 6))
        labels = (latent.sum(1) > 0).astype(np.int64)
        for name in FEATURES:
            x = (latent + rng.normal(size=latent.shape)).astype(np.float32)
            np.savez(self.folder / f"{name}.npz", x=x[:rows], x_test=x[rows:])
        np.savez(self.folder / f"{LABEL}.npz", y=labels[:rows], y_test=labels[rows:])

    def _text(self, network: Mapping[str, Any]) -> str:
        lines = [
            f"recipe = {self.kind.recipe}",
            "[job]",
            f"epochs = {self.kind.epochs}",
            *([f"batch_size = {self._batch_size}"] if self.kind.batches_an_epoch > 1 else []),
            *([f"eval_every = {self.kind.eval_every}"] if self.kind.eval_every else []),
            f'batches = "{self.kind.batches}"',
            "seed = 3",
            f'training = "{self.kind.training}"',
            "[optimizer]",
            'name = "adam"',
            "lr = 0.01",
            "[network]",
            f'listen = "127.0.0.1:{self.port}"',
            f'address = "127.0.0.1:{self.port}"',
            *(f"{key} = {json.dumps(value)}" for key, value in network.items()),
        ]
        model, comma, rest = self.kind.model.partition(",")
        options = comma + rest
        for name in FEATURES:
            lines += [
                "[[party]]",
                f'name = "{name}"',
                f'features = {{ file = "{name}.npz", key = "x" }}',
                f'test_features = {{ file = "{name}.npz", key = "x_test" }}',
                f'model = {{ module = "slow:{model}"{options}, width = {self.kind.width} }}',
            ]
        lines += [
            "[label_party]",
            f'name = "{LABEL}"',
            f'labels = {{ file = "{LABEL}.npz", key = "y" }}',
            f'test_labels = {{ file = "{LABEL}.npz", key = "y_test" }}',
            'top = { name = "mlp_top", hidden = [8], classes = 2 }',
        ]
        return "\n".join(lines) + "\n" + self.kind.sections

    @property
    def _batch_size(self) -> int:
        return self.kind.rows // self.kind.batches_an_epoch


class Run:
    """The parties of a job while they run; whatever happens, none of them outlives it."""

    def __init__(self, site: Site, tally: Tally, pause_ms: float = 0.0) -> None:
        self.site = site
        self.tally = tally
        self.pause_ms = pause_ms
        self.plans: dict[str, Plan] = {}  # of every start of a party, beside the start's own
        self.settings: dict[str, list[str]] = {}  # --set, likewise
        self.processes: dict[str, Process] = {}  # the newest of each party
        self.all: list[Process] = []
        self._starts = 0

    # Starting and ending -------------------------------------------------------------------------------------------

    def start(self, name: str, plan: Plan | None = None, out: Path | None = None) -> Process:
        self._starts += 1
        said = self.site.folder / "said"
        said.mkdir(exist_ok=True)
        words = [
            str(processes.THINWIRE),
            "party",
            str(self.site.job),
            "--name",
            name,
            "--yes",
            "--json",
            "--out",
            str(out or self.site.out(name)),
        ]
        for setting in self.settings.get(name, ()):
            words += ["--set", setting]
        faults = [*self.plans.get(name, ()), *(plan or ())]
        pause = {"PAUSE_MS": str(self.pause_ms)}
        process = Process(name, words, said / f"{name}-{self._starts}", self.site.folder, pause, faults)
        self.processes[name] = process
        self.all.append(process)
        return process

    def start_all(self, names: Sequence[str] = EVERYBODY) -> None:
        for name in names:
            self.start(name)

    def start_label_party_first(self) -> None:
        """Behind a proxy, which would otherwise reset those that come too early."""
        self.start(LABEL)
        self.until(lambda: self.count(LABEL, "listening"), 30, f"{LABEL} does not listen")
        self.start_all(FEATURES)

    def signal(self, who: str | Process, number: signal.Signals) -> None:
        process = self.processes[who] if isinstance(who, str) else who
        if process.poll() is None:
            os.kill(process.pid, number)

    def kill(self, who: str | Process) -> None:
        """kill -9, and gone when this returns."""
        process = self.processes[who] if isinstance(who, str) else who
        self.signal(process, signal.SIGKILL)
        self.ended(process, 10)

    def ended(self, who: str | Process, seconds: float) -> int:
        """The exit code of a process that ends within so many seconds."""
        process = self.processes[who] if isinstance(who, str) else who
        self.until(lambda: process.poll() is not None, seconds, f"{process.name} has not ended")
        return int(process.poll() or 0)

    def until(self, there: Callable[[], Any], seconds: float, otherwise: str) -> float:
        """Waits for it; gives how long that took."""
        began = monotonic()
        while not there():
            if monotonic() - began > seconds:
                raise AssertionError(f"{otherwise} after {seconds:.0f} s\n{self.told()}")
            sleep(0.02)
        return monotonic() - began

    def close(self) -> None:
        for process in self.all:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
        for process in self.all:
            self.ended(process, 10)

    # What they say -------------------------------------------------------------------------------------------------

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.site.out(name) / "log.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be half written

    def count(self, name: str, event: str, peer: str | None = None) -> int:
        return sum(one["event"] == event and (peer is None or one["peer"] == peer) for one in self.events(name))

    def round(self, name: str) -> int:
        """The newest round that is known of; checkpoints tell it a few times a second."""
        return next((one["round"] for one in reversed(self.events(name)) if one.get("round") is not None), 0)

    def await_round(self, name: str, round: int, seconds: float = 300) -> None:
        self.until(lambda: self.round(name) >= round, seconds, f"{name} is not at round {round}")

    def await_words(self, process: Process, words: str, seconds: float = 300) -> None:
        self.until(lambda: words in process.stderr, seconds, f"{process.name} does not say {words!r}")

    def said(self, name: str) -> str:
        """By all processes of a party."""
        return "".join(process.stderr for process in self.all if process.name == name)

    def told(self) -> str:
        """For a failed test: how everybody stands."""
        return "\n".join(
            f"--- {process.name} {process.pid}, exit {process.poll()}\n{process.stderr[-1500:]}"
            for process in self.processes.values()
        )

    def log_file(self, name: str) -> Path:
        return self.site.folder / f"sends-{name}.txt"

    # The end -------------------------------------------------------------------------------------------------------

    def finish(self, seconds: float = 300) -> dict[str, str]:
        """Everybody ends well; their digests."""
        deadline = monotonic() + seconds
        for name in self.processes:
            code = self.ended(name, max(1.0, deadline - monotonic()))
            if code != 0:
                raise AssertionError(f"{name} ended with {code}\n{self.told()}")
        return self.digests()

    def digests(self) -> dict[str, str]:
        results = {name: json.loads((self.site.out(name) / "result.json").read_text()) for name in EVERYBODY}
        return {name: str(result["digest"]) for name, result in results.items()}

    def survives_with(self, reference: Mapping[str, str], kind: str, count: Callable[[], int]) -> None:
        """The same, with faults that can be counted only now."""
        self.finish()
        self.tally.inject(kind, count())
        self.survives(reference)

    def survives(self, reference: Mapping[str, str], seconds: float = 300) -> None:
        """Everybody ends as if nothing had happened."""
        found = self.finish(seconds)
        self.tally.survive()
        if found != reference:
            wrong = [name for name in EVERYBODY if found[name] != reference[name]]
            raise AssertionError(f"other digests at {', '.join(wrong)}\n{self.told()}")
        self.tally.equal()
        self.require_same_bytes()

    def require_same_bytes(self) -> None:
        """A frame that travelled more than once was the same bytes each time."""
        for name in EVERYBODY:
            path = self.log_file(name)
            seen: dict[str, set[str]] = defaultdict(set)
            for line in path.read_text().splitlines() if path.exists() else ():
                frame, _, digest = line.rpartition(" ")
                seen[frame].add(digest)
            different = [frame for frame, digests in seen.items() if len(digests) > 1]
            if different:
                raise AssertionError(f"{name} sent other bytes under the number of {different[:3]}")

    def note_sends(self) -> None:
        for name in EVERYBODY:
            self.plans.setdefault(name, []).append({"note_sends": str(self.log_file(name))})


@contextmanager
def running(site: Site, tally: Tally, pause_ms: float = 0.0) -> Iterator[Run]:
    run = Run(site, tally, pause_ms)
    try:
        yield run
    finally:
        run.close()
