"""Sweeps: every combination runs once, stopped ones go on, finished ones are kept, failures are rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

import thinwire as tw
from job.small import write_job
from processes import THINWIRE, environment
from thinwire import cli
from thinwire.base.errors import BadInput, BadParameter
from thinwire.job.job_loader import load_job
from thinwire.lab.sweep import EXECUTORS, TrialResult, WorkerLost, run_each
from thinwire.lab.sweep.page import keep_sweep, rank_points
from thinwire.lab.sweep.trials import MedianRule, _made, read_axis


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process: what is computed is the same."""

    def one_by_one(work: Callable[[Any], Any], items: list[Any], workers: int) -> Any:
        return ((item, work(item)) for item in items)

    monkeypatch.setitem(EXECUTORS, "processes", one_by_one)


def test_a_grid_is_every_combination_with_every_seed() -> None:
    grid = tw.Grid("job.toml", {"a.b": [1, 2], "c": ["x", "y"]}, seeds=[0, 1], settings=["job.epochs=1"])
    trials = grid.trials()
    assert len(trials) == 8
    assert trials[1].overrides == ("job.epochs=1", "a.b=1", 'c="x"', "job.seed=1")
    assert trials[1].label == "a.b 1, c x, seed 1"
    assert len({trial.folder for trial in trials}) == 8
    assert tw.Grid("job.toml").trials()[0].label == "job"
    path = tw.Grid("job.toml", {"party.a.features.file": ["../../x", "/etc/passwd"]}).trials()
    assert all("/" not in trial.folder and not trial.folder.startswith(".") for trial in path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("recipe.reuse=2,4", ("recipe.reuse", [2, 4])),
        ("optimizer.lr=0.1", ("optimizer.lr", [0.1])),
        ("recipe.method=svfl, thin", ("recipe.method", ["svfl", "thin"])),
        ('recipe.compressor={name="TopK",fraction=0.1},"Sign"', None),
    ],
)
def test_an_axis_is_read_as_toml(text: str, expected: tuple[str, list[Any]] | None) -> None:
    key, values = read_axis(text)
    if expected is None:
        assert (key, values) == ("recipe.compressor", [{"name": "TopK", "fraction": 0.1}, "Sign"])
    else:
        assert (key, values) == expected


@pytest.mark.parametrize("text", ["recipe.reuse", "=2", "recipe.reuse=", "recipe.reuse=2,,4", "a=[1", "a=b c"])
def test_an_axis_that_says_nothing(text: str) -> None:
    with pytest.raises(BadParameter, match=r"--grid .*write KEY=VALUE,VALUE"):
        read_axis(text)


def test_wrong_sweeps_are_refused(job: Path, tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match=r"grid recipe.reuse: needs a list"):
        tw.Grid(job, {"recipe.reuse": 2})  # type: ignore[dict-item]
    with pytest.raises(BadParameter, match="a value appears twice"):
        tw.Grid(job, {"recipe.reuse": [2, 2]})
    with pytest.raises(BadParameter, match="seeds: one appears twice"):
        tw.Grid(job, seeds=[1, 1])
    with pytest.raises(BadInput, match="at least one run"):
        tw.sweep([], tmp_path)
    with pytest.raises(BadInput, match="the same job and settings"):
        tw.sweep([tw.Trial(str(job)), tw.Trial(str(job))], tmp_path)
    with pytest.raises(BadParameter, match="executor must be one of processes, ray"):
        tw.sweep(tw.Grid(job), tmp_path, executor="cloud")
    with pytest.raises(BadParameter, match="workers must be 1 or more"):
        tw.sweep(tw.Grid(job), tmp_path, workers=0)


@pytest.mark.long
def test_two_processes_give_what_train_gives_and_keep_it(job: Path, tmp_path: Path) -> None:
    grid = tw.Grid(job, {"recipe.compressor.fraction": [0.25, 0.5]}, seeds=[0, 1])
    swept = tw.sweep(grid, tmp_path / "sweep")
    assert [one.kept for one in swept.runs] == [False] * 4
    for one in swept.runs:
        assert one.summary is not None
        alone = tw.train(load_job(job, one.trial.overrides), callbacks=[]).summary()
        same = ("method", "rounds", "bytes", "train", "test", "best")
        assert {key: one.summary[key] for key in same} == {key: alone[key] for key in same}
    first, second = swept.points()
    assert first["settings"] == {"recipe.compressor.fraction": 0.25}
    assert first["mean"]["bytes_up"] < second["mean"]["bytes_up"]
    assert [run["seed"] for run in first["runs"]] == [0, 1]


@pytest.mark.usefixtures("here")
def test_finished_runs_are_kept_and_longer_ones_go_on(job: Path, tmp_path: Path) -> None:
    seen: list[TrialResult] = []
    grid = tw.Grid(job, seeds=[0, 1])
    before = tw.sweep(grid, tmp_path / "sweep")
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "sweep").rglob("*.safetensors")}
    again = tw.sweep(tw.Grid(job, seeds=[0, 1, 2]), tmp_path / "sweep", on_done=seen.append)
    assert [one.kept for one in again.runs] == [True, True, False] == [one.kept for one in seen]
    assert [one.summary for one in again.runs[:2]] == [one.summary for one in before.runs]
    assert {file: file.stat().st_mtime_ns for file in files} == files

    job.write_text(job.read_text().replace("epochs = 2", "epochs = 4"))
    longer = tw.sweep(grid, tmp_path / "sweep")
    assert [(one.kept, one.figures()["rounds"]) for one in longer.runs] == [(False, 12)] * 2
    straight = tw.train(load_job(job), callbacks=[]).summary()
    assert longer.runs[0].figures()["test"] == straight["test"]["accuracy"]


@pytest.mark.usefixtures("here")
def test_a_run_that_fails_is_a_row_and_changed_data_is_refused(job: Path, tmp_path: Path) -> None:
    grid = tw.Grid(job, {"party.bank.model.width": [4, 5]})  # a sum needs one width
    swept = tw.sweep(grid, tmp_path / "sweep")
    assert swept.runs[0].error is None
    assert "width" in (swept.runs[1].error or "")
    (bad,) = swept.points()[1]["errors"]
    assert bad.startswith("party.bank.model.width 5: ")
    with pytest.raises(BadInput, match="there is no result"):
        swept.runs[1].figures()
    (tmp_path / "shop.csv").write_text((tmp_path / "shop.csv").read_text().replace("0", "1", 1))
    (again,) = tw.sweep(tw.Grid(job, {"party.bank.model.width": [4]}), tmp_path / "sweep").runs
    assert "shop.features has changed since the run in" in (again.error or "")


@pytest.mark.usefixtures("here")
def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_again(job: Path, tmp_path: Path) -> None:
    trial = tw.Trial(str(job))
    folder = tmp_path / "sweep" / trial.folder
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("")
    (one,) = tw.sweep([trial], tmp_path / "sweep").runs
    assert one.error is None
    assert one.summary is not None


@pytest.mark.faults
def test_ctrl_c_stops_and_the_same_command_goes_on(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.write_text(job.read_text().replace("epochs = 2", "epochs = 3000"))
    words = [str(THINWIRE), "sweep", "job.toml", "--seeds", "0,1,2", "--workers", "1", "--out", "sweep"]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = monotonic() + 300
    while not list(tmp_path.glob("sweep/*/checkpoints/*-*")) and monotonic() < deadline:
        sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "run the same command again" in said
    assert "Traceback" not in said
    (begun,) = tmp_path.glob("sweep/*")
    rounds = len((begun / "events.jsonl").read_text().splitlines())
    assert 0 < rounds < 3000

    shorter = job.read_text().replace("epochs = 3000", f"epochs = {rounds + 5}")
    job.write_text(shorter)
    trial = tw.Grid("job.toml", seeds=[0]).trials()[0]
    monkeypatch.chdir(tmp_path)
    one = _made((trial, str(begun), ()))
    assert one.summary is not None
    alone = tw.train(load_job(job, trial.overrides), callbacks=[]).summary()
    assert one.summary["test"] == alone["test"]
    assert one.summary["bytes"] == alone["bytes"]


def _dies(_: int) -> int:
    os._exit(9)


def test_a_process_that_dies_is_said() -> None:
    with pytest.raises(WorkerLost, match="died, often because memory ran out"):
        list(run_each(_dies, [1, 2], 1))


def test_ray_that_is_missing_is_said_with_the_way_out(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadParameter, match=r"pip install 'thinwire\[ray\]'"):
        tw.sweep(tw.Grid(job), tmp_path / "sweep", executor="ray")


class _Ray(SimpleNamespace):
    """As much of Ray's interface as is used; it runs one thing at a time, the last one first."""

    most = 0

    def __init__(self) -> None:
        super().__init__(exceptions=SimpleNamespace(WorkerCrashedError=OSError))

    def is_initialized(self) -> bool:
        return True

    def remote(self, **options: Any) -> Callable[[Callable[[Any], Any]], Any]:
        assert options == {"num_cpus": 1, "max_retries": 0}

        def wrapped(work: Callable[[Any], Any]) -> Any:
            return SimpleNamespace(remote=lambda item: lambda: work(item))

        return wrapped

    def wait(self, waiting: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(waiting))
        return [waiting[-1]], waiting[:-1]

    def get(self, one: Callable[[], Any]) -> Any:
        return one()

    def cancel(self, one: Any) -> None:
        raise AssertionError("nothing was left")


def test_ray_gives_the_same_as_processes(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = _Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    swept = tw.sweep(tw.Grid(job, seeds=[0, 1, 2]), tmp_path / "sweep", workers=2, executor="ray")
    assert ray.most == 2
    for one in swept.runs:
        assert one.summary is not None
        assert one.summary["test"] == tw.train(load_job(job, one.trial.overrides), callbacks=[]).summary()["test"]


@pytest.mark.usefixtures("here")
def test_the_command_shows_a_table_and_json(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(job.parent)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["thinwire", "sweep", "job.toml", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    code, out, _ = run("--grid", "recipe.compressor.fraction=0.25,0.5", "--seeds", "0,1", "--json")
    assert code == 0
    found = json.loads(out)
    assert {point["settings"]["recipe.compressor.fraction"] for point in found["points"]} == {0.25, 0.5}
    delivered = [point["mean"]["delivered"] for point in found["points"]]
    assert delivered == sorted(delivered, reverse=True)
    assert json.loads((job.parent / "runs/job-sweep/sweep.json").read_text()) == found
    code, out, err = run("--grid", "recipe.compressor.fraction=0.25,0.5", "--seeds", "0,1")
    assert code == 0
    assert err.count("(finished before)") == 4
    assert all(word in out for word in ("best first", "compressor.", "fraction", "0.25", "accuracy"))
    assert "report: runs/job-sweep/report.html" in out
    page = (job.parent / "runs/job-sweep/report.html").read_text()
    assert all(f"recipe.compressor.fraction {value}" in page for value in (0.25, 0.5))
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", ""), (
        "the page needs nothing else"
    )
    code, out, err = run("--grid", "party.bank.model.width=5")
    assert (code, "failed" in out, "party.bank.model.width 5: " in err) == (2, False, False)  # the first is tried
    code, out, err = run("--grid", "party.bank.model.width=4,5")
    assert (code, "failed" in out, "party.bank.model.width 5: " in err) == (1, True, True)
    page = (job.parent / "runs/job-sweep/report.html").read_text()
    assert "What failed" in page
    assert page.index("party.bank.model.width 4") < page.index("party.bank.model.width 5")
    for wrong in (["--grid", "recipe.reuse"], ["--grid", "recipe.fraction=1"], ["--seeds", "x"]):
        code, out, err = run(*wrong)
        assert (code, out) == (2, ""), err
    code, _, err = run("--grid", "job.seed=1", "--grid", "job.seed=2")
    assert (code, "a key appears twice" in err) == (2, True)


def point(delivered: float | None, sent: int, reached: int = 0) -> dict[str, Any]:
    mean = {"best": 1.0, "delivered": delivered, "bytes_all": sent, "rounds": None if delivered is None else 1}
    return {"mean": mean, "reached": reached, "runs": [] if delivered is None else [{}, {}]}


@pytest.mark.parametrize(
    ("metric", "has_target", "points", "places"),
    [
        ("accuracy", False, [point(None, 0), point(0.5, 1), point(0.9, 9), point(0.9, 3)], [3, 2, 1, 0]),
        ("loss", False, [point(0.5, 1), point(0.2, 9)], [1, 0]),
        ("accuracy", True, [point(0.99, 9, 1), point(0.9, 9, 2), point(0.8, 1, 0), point(0.9, 5, 2)], [3, 1, 0, 2]),
    ],
)
def test_best_first(metric: str, has_target: bool, points: list[dict[str, Any]], places: list[int]) -> None:
    assert rank_points(points, metric, has_target) == [points[place] for place in places]


@pytest.mark.usefixtures("here")
def test_a_page_of_two_keys_says_what_each_value_did(job: Path, tmp_path: Path) -> None:
    grid = tw.Grid(job, {"recipe.compressor.fraction": [0.5, 0.25], "optimizer.lr": [0.1, 0.01]})
    points = tw.sweep(grid, tmp_path / "sweep").points()
    target = {"metric": "accuracy", "value": 2.0}
    kept = keep_sweep(tmp_path / "sweep", job, points, "accuracy", target)
    page = (tmp_path / "sweep/report.html").read_text()
    assert len(kept["points"]) == 4
    values = page.partition("What each value did")[2].partition("Training curves")[0]
    assert values.index("recipe.compressor.fraction") < values.index("optimizer.lr")
    assert values.index(">0.25<") < values.index(">0.5<") < values.index(">0.01<")
    assert values.count("0 of 2") == 4
    (tmp_path / "sweep/report.html").write_text("mine")
    with pytest.raises(BadInput, match="already exists and is not a report"):
        keep_sweep(tmp_path / "sweep", job, points, "accuracy", target)


# Pruning ----------------------------------------------------------------------------------------------------------

RATES = {"optimizer.lr": [0.1, 0.05, 0.02, 1e-6]}  # the last one learns nothing


@pytest.fixture
def longer(job: Path) -> Path:
    job.write_text(job.read_text().replace("epochs = 2", "epochs = 8"))
    return job


@pytest.mark.usefixtures("here")
def test_a_bad_run_is_pruned_kept_so_and_goes_on_without_pruning(longer: Path, tmp_path: Path) -> None:
    grid, out = tw.Grid(longer, RATES), tmp_path / "sweep"
    whole = tw.sweep(grid, tmp_path / "whole")
    pruned = tw.sweep(grid, out, prune=True)
    *good, bad = pruned.runs
    assert [one.pruning for one in good] == [None] * 3
    assert bad.pruning is not None
    assert 8 * MedianRule.WARM_UP <= bad.pruning["epoch"] < 8
    assert bad.summary is not None
    assert bad.summary["rounds"] == bad.pruning["round"] < whole.runs[3].figures()["rounds"]
    assert [one.figures()["test"] for one in good] == [one.figures()["test"] for one in whole.runs[:3]]
    *points, last = rank_points(pruned.points(), "accuracy", has_target=False)
    assert (last["runs"], last["pruned"][0]["epoch"]) == ([], bad.pruning["epoch"])
    assert all(point["runs"] and not point["pruned"] for point in points)
    again = tw.sweep(grid, out, prune=True).runs[3]
    assert (again.kept, again.pruning) == (True, bad.pruning)
    on = tw.sweep(grid, out).runs[3]
    assert (on.kept, on.pruning, on.figures()["rounds"]) == (False, None, whole.runs[3].figures()["rounds"])
    assert on.figures()["test"] == whole.runs[3].figures()["test"]


@pytest.mark.usefixtures("here")
def test_the_table_says_what_was_pruned_and_when(
    longer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(longer.parent)
    words = ["--grid", "optimizer.lr=0.1,0.05,0.02,1e-6", "--prune"]
    monkeypatch.setattr(sys, "argv", ["thinwire", "sweep", "job.toml", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert not ended.value.code
    found = json.loads((longer.parent / "runs/job-sweep/sweep.json").read_text())["points"][-1]
    epoch = f"{found['pruned'][0]['epoch']:.3g}"
    assert f"pruned at epoch {epoch}, accuracy" in shown.err
    row = shown.out.partition("1e-06")[2].splitlines()
    assert [line.strip() for line in row[:2]] == ["pruned", f"epoch {epoch}"]
    assert f"(pruned: at epoch {epoch})" in (longer.parent / "runs/job-sweep/report.html").read_text()
    target = ["--set", "job.target.metric='accuracy'", "--set", "job.target.value=0.9"]
    monkeypatch.setattr(sys, "argv", ["thinwire", "sweep", "job.toml", *words, *target])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--prune compares scores, and this job's runs are ranked by bytes" in capsys.readouterr().err


def test_a_setting_with_a_pruned_seed_is_behind_those_without() -> None:
    lucky = {**point(0.99, 1), "pruned": [{"seed": 1, "epoch": 2.0}]}
    gone = {**point(None, 0), "pruned": [{"seed": None, "epoch": 2.0}]}
    found = rank_points([point(None, 0), gone, lucky, point(0.5, 9)], "accuracy", has_target=False)
    assert found == [point(0.5, 9), lucky, gone, point(None, 0)]
