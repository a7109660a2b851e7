"""A party on two processes, as torchrun starts them, trains the model that one process trains."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

import thinwire
from processes import DEADLINE, Process, until
from thinwire.net.pki.authority import issue
from training.party.parties import (
    LABEL_PARTY,
    PartyProcesses,
    PartyThread,
    Place,
    finished,
    free_port,
    left_events,
    left_models,
    log_of,
    simulated,
)

EXAMPLE = Path(thinwire.__file__).parents[2] / "examples/three_organisations"
FEATURES = "imaging"  # the feature party on two processes
ROUNDS = 100
TOLERANCE = 1e-6  # of the loss over all training rows, after every round
SLOW = """
from time import sleep

from torch import nn


class Slow(nn.Sequential):
    def __init__(self, in_features: int, width: int) -> None:
        super().__init__(nn.Linear(in_features, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, x):
        if self.training:
            sleep(0.02)
        return super().forward(x)
"""

# Without a bias before the norm: its gradient is 0 up to rounding, of which Adam makes whole steps.
NORMED = """
from torch import nn


class Normed(nn.Sequential):
    def __init__(self, in_features: int, width: int) -> None:
        super().__init__(nn.Linear(in_features, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, width))
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real data of three organisations."""
    folder = tmp_path_factory.mktemp("tables")
    shutil.copy(EXAMPLE / "make_data.py", folder)
    subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True, capture_output=True)
    return folder


def made(tables: Path, folder: Path, recipe: dict[str, Any], group: str = FEATURES, **job: Any) -> Place:
    """The example's job, evaluated after every round on the training rows themselves.

    The label party, where it is the `group`, has the laboratory's columns.
    """
    document = tomllib.loads((EXAMPLE / "job.toml").read_text())
    document["recipe"] = recipe
    document["job"] |= {"epochs": ROUNDS / 7, "eval_every": 1, **job}
    port = free_port()
    document["network"] = {
        "listen": f"127.0.0.1:{port}",
        "address": f"127.0.0.1:{port}",
        "wait_seconds": DEADLINE,
        "checkpoint_seconds": 0.2,
    }
    if group == LABEL_PARTY:
        laboratory = document["party"].pop()
        document["label_party"] |= {key: laboratory[key] for key in ("features", "model")}
        document["label_party"]["test_features"] = laboratory["features"]
    for party in document["party"]:
        party["test_features"] = party["features"]
    document["label_party"]["test_labels"] = document["label_party"]["labels"]
    place = Place(folder, port, document)
    for table in tables.glob("*.csv"):
        shutil.copy(table, folder)
    _as_parquet(place)
    issue(place.certs, place.names)
    place.write("job.toml")
    return place


def _as_parquet(place: Place) -> None:
    """A feature party's table, of which each rank reads its own rows alone."""
    pq.write_table(
        pa.csv.read_csv(place.folder / f"{FEATURES}_train.csv"), place.folder / "g.parquet", row_group_size=100
    )
    section = next(party for party in place.document["party"] if party["name"] == FEATURES)
    for field in ("features", "test_features"):
        section[field] = {**section[field], "file": "g.parquet"}


def torchrun(started: PartyProcesses, place: Place, name: str, restarts: int = 0) -> Process:
    """Two ranks on this machine."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(restarts)]
    party = ["party", str(place.job), "--name", name, "--out", str(place.out(name)), "--yes", "--json"]
    return started.command([sys.executable, *words, "-m", "thinwire", *party], place.folder)


@contextmanager
def others(place: Place, group: str = FEATURES) -> Iterator[dict[str, PartyThread]]:
    """All parties but the one on several processes, begun."""
    found = {name: PartyThread(place.job, name, place.out(name)) for name in place.names if name != group}
    try:
        for party in found.values():
            party.start()
        yield found
    finally:
        for party in found.values():
            party.over()


def require_same(place: Place) -> None:
    """The run that was made, against the simulator's one process."""
    there = simulated(place.job)
    losses = {event["round"]: event["test"]["loss"] for event in left_events(place)}
    expected = {event["round"]: event["test"]["loss"] for event in there.history}
    assert losses.keys() == expected.keys() == set(range(ROUNDS + 1))
    assert max(abs(losses[number] - expected[number]) for number in expected) < TOLERANCE
    assert expected[ROUNDS] < expected[0] / 10  # it has learned
    models = left_models(place)
    assert models.keys() == there.models.keys()
    for name, module in there.models.items():
        for key, tensor in module.state_dict().items():
            torch.testing.assert_close(models[name][key], tensor, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("recipe", "job"),
    [
        pytest.param({"method": "svfl"}, {"column_importance": True}, marks=pytest.mark.long),
        pytest.param(
            {"method": "celu", "capacity": 5, "reuse": 5, "overlap": True},
            {"batches": "announced"},
            marks=pytest.mark.long,
        ),
        pytest.param({"method": "celu", "capacity": 2, "reuse": 2, "overlap": "ahead"}, {}, marks=pytest.mark.long),
        pytest.param({"method": "celu", "capacity": 2, "reuse": 2}, {"parallel": "fsdp2"}, marks=pytest.mark.long),
        pytest.param(
            {"method": "efvfl", "compressor": {"name": "TopK", "fraction": 0.1}, "warm_start": True},
            {},
            marks=pytest.mark.long,
        ),
    ],
    ids=["svfl", "celu, announced batches", "celu, sent ahead", "celu, weights shared out", "efvfl, shared labels"],
)
def test_two_ranks_are_one_party(tables: Path, tmp_path: Path, recipe: dict[str, Any], job: dict[str, Any]) -> None:
    place = made(tables, tmp_path, recipe, **{key: value for key, value in job.items() if key != "parallel"})
    place.document["party"][0]["parallel"] = job.get("parallel", "ddp")
    place.write("job.toml")
    with PartyProcesses() as started, others(place) as parties:
        group = torchrun(started, place, FEATURES)
        finished(parties)
        assert group.summary()["rounds"] == ROUNDS  # one JSON object, from rank 0 alone
        if job.get("column_importance"):
            found = group.summary()["importance"]
            assert (found["columns"], found["note"][:24]) == ([], "Columns are not measured")
    require_same(place)


@pytest.mark.long
def test_the_label_party_has_two_ranks_too(tables: Path, tmp_path: Path) -> None:
    """With batch normalisation at both parties, which its ranks compute together."""
    place = made(tables, tmp_path, {"method": "celu", "capacity": 3, "reuse": 3}, LABEL_PARTY, importance=True)
    (tmp_path / "normed.py").write_text(NORMED)
    for section in (*place.document["party"], place.document["label_party"]):
        section["model"] = {"module": "normed:Normed", "width": 16}
    place.write("job.toml")
    with PartyProcesses() as started, others(place, LABEL_PARTY) as parties:
        group = torchrun(started, place, LABEL_PARTY)
        finished(parties)
        assert group.summary()["rounds"] == ROUNDS
        assert len(group.summary()["importance"]["columns"]) == 10  # rank 0 holds all of its rows
    require_same(place)


@pytest.mark.faults
@pytest.mark.parametrize("name", [FEATURES, LABEL_PARTY])
def test_a_killed_rank_comes_back_without_an_operator(tables: Path, tmp_path: Path, name: str) -> None:
    """Rank 1, then rank 0: torchrun starts both again, and the run goes on from rank 0's checkpoint.

    The one run of `thin` here: undisturbed, it would have to come out the same.
    """
    place = made(tables, tmp_path, {"method": "thin" if name == FEATURES else "svfl"}, name)
    (tmp_path / "slow.py").write_text(SLOW)
    sections = (*place.document["party"], place.document["label_party"])
    next(section for section in sections if section["name"] == name)["model"] = {"module": "slow:Slow", "width": 16}
    place.write("job.toml")
    with PartyProcesses() as started, others(place, name) as parties:
        group = torchrun(started, place, name, restarts=3)
        for count, killed_rank in enumerate((1, 0)):
            until(lambda at=5 + 10 * count: _saved_round(place.out(name)) >= at or group.ended)  # type: ignore[misc]
            os.kill(_ranks(place.out(name), group)[killed_rank], signal.SIGKILL)
            until(lambda starts=count + 2: _starts(place.out(name)) == starts or group.ended)  # type: ignore[misc]
        finished(parties)
        assert group.summary()["rounds"] == ROUNDS
    resumed = [line["at_round"] for line in log_of(place.out(name)) if line["event"] == "resumed"]
    assert len(resumed) == 2
    assert 0 < resumed[0] < resumed[1]
    require_same(place)


def _saved_round(folder: Path) -> int:
    """Of the newest checkpoint; 0 before there is one."""
    lines = log_of(folder) if (folder / "log.jsonl").exists() else []
    return max((line["round"] or 0 for line in lines if line["event"] == "checkpoint"), default=0)


def _starts(folder: Path) -> int:
    return sum(line["event"] == "begun" for line in log_of(folder))


def _ranks(folder: Path, group: Process) -> list[int]:
    """Process numbers: rank 0 holds the folder's lock."""
    first = int((folder / "lock").read_text())
    agent = group._process.pid
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (second,) = (int(child) for child in children if int(child) != first)
    return [first, second]
