"""`python benchmarks/suite.py` as a user runs it; what is measured is made up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks import suite
from benchmarks.results import Row
from benchmarks.suite import BENCHMARKS, BenchmarkFailed

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """The command with these arguments, in this folder, without a process of its own."""

    def run_here(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        if folder is not None:
            monkeypatch.chdir(folder)
        words = list(map(str, arguments))
        try:
            code = suite.main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(words, code, shown.out, shown.err)

    return run_here


class MadeUp:
    """Stands for the measurements: one row a bench, whose ratio can be set."""

    def __init__(self) -> None:
        self.ratio: float | None = 2.0
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.broken = ""

    def __call__(self, name: str, arguments: Sequence[str] = ()) -> list[Row]:
        self.asked.append((name, tuple(arguments)))
        if name == self.broken:
            raise BenchmarkFailed(f"{name}: it broke")
        ours = None if self.ratio is None else 5e6 * self.ratio
        return [Row("one", f"help of {name}", "the rest", "bytes", ours, 5e6, self.ratio, "a note")]


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> MadeUp:
    found = MadeUp()
    monkeypatch.setattr(suite, "measure", found)
    return found


def test_one_table_with_a_line_of_help_for_each_row(made_up: MadeUp, here: Here) -> None:
    shown = here()
    assert shown.returncode == 0, shown.stderr
    assert [name for name, _ in made_up.asked] == list(BENCHMARKS)
    for name in BENCHMARKS:
        assert f"{name}: one" in shown.stdout
        assert f"{name}: 0 s" in shown.stderr
    assert "2x" in shown.stdout
    assert "10 MB" in shown.stdout
    assert "last" not in shown.stdout


def test_a_second_run_is_compared_with_the_first(made_up: MadeUp, here: Here, tmp_path: Path) -> None:
    out = tmp_path / "kept" / "here"
    assert here("--out", out).returncode == 0
    made_up.ratio = 1.5
    shown = here("--out", out, "--only", "engine", "--json")
    found = json.loads(shown.stdout)
    assert list(found["benches"]) == ["engine"]
    assert found["benches"]["engine"]["rows"][0]["ratio"] == 1.5
    assert found["last"] == {"engine": {"one": 2.0}}
    kept = json.loads((out / "bench.json").read_text())["benches"]
    assert {name: one["rows"][0]["ratio"] for name, one in kept.items()} == {
        name: 1.5 if name == "engine" else 2.0 for name in BENCHMARKS
    }
    assert "<svg" in (out / "bench.html").read_text()
    table = here("--out", out, "--only", "engine").stdout
    assert "last" in table
    assert "1.5x" in table


def test_what_cannot_be_measured_has_a_row_all_the_same(made_up: MadeUp, here: Here) -> None:
    made_up.ratio = None
    shown = here("--only", "psi,memory")
    assert shown.returncode == 0
    assert [name for name, _ in made_up.asked] == ["memory", "psi"]
    assert "a note" in " ".join(shown.stdout.split())


def test_the_other_interpreter_is_for_psi_alone(made_up: MadeUp, here: Here, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    here("--openmined-python", python)
    assert dict(made_up.asked) == {name: (str(python),) if name == "psi" else () for name in BENCHMARKS}


def test_a_bench_that_fails_leaves_the_others_and_exits_with_1(made_up: MadeUp, here: Here) -> None:
    made_up.broken = "engine"
    shown = here("--only", "engine", "--only", "memory", "--json")
    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    assert list(found["benches"]) == ["memory"]
    assert found["failed"] == ["engine: it broke"]
    assert "suite: engine: it broke" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "speed"], "--only: 'speed' is not one of startup, entropy"),
        (["--out", "file"], "--out file: a file; give a folder"),
        (["--out", "broken"], "not what `benchmarks/suite.py` writes"),
        (["--openmined-python", "nowhere"], "--openmined-python nowhere: the file does not exist"),
    ],
)
def test_wrong_input_measures_nothing(
    arguments: list[str], message: str, made_up: MadeUp, here: Here, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "bench.json").write_text("{")
    shown = here(*arguments, folder=tmp_path)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert shown.stdout == ""
    assert made_up.asked == []
