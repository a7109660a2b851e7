"""`thinwire report` and `dashboard` as a user types them; the reports that train, compare and demo leave."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from job.small import write_job
from report.records import Page, refers_outside
from thinwire.cli.dashboard import _listen
from thinwire.job.job_loader import load_job
from thinwire.training.train import train
from training.party.parties import Shape, made, ran

Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_dir(tmp_path: Path, here: Here) -> Path:
    assert here("train", write_job(tmp_path), "--out", tmp_path / "runs" / "one").returncode == 0
    return tmp_path / "runs" / "one"


def test_train_says_where_its_report_is(tmp_path: Path, here: Here) -> None:
    asked = ("--set", "job.baselines=true", "--set", "job.importance=true")
    shown = here("train", write_job(tmp_path), *asked, "--out", tmp_path / "r")
    for said in ("test rows: ", "Together: ", "The baselines took ", "Value of each party's data"):
        assert f"\n  {said}" in shown.stdout
    assert f"report: {tmp_path / 'r' / 'report.html'}" in shown.stdout
    assert (tmp_path / "r" / "report.html").is_file()


def test_one_run_has_its_report_in_its_folder_and_several_have_theirs_here(
    run_dir: Path, tmp_path: Path, here: Here
) -> None:
    (run_dir / "report.html").unlink()
    shown = here("report", run_dir)
    assert shown.returncode == 0, shown.stderr
    html = (run_dir / "report.html").read_text()
    assert refers_outside(Page(html)) == []
    assert f"thinwire train {run_dir}/job.toml" in html
    assert "party.bank" not in html  # tables, not TOML paths
    assert 'name = "bank"' in html.replace("&#34;", '"')
    assert here("train", tmp_path / "job.toml", "--out", run_dir.parent / "two", "--seed", "1").returncode == 0
    both = here("report", run_dir.parent, "--json", folder=tmp_path)
    said = json.loads(both.stdout)
    assert said["report"] == "report.html"
    assert said["runs"] == [str(run_dir.parent / name) for name in ("one", "two")]
    assert said["bytes"] == (tmp_path / "report.html").stat().st_size
    assert "2 runs compared" in (tmp_path / "report.html").read_text()
    named = here("report", run_dir, run_dir, "--out", tmp_path / "deep" / "named.html")
    assert named.returncode == 0, named.stderr
    assert (tmp_path / "deep" / "named.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nothing"], "nothing: the folder does not exist"),
        (["report", "."], ". holds no run"),
        (["report"], "Missing argument"),
        (["dashboard", "nothing"], "nothing: the folder does not exist"),
        (["dashboard", ".", "--port", "70000"], "65535"),
        (["dashboard", ".", "--host", "no such host"], "cannot listen on no such host"),
    ],
)
def test_wrong_input(tmp_path: Path, here: Here, arguments: list[str], message: str) -> None:
    shown = here(*arguments, folder=tmp_path)
    assert shown.returncode == 2
    assert message in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path, here: Here) -> None:
    taken = _listen("127.0.0.1", 0)
    try:
        shown = here("dashboard", tmp_path, "--port", str(taken.getsockname()[1]))
    finally:
        taken.close()
    assert shown.returncode == 2
    assert "give another --port" in shown.stderr


def test_a_missing_extra_is_named_with_its_command(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    shown = here("dashboard", tmp_path)
    assert shown.returncode == 2
    assert "the live page needs uvicorn: pip install 'thinwire[dashboard]'" in shown.stderr


def test_compare_keeps_its_runs_and_reports_them(tmp_path: Path, here: Here) -> None:
    job = write_job(tmp_path)
    shown = here("compare", job, "--methods", "svfl,thin", "--seeds", "0,1", "--out", tmp_path / "c", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["report"] == str(tmp_path / "c" / "report.html")
    assert {one.name for one in (tmp_path / "c").iterdir()} == {"svfl-0", "svfl-1", "thin-0", "thin-1", "report.html"}
    html = (tmp_path / "c" / "report.html").read_text()
    assert "svfl (2 seeds), thin (2 seeds)" in html
    again = here("compare", job, "--methods", "svfl", "--out", tmp_path / "c")
    assert again.returncode == 2
    assert "already exists and is not empty; give another one" in again.stderr


def test_every_party_over_the_network_has_its_own_report(tmp_path: Path) -> None:
    """The label party has the curves and the answers; a feature party has its bytes, its time and its ledger."""
    asked = {"epochs": 4, "baselines": True, "importance": True}
    place = made(tmp_path, Shape({"method": "celu", "capacity": 2, "reuse": 3}, job=asked, own_features=True))
    summaries = ran(place)
    label, bank = ((place.out(name) / "report.html").read_text() for name in ("clinic", "bank"))
    for html in (label, bank):
        assert refers_outside(Page(html)) == []
        assert "Where the time went" in html
        assert "Training bytes by direction and kind" in html
    assert "Test accuracy by epoch" in label
    assert "Calibration" in label
    assert "This report shows what bank knows about the run" in bank
    assert "Only clinic, which has the labels, knows the model quality" in bank
    assert "thinwire party" in bank
    assert "private.json" not in bank
    assert "what clinic reaches alone" in label
    assert "joined table" not in label
    assert "Comparison with baselines" not in bank
    job = load_job(place.job)
    alone = [one for one in train(job, callbacks=[]).baselines if one.columns == "clinic"]
    found = [(one["name"], one["columns"], one["value"]) for one in summaries["clinic"]["baselines"]]
    assert found == [(one.name, one.columns, one.value) for one in alone], "as in the simulator, of its own columns"
    assert "baselines" not in summaries["bank"]
    assert (
        json.loads((place.out("clinic") / "result.json").read_text())["baselines"] == summaries["clinic"]["baselines"]
    )
