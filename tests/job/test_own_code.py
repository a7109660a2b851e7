"""What a job file, or a run from elsewhere, may cause to be imported or run: nothing that the owner did not name."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from torch import nn

from job.small import write_job
from thinwire import cli
from thinwire.base.errors import BadInput
from thinwire.job.job_loader import load_job
from thinwire.job.own_code import CodeSources
from thinwire.job.party_view import read_party_view
from thinwire.report.live.live_run import Board
from thinwire.report.live.sections import page

LEAVES_A_MARK = """
from pathlib import Path
from torch import nn
Path(__file__).with_name("imported").touch()
class Bottom(nn.Linear):
    def __init__(self, in_features: int, width: int) -> None:
        super().__init__(in_features, width)
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path)


def write_module(folder: Path, name: str) -> str:
    """A setting by which bank's model is this module's."""
    (folder / f"{name}.py").write_text(LEAVES_A_MARK)
    return f'party.bank.model={{module="{name}:Bottom",width=4}}'


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["thinwire", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


COMMANDS = [("check",), ("doctor", "--name", "bank"), ("train",)]


@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_a_job_file_runs_no_command(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    setting = 'party.bank.model={module="subprocess:Popen",args=["touch","executed"]}'
    monkeypatch.chdir(job.parent)
    run(monkeypatch, command[0], job, *command[1:], "--set", setting)
    shown = capsys.readouterr()
    assert not (job.parent / "executed").exists()
    assert "subprocess:Popen" in shown.out + shown.err
    assert "--code" in shown.out + shown.err


def test_a_class_is_looked_at_before_it_is_called(job: Path) -> None:
    message = "party.bank.model.module: subprocess:Popen is the class Popen, not a class of torch modules"
    settings = ['party.bank.model={module="subprocess:Popen",args=["touch","executed"]}']
    with pytest.raises(BadInput, match=re.escape(message)):
        read_party_view(job, "bank", settings, CodeSources(packages=("subprocess",))).load_features()
    with pytest.raises(BadInput, match="subprocess:Popen is code, and it is not in"):
        read_party_view(job, "bank", settings).load_features()


@pytest.mark.parametrize("command", COMMANDS[:2], ids=["check", "doctor"])
def test_check_and_doctor_run_code_only_when_told(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    setting = write_module(job.parent, f"told_by_{command[0]}")
    asked = (command[0], job, *command[1:], "--set", setting, "--json")
    run(monkeypatch, *asked)
    assert not (job.parent / "imported").exists()
    assert "--code" in "".join(capsys.readouterr())
    run(monkeypatch, *asked, "--code", job.parent)
    assert (job.parent / "imported").exists()
    assert "--code" not in capsys.readouterr().out


@pytest.fixture
def foreign_run(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A run whose own folder holds the module that its job names, and whose owner keeps it elsewhere too."""
    name = f"foreign_{request.node.callspec.id}" if hasattr(request.node, "callspec") else "foreign"
    folder = tmp_path / "run"
    assert run(monkeypatch, "train", job, "--set", write_module(tmp_path, name), "--out", folder, "--json") == 0
    (tmp_path / "imported").unlink()
    (folder / f"{name}.py").write_text(LEAVES_A_MARK)
    del sys.modules[name]
    return folder


def list_commands(folder: Path) -> dict[str, list[object]]:
    return {
        "predict": ["predict", folder, "--out", folder.parent / "scores.csv"],
        "audit": ["audit", folder, "--rows", "20"],
        "export": ["export", folder, "--to", "exported-program", "--out", folder.parent / "exported"],
        "report": ["report", folder],
    }


@pytest.mark.parametrize("command", ["predict", "audit", "export", "report"])
def test_a_run_from_elsewhere_runs_nothing(
    foreign_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.chdir(foreign_run)  # where the reader stands makes no difference
    capsys.readouterr()
    code = run(monkeypatch, *list_commands(foreign_run)[command])
    assert not (foreign_run / "imported").exists()
    assert not (foreign_run.parent / "imported").exists()
    if command != "report":
        assert code == 2
        assert "--code ./FOLDER" in capsys.readouterr().err


def test_nor_does_the_dashboard(foreign_run: Path) -> None:
    assert "efvfl" in page(Board(foreign_run.parent), [])
    assert not (foreign_run / "imported").exists()


def test_its_owner_names_where_the_code_is(
    foreign_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(monkeypatch, *list_commands(foreign_run)["predict"], "--code", foreign_run.parent, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 0
    assert (foreign_run.parent / "imported").exists()
    assert not (foreign_run / "imported").exists()


def test_a_package_is_not_mistaken_for_a_folder_that_lies_here(
    foreign_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = foreign_run / "foreign"
    here.mkdir()
    (here / "foreign.py").write_text(LEAVES_A_MARK)
    monkeypatch.chdir(foreign_run)
    assert run(monkeypatch, *list_commands(foreign_run)["predict"], "--code", "foreign") == 2
    assert "foreign:Bottom cannot be loaded: No module named 'foreign'" in capsys.readouterr().err
    assert not (here / "imported").exists()
    assert CodeSources.parse([".", "./foreign", "foreign"]) == CodeSources((foreign_run, here), ("foreign",))


def test_the_environment_names_packages_and_folders(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THINWIRE_CODE", f"torch.nn:{job.parent}")
    found = CodeSources.parse(["json"])
    assert found == CodeSources((job.parent.resolve(),), ("json", "torch.nn"))
    assert found.allow("torch.nn.modules.linear:Linear")
    assert not found.allow("torch:nn")
    setting = 'party.bank.model={module="torch.nn:Linear",out_features=4}'
    assert load_job(job, [setting]).parties[0].bottom.out_features == 4


def test_a_file_with_the_name_of_a_loaded_module_is_not_mistaken_for_it(job: Path) -> None:
    (job.parent / "json.py").write_text(LEAVES_A_MARK)
    with pytest.raises(BadInput, match=r"party\.bank\.model\.module: json in .* cannot be loaded: a module of that"):
        load_job(job, ['party.bank.model={module="json:JSONDecoder"}'])


def test_two_jobs_have_modules_of_one_name(job: Path, tmp_path: Path) -> None:
    setting = write_module(tmp_path, "one_name")
    (tmp_path / "other").mkdir()
    other = write_job(tmp_path / "other")
    text = LEAVES_A_MARK.replace("Bottom(nn.Linear)", "Bottom(nn.Sequential)")
    (tmp_path / "other" / "one_name.py").write_text(
        text.replace("(in_features, width)", "(nn.Linear(in_features, width))")
    )
    kinds = [type(load_job(path, [setting]).parties[0].bottom) for path in (job, other, job)]
    assert [kind.__base__ for kind in kinds] == [nn.Linear, nn.Sequential, nn.Linear]
