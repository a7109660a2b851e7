"""Retention rules: days count from a run's end, unfinished runs are left alone, models stay."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.conftest import here  # noqa: F401
from job.small import JOB, write_job
from thinwire.base.errors import BadInput
from thinwire.job.job_snapshot import read_retention
from thinwire.job.party_view import read_party_view
from thinwire.storage.private_state import PrivateState
from thinwire.storage.retention import Retention, clean
from thinwire.training.party.startup import open_party_run
from training.party.parties import Seen, Shape, made, ran

Here = Callable[..., subprocess.CompletedProcess[str]]
RULES = "\n[retention]\ncheckpoints_days = 30\ncheckpoints_count = 1\nmessages_days = 7\nlogs_days = 2\n"
NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def network_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = made(tmp_path_factory.mktemp("place"), Shape({"method": "svfl"}))
    ran(place, settings=["network.checkpoint_seconds=0.001"])
    return place.out("bank")


@pytest.fixture
def run(network_run: Path, tmp_path: Path) -> Path:
    """A party's finished run."""
    subprocess.run(["cp", "-rp", network_run, tmp_path / "run"], check=True)
    return tmp_path / "run"


def ended(run: Path, days_ago: float) -> Path:
    then = (NOW - timedelta(days=days_ago)).timestamp()
    os.utime(run / "ledger.json", (then, then))
    return run


def parts(run: Path) -> set[str]:
    return {
        name
        for name in ("checkpoints", "sent", "answers", "models", "log.jsonl", "ledger.json")
        if (run / name).exists()
    }


@pytest.mark.parametrize(
    ("days_ago", "left"), [(6.9, {"checkpoints", "sent", "answers"}), (7.1, {"checkpoints"}), (31, set())]
)
def test_days_count_from_the_end(run: Path, days_ago: float, left: set[str]) -> None:
    rules = Retention(checkpoints_days=30, messages_days=7)
    before = parts(run)
    done = clean(ended(run, days_ago), rules, NOW)
    assert parts(run) == (left | {"models", "log.jsonl", "ledger.json"}) & before
    assert {one.path for one in done.removed} == before - parts(run)
    assert all(one.bytes > 0 for one in done.removed if one.path == "checkpoints")
    assert clean(run, rules, NOW).removed == []  # twice is no harm


def test_one_generation_is_enough_after_the_end(run: Path) -> None:
    assert len(list((run / "checkpoints").iterdir())) == 2
    newest = max(path.name for path in (run / "checkpoints").iterdir())
    clean(run, Retention(checkpoints_count=1), NOW)
    assert [path.name for path in (run / "checkpoints").iterdir()] == [newest]


def test_lines_of_the_log_go_by_their_own_age(run: Path) -> None:
    def line(days_ago: float) -> str:
        return json.dumps({"time": (NOW - timedelta(days=days_ago)).isoformat(), "event": f"{days_ago}"}) + "\n"

    (run / "log.jsonl").write_text(line(5) + line(1) + "half a li\n" + line(3))
    (gone,) = clean(run, Retention(logs_days=2), NOW).removed
    assert gone.path == "log.jsonl: 2 lines"
    assert (run / "log.jsonl").read_text() == line(1) + "half a li\n"


def test_a_finished_party_whose_checkpoints_are_gone_says_so(network_run: Path, tmp_path: Path) -> None:
    place = made(tmp_path, Shape({"method": "svfl"}))
    ran(place)
    clean(place.out("bank"), Retention(checkpoints_days=0, messages_days=0), datetime.now(UTC))
    with pytest.raises(BadInput, match="is finished, and its checkpoints were removed"):
        open_party_run(read_party_view(place.job, "bank"), place.out("bank"), Seen().audience())


def test_the_rules_stand_in_the_job_and_may_change(tmp_path: Path, here: Here) -> None:  # noqa: F811
    write_job(tmp_path, JOB + RULES)
    assert here("train", "job.toml", "--out", "run", "--json", folder=tmp_path).returncode == 0
    assert read_retention(tmp_path / "run") == Retention(30, 1, 7, 2)
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1  # at the end of the run already
    ended(tmp_path / "run", 1e5)
    shown = here("clean", "run", folder=tmp_path)
    assert (shown.returncode, "removed checkpoints (" in shown.stdout) == (0, True)
    assert (tmp_path / "run/models/top.safetensors").exists()
    shown = here("train", "job.toml", "--out", "run", "--resume", "--set", "job.epochs=3", folder=tmp_path)
    assert (shown.returncode, "its checkpoints were removed" in shown.stderr) == (2, True)


def test_nothing_is_kept_where_nothing_is_to_be_kept(tmp_path: Path, here: Here) -> None:  # noqa: F811
    write_job(tmp_path, JOB + "\n[retention]\ncheckpoints_days = 0\n")
    shown = here("train", "job.toml", "--out", "run", "--json", folder=tmp_path)
    assert json.loads(shown.stdout)["rounds"] == 6
    assert "run: removed checkpoints (" in shown.stderr
    assert not (tmp_path / "run/checkpoints").exists()


def test_runs_that_may_go_on_are_left_alone_and_rules_are_needed(tmp_path: Path, here: Here) -> None:  # noqa: F811
    write_job(tmp_path)
    assert here("train", "job.toml", "--out", "run", "--json", folder=tmp_path).returncode == 0
    shown = here("clean", "run", folder=tmp_path)
    assert (shown.returncode, "has no [retention] section" in shown.stderr) == (2, True)
    private = PrivateState.open(tmp_path / "run")
    assert private.is_finished
    private.set_finished(False)
    shown = here("clean", "run", "--checkpoints-days", "0", folder=tmp_path)
    assert (shown.returncode, "run: not finished: nothing was removed" in shown.stdout) == (0, True)
    private.set_finished(True)
    shown = here("clean", "nowhere", "--logs-days", "1", folder=tmp_path)
    assert (shown.returncode, "is not a run folder" in shown.stderr) == (2, True)
    shown = here("clean", "run", "--checkpoints-days", "0", "--json", folder=tmp_path)
    assert json.loads(shown.stdout)["runs"][0]["removed"][0]["path"] == "checkpoints"


@pytest.mark.parametrize("rule", ["checkpoints_days = -1", "checkpoints_count = 3", "days = 3", 'logs_days = "x"'])
def test_rules_that_cannot_be_are_refused(tmp_path: Path, here: Here, rule: str) -> None:  # noqa: F811
    write_job(tmp_path, f"{JOB}\n[retention]\n{rule}\n")
    shown = here("check", "job.toml", folder=tmp_path)
    assert (shown.returncode, "retention." in shown.stderr) == (2, True)
