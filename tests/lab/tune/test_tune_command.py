"""`thinwire tune` as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from job.small import write_job
from thinwire.job.job_loader import load_job
from thinwire.lab.tune import TuningResult
from thinwire.lab.tune.probe import Prediction

Here = Callable[..., subprocess.CompletedProcess[str]]

QUICK = ["--link", "1mbit,40ms", "--trials", "2", "--set", "job.epochs=12", "--set", "link.compute_ms=1.0"]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def test_a_table_a_proposal_and_a_job_that_trains(job: Path, here: Here) -> None:
    out = job.with_name("tuned.toml")
    shown = here("tune", job, *QUICK, "--target", "accuracy=0.8", "--out", out)
    assert shown.returncode == 0, shown.stderr
    for said in ("1 Mbit/s, round trip 40 ms", "accuracy 0.8 (from --target)", "svfl", "predicted", "[recipe]"):
        assert said in shown.stdout
    assert f"thinwire train {out}" in shown.stdout.replace("\n", "")
    assert "svfl: seed 0" in shown.stderr
    assert load_job(out).target == ("accuracy", 0.8)
    trained = here("train", out, "--out", job.with_name("run"), "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["target"]["reached_round"] is not None


def test_json_says_what_was_measured_and_what_is_predicted(job: Path, here: Here) -> None:
    shown = here("tune", job, *QUICK, "--json", "--seed", "4")
    assert shown.returncode == 0, shown.stderr
    found: dict[str, Any] = json.loads(shown.stdout)
    assert found["target"]["from"] == "what svfl reaches"
    assert found["measured"]["step_ms"] == {"bank": 1.0, "shop": 1.0, "clinic": 1.0}
    assert [probe["seed"] for probe in found["svfl"]["probes"]] == [4, 5]
    assert found["verified"]["seed"] == 6
    cost = found["proposal"]["to_target"]
    assert cost["total"] == cost["up"] + cost["down"]
    assert isinstance(cost["extrapolated"], bool)
    assert found["beats_svfl"] == (found["proposal"]["recipe"]["method"] != "svfl")


def test_a_target_that_is_not_reached_fails_and_says_what_to_do(job: Path, here: Here) -> None:
    out = job.with_name("tuned.toml")
    shown = here("tune", job, *QUICK, "--target", "accuracy=1.5", "--rounds", "6", "--out", out)
    assert shown.returncode == 1
    assert "no recipe reached accuracy 1.5 in 6 rounds; use more --rounds" in shown.stderr
    assert not out.exists()


@pytest.mark.parametrize("how", ["failed", "missed", "slow"])
def test_a_proposal_that_its_verification_refutes_is_not_written(
    how: str, job: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contradict(tuned: TuningResult, *_: object) -> TuningResult:
        proposal = next(one for one in tuned.candidates if one.prediction is not None)
        run = proposal.probes[0]
        slow = replace(proposal.prediction or Prediction(1, 1, 1, 1, False), seconds=1e6)
        verified = {
            "failed": replace(run, prediction=None, error="the loss is nan"),
            "missed": replace(run, prediction=None),
            "slow": replace(run, prediction=slow),
        }[how]
        return replace(tuned, proposal=proposal, verified=verified)

    monkeypatch.setattr("thinwire.lab.tune.tuner._verified", contradict)
    out = job.with_name("tuned.toml")
    arguments = (*QUICK, "--target", "accuracy=0.8", "--out", out)
    shown = here("tune", job, *arguments)
    assert shown.returncode == 1
    why = {"failed": "failed: the loss is nan", "missed": "did not reach accuracy 0.8", "slow": "on the link, svfl"}[
        how
    ]
    assert "the verification run does not confirm the proposal: with seed 0 it" in shown.stderr
    assert why in shown.stderr
    assert f"{out} is not written" in shown.stderr
    assert not out.exists()
    assert "[recipe]" not in shown.stdout
    if how == "missed":
        found = json.loads(here("tune", job, *arguments, "--json").stdout)
        assert (found["out"], why in found["refuted"]) == (None, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--link", "fast"], "--link: write RATE,RTT"),
        (["--link", "100mbit,40ms", "--target", "accuracy"], "--target: write METRIC=VALUE"),
        (["--link", "100mbit,40ms", "--target", "auc=0.9"], "'auc' is not among the job's metrics"),
        (["--link", "100mbit,40ms", "--rounds", "2"], "--rounds: a probe of 2 rounds is too short"),
        (["--link", "100mbit,40ms", "--trials", "0"], "--trials"),
        (["--link", "100mbit,40ms", "--out", "job.toml"], "the file already exists"),
        (["--link", "100mbit,40ms", "--out", "nowhere/tuned.toml"], "there is no folder nowhere"),
        ([], "--link is missing"),
    ],
)
def test_wrong_input(
    job: Path, arguments: list[str], message: str, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.parent)
    shown = here("tune", "job.toml", *arguments)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert shown.stdout == ""


def test_the_command_line_starts_without_the_search() -> None:
    code = "import sys, thinwire.cli; print('optuna' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


def test_ctrl_c_before_there_is_anything(job: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("thinwire.lab.tune.tune", interrupted)
    shown = here("tune", job, *QUICK)
    assert shown.returncode == 130
    assert "there is nothing to propose yet" in shown.stderr
