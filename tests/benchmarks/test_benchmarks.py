"""The measurements themselves, as small as they go; no test looks at how long anything takes."""

from __future__ import annotations

import stat
import sys
from dataclasses import astuple
from importlib import import_module
from math import log2
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import align, codec, methods, network, suite
from benchmarks import round as one_round
from benchmarks.methods import Digits
from benchmarks.suite import BENCHMARKS
from thinwire.engine.compress import QSGD, Codebook, Directions, Identity, StdGrid, TopK
from thinwire.engine.methods import METHODS, svfl, thin
from thinwire.training.train import train


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_function_of_a_module(name: str) -> None:
    found = BENCHMARKS[name]
    assert callable(getattr(import_module(f"benchmarks.{found.module}"), found.function))


def small() -> one_round.Case:
    rng = torch.Generator().manual_seed(0)

    def build() -> tuple[list[torch.nn.Module], torch.nn.Module]:
        return [torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)], torch.nn.Linear(4, 2)

    features = [torch.rand(12, 3, generator=rng) for _ in range(2)]
    return one_round.Case("small", features, torch.arange(12) % 2, build, 4, 7)


def test_the_engine_and_the_loop_take_the_same_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[int] = []

    def clock() -> float:
        ticks.append(1)
        return float(len(ticks))

    monkeypatch.setattr(one_round, "perf_counter", clock)
    for work in (one_round.plain_ms, one_round.engine_ms):
        ticks.clear()
        assert work(small()) == 1000.0  # one tick a round
        assert len(ticks) == 7


def test_the_cases_can_be_trained() -> None:
    assert one_round.resnets(2).rounds == 2
    bottoms, _ = one_round.resnets(2).build()
    assert len(bottoms) == len(one_round.resnets(2).features) == 4


def test_the_entropy_is_that_of_the_symbols_own_frequencies() -> None:
    x = codec.embedding((64, 8))
    symbols = StdGrid(2).compress(x, torch.Generator().manual_seed(0))
    codes = symbols.codes.ravel().tolist()  # type: ignore[attr-defined]
    shares = [codes.count(code) / len(codes) for code in set(codes)]
    bits = -len(codes) * sum(share * log2(share) for share in shares)
    scales = 32 * getattr(symbols, "scales", np.zeros(0)).size
    assert codec.entropy_bits(symbols) == pytest.approx(bits + scales)
    assert codec.entropy_bits(Identity().compress(x, torch.Generator())) == 32 * x.numel()


@pytest.mark.parametrize("compressor", [TopK(0.05), QSGD(bits=2), Directions(0.5), Codebook()])
def test_entropy_is_least_where_all_is_zero(compressor: TopK | QSGD | Directions | Codebook) -> None:
    rng = torch.Generator().manual_seed(0)
    some = codec.entropy_bits(compressor.compress(codec.embedding((64, 8)), rng))
    assert some > codec.entropy_bits(compressor.compress(torch.zeros(64, 8), rng)) >= 0


def test_frames_are_close_to_their_entropy() -> None:
    for row in codec.rows():
        assert row.ratio is not None
        assert row.ours is not None
        assert row.other is not None
        assert row.ratio == row.ours / row.other
        assert 0.5 < row.ratio < 1.1


def test_every_method_of_networks_has_a_recipe_and_svfl_comes_first() -> None:
    assert list(methods.recipes()) == [name for name in METHODS if name not in ("boosting", "once")]
    for recipe in methods.recipes().values():
        recipe.check(4, "sum")


def test_bytes_to_the_target_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "_SEEDS", (0,))
    monkeypatch.setattr(methods, "_TARGET", 0.5)
    monkeypatch.setattr(methods, "recipes", lambda: {"svfl": svfl(), "thin": thin()})
    (row,) = methods.rows()
    assert row.name == "thin"
    assert row.ratio is not None
    assert row.ratio < 0.5
    job = Digits(epochs=20).job(svfl())
    job.target, job.eval_every = ("accuracy", 0.5), 2
    assert row.other == train(job, callbacks=[]).summary()["target"]["bytes"]
    monkeypatch.setattr(methods, "_TARGET", 1.5)
    monkeypatch.setattr(methods, "_EPOCHS", 1)
    (row,) = methods.rows()
    assert row.ratio is None
    assert row.note == "svfl did not get there in 1 epochs"


def test_memory_says_where_it_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_round, "_STATUS", Path("/no/such/file"))
    (row,) = one_round.memory_rows()
    assert row.ratio is None
    assert "/proc" in row.note
    monkeypatch.undo()
    monkeypatch.setattr(one_round, "peak_mib", lambda which: {"engine": 30.0, "plain": 20.0}[which])
    (row,) = one_round.memory_rows()
    assert (row.ours, row.other, row.ratio) == (30.0, 20.0, 1.5)


@pytest.mark.long
def test_a_round_between_two_processes() -> None:
    found = network.loopback(rounds=24)
    assert min(astuple(found)) > 0


# openmined-psi, where an interpreter has it ---------------------------------------------------------------

STAND_IN = """
import json

class _Message:
    def __init__(self, ids=()):
        self.ids = list(ids)
    def SerializeToString(self):
        return json.dumps(self.ids).encode()
    def ParseFromString(self, data):
        self.ids = json.loads(data)

Request = ServerSetup = Response = _Message

class DataStructure:
    GCS = 0

class _Server:
    def CreateSetupMessage(self, rate, count, ids, structure):
        return _Message(ids)
    def ProcessRequest(self, request):
        return request

class _Client:
    def CreateRequest(self, ids):
        return _Message(ids)
    def GetIntersection(self, setup, response):
        return sorted(set(setup.ids) & set(response.ids))

class server:
    CreateWithNewKey = staticmethod(lambda reveal: _Server())

class client:
    CreateWithNewKey = staticmethod(lambda reveal: _Client())
"""


def fake_python(folder: Path, stand_in: str | None) -> Path:
    """This interpreter, with something in openmined-psi's place; None: with nothing there."""
    package = folder / "packages" / "private_set_intersection" / "python"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text("raise ImportError" if stand_in is None else stand_in)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/packages" exec "{sys.executable}" "$@"\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_psi_is_measured_against_openmined_psi_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align, "_IDS", 40)
    monkeypatch.setattr(align, "_REPEATS", 1)
    cpu, sent = align.rows(str(fake_python(tmp_path, STAND_IN)))
    assert cpu.ratio is not None
    assert sent.ratio is not None
    assert sent.ours is not None
    assert sent.other is not None
    assert sent.ratio == sent.ours / sent.other
    again = align.cost_of(align.openmined_command(str(tmp_path / "python")), 40, 1)
    assert (again.common, again.bytes) == (20, sent.other)
    assert align.cost_of(align.our_command(), 40, 1).common == 20


def test_psi_says_how_to_get_what_it_is_held_against(tmp_path: Path) -> None:
    for python, why in (
        ("", "give --openmined-python PATH"),
        (str(fake_python(tmp_path, None)), "cannot import openmined-psi"),
        (str(tmp_path), "cannot be run"),
    ):
        (row,) = align.rows(python)
        assert row.ratio is None
        assert why in row.note


# A process of its own -------------------------------------------------------------------------------------


def test_a_bench_runs_in_a_process_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert suite.child_environment()["OMP_NUM_THREADS"] == "1"
    (row,) = suite.measure("psi")
    assert "give --openmined-python PATH" in row.note


def test_a_bench_that_fails_says_why_in_a_line() -> None:
    with pytest.raises(suite.BenchmarkFailed, match=r"startup: TypeError: .*rows"):
        suite.measure("startup", ["an argument that it does not take"])
