"""Frozen run folders: those of older versions open, those of later ones are refused with the way out.

formats/0 was written before run.json; formats/1 by the version that began it. Never make them anew: they are what
users have on their disks. Another format is another folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import thinwire as tw
from thinwire.base.errors import BadState
from thinwire.job.job_loader import load_job, resolve_job
from thinwire.job.job_snapshot import require_same_job
from thinwire.storage.run_directory import RunDirectory
from thinwire.storage.run_facts import FORMAT, read_facts

FORMATS = Path(__file__).with_name("formats")
ALL = sorted(path.name for path in FORMATS.iterdir())


@pytest.fixture(params=ALL)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy; a repository does not keep what only its owner may read."""
    shutil.copytree(FORMATS / request.param, tmp_path / "job")
    (tmp_path / "job/run/private.json").chmod(0o600)
    return tmp_path / "job"


def test_there_is_one_of_every_format() -> None:
    assert [str(number) for number in range(FORMAT + 1)] == ALL


def test_it_goes_on_where_it_was(folder: Path) -> None:
    job, run = folder / "job.toml", folder / "run"
    begun = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    require_same_job(run, resolve_job(job), load_job(job))
    result = tw.train(load_job(job), callbacks=[], out=run, resume=True)
    assert [event["round"] for event in result.history] == [0, 3, 6]
    assert result.history[:2] == begun
    straight = tw.train(load_job(job), callbacks=[])
    assert result.history[-1]["train"]["loss"] == pytest.approx(straight.history[-1]["train"]["loss"], abs=1e-5)
    assert result.bytes.total == straight.bytes.total


def test_another_run_begins_from_it(folder: Path) -> None:
    later = load_job(folder / "job.toml")
    taken = later.start_from(folder / "run", optimizers=True)
    assert taken.taken == ("bank", "shop", "top")
    assert sorted(taken.memories) == ["bank", "shop", "top"]
    for name, module in later.modules().items():
        held = load_file(folder / "run/models" / f"{name}.safetensors")
        assert all(torch.equal(tensor, held[key]) for key, tensor in module.state_dict().items())
    tw.train(later, callbacks=[])


def test_a_later_format_is_refused_with_the_way_to_upgrade(tmp_path: Path) -> None:
    shutil.copytree(FORMATS / str(FORMAT), tmp_path / "job")
    facts = tmp_path / "job/run/run.json"
    facts.write_text(json.dumps({**json.loads(facts.read_text()), "format": FORMAT + 1, "thinwire": "9.1"}))
    wanted = rf"written by thinwire '9.1' \(format {FORMAT + 1}\).*Upgrade: pip install --upgrade thinwire"
    with pytest.raises(BadState, match=wanted):
        RunDirectory(tmp_path / "job/run")
    with pytest.raises(BadState, match=wanted):
        load_job(tmp_path / "job/job.toml").start_from(tmp_path / "job/run")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "1"}', '{"format": 0}', '{"format": 1}', "\0"])
def test_a_damaged_run_json_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(BadState, match=r"run\.json is damaged"):
        read_facts(tmp_path)
