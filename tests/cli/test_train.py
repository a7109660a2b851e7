"""`thinwire train` and `check` from a job file to a run directory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import thinwire as tw
from job.small import write_job
from processes import THINWIRE, Processes, run
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import save_job
from thinwire.storage.run_directory import RunDirectory
from thinwire.training.erase import erase_rows
from training.party.parties import Shape, made

Here = Callable[..., subprocess.CompletedProcess[str]]
EXAMPLE = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_the_example_trains_from_its_files_to_its_target(tmp_path: Path) -> None:
    for name in ("make_data.py", "job.toml"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    subprocess.run([sys.executable, tmp_path / "make_data.py"], check=True, capture_output=True)
    shown = run("train", "job.toml", "--json", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    summary = json.loads(shown.stdout)
    assert summary["test"]["accuracy"] >= 0.95
    assert summary["target"]["reached_round"] == summary["rounds"]
    assert summary["target"]["bytes"] == summary["bytes"]["up"] + summary["bytes"]["down"]
    assert Path(summary["run_dir"]).parent == Path("runs")
    assert Path(summary["run_dir"]).name.startswith("job-")


def test_json_has_the_shape_that_was_promised(job: Path, here: Here) -> None:
    aim = ["--set", "job.target={metric='accuracy',value=2}", "--set", "job.diagnostics=true"]
    shown = here("train", job, "--json", *aim, "--out", "r", folder=job.parent)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("\n") == 1
    summary = json.loads(shown.stdout)
    assert {"method", "rounds", "epochs", "seconds", "link_seconds", "messages", "privacy"} <= summary.keys()
    assert (summary["method"], summary["rounds"], summary["epochs"], summary["run_dir"]) == ("efvfl", 6, 2, "r")
    assert summary["bytes"].keys() == {"up", "down", "total", "evaluation", "retransmitted", "handshake", "all"}
    assert summary["bytes"]["all"] == summary["bytes"]["total"] + summary["bytes"]["evaluation"]
    assert summary["validation"] == {}
    assert summary["delivered"] == {"round": 6, "metric": "accuracy", "value": summary["test"]["accuracy"]}
    assert summary["bytes"]["total"] == summary["bytes"]["up"] + summary["bytes"]["down"]
    assert summary["train"].keys() == summary["test"].keys() == {"loss", "accuracy"}
    assert summary["best"].keys() == {"metric", "value", "round"}
    assert summary["target"] == {
        "metric": "accuracy",
        "value": 2,
        "reached_round": None,
        "bytes": None,
        "seconds": None,
        "link_seconds": None,
    }
    assert "efvfl: round 6/6" in shown.stderr


def test_a_run_directory_is_complete_and_its_job_file_runs_again(job: Path, tmp_path: Path, here: Here) -> None:
    first = here("train", job, "--out", tmp_path / "a", "--set", "job.epochs=3", "--seed", "5")
    assert first.returncode == 0, first.stderr
    assert f"run: {tmp_path / 'a'}" in first.stdout
    for name in ("job.toml", "events.jsonl", "ledger.json", "models/bank.safetensors", "models/top.safetensors"):
        assert (tmp_path / "a" / name).is_file(), name
    assert load_job(tmp_path / "a" / "job.toml").seed == 5
    again = here("train", tmp_path / "a" / "job.toml", "--out", tmp_path / "b")
    assert again.returncode == 0, again.stderr
    losses = [[event["train"]["loss"] for event in events(tmp_path / name)] for name in ("a", "b")]
    assert losses[0] == losses[1]
    models = [(tmp_path / name / "models" / "bank.safetensors").read_bytes() for name in ("a", "b")]
    assert models[0] == models[1]


def test_epochs_are_an_option_as_the_seed_is(job: Path, tmp_path: Path, here: Here) -> None:
    shown = here("train", job, "--epochs", "3", "--out", tmp_path / "r", "--json")
    assert (shown.returncode, json.loads(shown.stdout)["rounds"]) == (0, 9)
    assert load_job(tmp_path / "r" / "job.toml").epochs == 3
    assert "job.epochs must be greater than 0" in here("train", job, "--epochs", "0").stderr


def test_privacy_of_a_job_is_what_its_run_spends(tmp_path: Path, here: Here) -> None:
    recipe = {"method": "pbm", "trials": 16, "beta": 0.15}
    place = made(tmp_path, Shape(recipe, job={"training": "frozen", "eval_every": 1}, parties=3))
    said = json.loads(here("privacy", place.job, "--json").stdout)
    spent = json.loads(here("train", place.job, "--out", tmp_path / "run", "--json").stdout)["privacy"]
    assert said["observers"] == spent[0]["observers"]
    assert said["rounds"] == 6
    shown = here("privacy", place.job, "--set", "job.budget={epsilon=100.0}")
    assert (shown.returncode, "The budget of epsilon 100 against the label party alone allows" in shown.stdout) == (
        0,
        True,
    )
    assert "epsilon after" in shown.stdout


def test_privacy_of_a_job_says_why_nothing_is_proven(job: Path, here: Here) -> None:
    shown = here("privacy", job)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("efvfl: no guarantee; epsilon is infinite for every observer\n")
    assert "Embeddings: they leave this party without noise" in shown.stdout
    said = json.loads(here("privacy", job, "--json").stdout)
    assert {row["end_to_end_epsilon"] for row in said["observers"]} == {"infinity"}
    for more, message in (
        (["--width", "4", "--frozen"], "--width, --frozen: the job file already sets"),
        ([], "give a job file"),
    ):
        shown = here("privacy", *([job] if more else []), *more)
        assert (shown.returncode, message in shown.stderr) == (2, True)


def test_resume_goes_on_as_if_it_had_never_stopped(job: Path, tmp_path: Path, here: Here) -> None:
    assert here("train", job, "--out", tmp_path / "whole", "--set", "job.epochs=6").returncode == 0
    assert here("train", job, "--out", tmp_path / "parts", "--set", "job.epochs=2").returncode == 0
    shown = here("train", job, "--out", tmp_path / "parts", "--set", "job.epochs=6", "--resume", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["rounds"] == 18
    losses = [[event["train"]["loss"] for event in events(tmp_path / name)] for name in ("whole", "parts")]
    assert losses[0] == losses[1]


def test_ctrl_c_says_how_to_go_on_and_that_works(job: Path, tmp_path: Path) -> None:
    settings = ["--set", "job.epochs=3000", "--set", "job.diagnostics=false", "--out", str(tmp_path / "r")]
    with Processes() as started:
        running = started.command([THINWIRE, "train", job, *settings], tmp_path)
        running.says("round 30/")
        running.interrupt()
        assert running.code() == 130
        said = running.stderr
    assert "Traceback" not in said
    command = said.strip().splitlines()[-1].split()
    assert command == ["thinwire", "train", str(job), *settings[:4], *settings[4:], "--resume"]
    done = len(events(tmp_path / "r"))
    short = [word.replace("3000", str(done + 2)) for word in command[1:]]
    resumed = run(*short, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["rounds"] == 3 * (done + 2)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--resume"], "--resume needs --out DIR"),
        (["--resume", "--out", "nothing"], "nothing holds no run to resume"),
        (["--out", "r"], "r already holds a run; resume it with --resume, or use a different --out"),
        (["--out", "r", "--resume", "--seed", "1"], "job.seed is 1, but the run in r began with 0"),
        (["--out", "r", "--resume", "--set", "recipe.compressor.fraction=0.5"], "recipe.compressor.fraction is 0.5"),
        (["--out", "r", "--resume", "--set", "party.bank.features.key=x_test"], "'bank' has 32 rows"),
        (["--out", "job.toml/r"], "cannot be written"),
    ],
)
def test_what_cannot_go_on(job: Path, more: list[str], message: str, here: Here) -> None:
    if "r" in more:
        assert here("train", job, "--out", "r", folder=job.parent).returncode == 0
    shown = here("train", job, *more, folder=job.parent)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_run_goes_on_after_its_files_have_moved(job: Path, tmp_path: Path, here: Here) -> None:
    assert here("train", job, "--out", tmp_path / "r").returncode == 0
    for file in [*tmp_path.glob("*.csv"), *tmp_path.glob("*.npz"), job]:
        (tmp_path / "moved").mkdir(exist_ok=True)
        file.rename(tmp_path / "moved" / file.name)
    moved = here("train", tmp_path / "moved" / job.name, "--set", "job.epochs=3", "--out", tmp_path / "r", "--resume")
    assert moved.returncode == 0, moved.stderr
    assert len(events(tmp_path / "r")) == 4


def test_data_that_changed_is_noticed_on_resume(job: Path, here: Here) -> None:
    assert here("train", job, "--out", "r", folder=job.parent).returncode == 0
    shop = job.parent / "shop.csv"
    shop.write_text(shop.read_text().replace("0.", "1.", 1))
    shown = here("train", job, "--out", "r", "--resume", folder=job.parent)
    assert shown.returncode == 2
    assert "shop.features has changed since the run in r began" in shown.stderr


@pytest.mark.parametrize("command", ["train", "check", "compare"])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("job.epoch=3", "job.epoch: unknown key; did you mean 'epochs'?"),
        ("recipe.compressor.fraction=0", "recipe.compressor.fraction: TopK: fraction must be above 0"),
        ("job.batch_size=1000", "job.batch_size must be from 1 to the 96 training rows, got 1000"),
        ("party.shop.features.file=gone.csv", "gone.csv does not exist"),
    ],
)
def test_wrong_input_is_one_message_and_starts_nothing(
    job: Path, command: str, setting: str, message: str, here: Here
) -> None:
    more = ["--methods", "efvfl"] if command == "compare" else []
    shown = here(command, "job.toml", "--set", setting, *more, folder=job.parent)
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert message in shown.stderr
    assert shown.stderr.startswith("thinwire: ")
    assert shown.stderr.count("\n") == 1
    assert not (job.parent / "runs").exists()


def test_debug_shows_the_traceback_wherever_it_stands(job: Path) -> None:
    for arguments in (["--debug", "train"], ["train", "--debug"]):
        shown = run(*arguments, job, "--set", "job.epoch=1")
        assert shown.returncode == 1
        assert "Traceback" in shown.stderr


def test_a_run_that_diverges_has_failed_while_running(job: Path, here: Here) -> None:
    shown = here("train", job, "--set", 'optimizer={name="sgd",lr=1e30}', "--out", "r", folder=job.parent)
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    assert "thinwire: " in shown.stderr


def test_check_says_what_a_job_would_cost_and_show(job: Path, here: Here) -> None:
    shown = here("check", "job.toml", "--json", "--set", "job.epochs=1", folder=job.parent)
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout)
    trained = json.loads(here("train", "job.toml", "--json", "--set", "job.epochs=0.334", folder=job.parent).stdout)
    assert trained["rounds"] == 1
    assert found["first_round_bytes"] == {part: trained["bytes"][part] for part in ("up", "down")}
    assert found["surrogate_bytes"] == {"bank": 4 * 96 * 4, "shop": 4 * 96 * 4, "clinic": 2 * 4 * 96 * 4}
    assert found["workset_bytes"] == {"bank": 0, "shop": 0, "clinic": 0}
    assert (found["rows"], found["test_rows"], found["rounds"], found["once_bytes"]) == (96, 32, 3, 0)
    assert found["widths"] == {"bank": 4, "shop": 4}
    assert "derivative" in found["who_sees"]["bank"][0]
    assert [path.name for path in job.parent.glob("runs/*")] == [Path(trained["run_dir"]).name]


def test_check_of_other_recipes(job: Path, here: Here) -> None:
    celu = json.loads(here("check", job, "--json", "--set", "recipe={method='celu',capacity=3,reuse=2}").stdout)
    assert celu["workset_bytes"]["bank"] == 3 * 32 * (8 + 2 * 4 * 4)
    assert celu["workset_bytes"]["clinic"] == 3 * 32 * (8 + 2 * 2 * 4 * 4)
    shared = json.loads(here("check", job, "--json", "--set", "recipe.labels=shared").stdout)
    assert shared["surrogate_bytes"]["bank"] == 2 * 4 * 96 * 4
    assert "all labels" in shared["who_sees"]["bank"]
    table = here("check", job)
    assert table.returncode == 0
    assert "no problems found in this job" in table.stdout
    assert "first round: " in table.stdout


def test_a_run_that_goes_on_is_left_alone(job: Path, tmp_path: Path) -> None:
    """Neither rows are forgotten in its folder, nor is it resumed or begun there a second time."""
    folder = tmp_path / "r"
    settings = ["--set", "job.epochs=100000", "--set", "job.diagnostics=false", "--out", str(folder)]
    with Processes() as started:
        running = started.command([THINWIRE, "train", job, *settings], tmp_path)
        running.says("round 30/")
        under_way = rf"a run is under way here already \(process {running.pid}\); stop it first"
        with pytest.raises(BadInput, match=under_way):
            erase_rows(folder, rows=[1], give_up=True)
        with pytest.raises(BadInput, match=under_way):
            tw.train(load_job(job, settings[1:2]), callbacks=[], out=folder, resume=True)
        with pytest.raises(BadInput, match="already holds a run"):
            save_job(folder, "", load_job(job))
        assert not (folder / "forgotten.jsonl").exists()
        running.interrupt()
        assert running.code() == 130
    rounds = [event["round"] for event in events(folder)]
    assert rounds == sorted(set(rounds))


@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_a_run_killed_before_its_first_checkpoint_begins_anew(
    more: list[str], job: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loaded = tmp_path / "r", load_job(job)
    save_job(folder, resolve_job(job), loaded)

    def end(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save", end)
        with pytest.raises(MemoryError):
            tw.train(loaded, callbacks=[], out=folder)
    assert len(events(folder)) == 1
    shown = here("train", job, "--out", folder, *more, "--json")
    assert shown.returncode == 0, shown.stderr
    assert [event["round"] for event in events(folder)] == [0, 3, 6]


@pytest.mark.parametrize(
    "file",
    [
        "run.json",
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in ("data.json", "job.toml", "private.json", "events.jsonl")
        ),
    ],
)
def test_a_run_killed_while_it_begins_begins_anew_by_resume_too(file: str, job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    command: list[str | Path] = [THINWIRE, "train", job, "--out", folder, "--json"]
    with Processes() as started:
        point = {"call": "replace", "path": f"/{file}", "when": "after", "do": "kill"}
        assert started.command(command, tmp_path, faults=[point]).code() == -9
        resumed = started.command([*command, "--resume"], tmp_path)
        assert resumed.code() == 0, resumed.stderr
    assert [event["round"] for event in events(folder)] == [0, 3, 6]
