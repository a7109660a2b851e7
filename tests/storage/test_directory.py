"""The run directory of the simulator: secrets apart, durable, and it says what it passed over."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest
import torch
from torch import nn

from thinwire.base.errors import BadInput, BadState
from thinwire.storage.atomic_file import WriteFailed
from thinwire.storage.folder_lock import FolderLock
from thinwire.storage.run_directory import RunDirectory
from thinwire.storage.run_facts import RunFacts

JOB = {"recipe": "a", "data": "b"}
SECRET = bytes(range(32))
FACTS = RunFacts(("bank",), "shop", {"bank": 4}, "sum")


def begun(folder: Path, saves: int = 0) -> RunDirectory:
    directory = RunDirectory(folder)
    directory.begin({"name": "x"}, SECRET, FACTS)
    for number in range(1, saves + 1):
        save(directory, number)
    return directory


def save(directory: RunDirectory, number: int) -> None:
    directory.save({"job": JOB, "number": number}, {"p0": {"w": torch.tensor([float(number)])}})


def number_in(folder: Path) -> int:
    data, tensors = RunDirectory(folder).load(JOB, ["p0"])
    assert float(tensors["p0"]["w"]) == data["number"]
    return int(data["number"])


def newest(folder: Path) -> Path:
    return max((folder / "checkpoints").iterdir())


def test_secrets_are_in_no_file_but_private_json(tmp_path: Path) -> None:
    directory = begun(tmp_path, 2)
    directory.finish([], {"p0": nn.Linear(2, 2)})
    key = json.loads((tmp_path / "private.json").read_text())["mac_key"]
    holders = [
        path.name
        for path in tmp_path.rglob("*")
        if path.is_file() and any(secret.encode() in path.read_bytes() for secret in (key, SECRET.hex()))
    ]
    assert holders == ["private.json"]
    assert stat.S_IMODE((tmp_path / "private.json").stat().st_mode) == 0o600
    resumed = RunDirectory(tmp_path)
    resumed.load(JOB, ["p0"])
    assert resumed.noise_secret == SECRET


def test_a_begin_that_was_killed_early_may_be_repeated(tmp_path: Path) -> None:
    begun(tmp_path)
    (tmp_path / "events.jsonl").unlink()
    for secret in (b"another secret, of 32 bytes, too.", b"before the first checkpoint, too"):
        directory = RunDirectory(tmp_path)
        directory.begin({"name": "x"}, secret, FACTS)
        assert directory.noise_secret == secret
    save(directory, 1)
    with pytest.raises(BadInput, match="already holds a run"):
        RunDirectory(tmp_path).begin({}, SECRET, FACTS)


def test_resuming_goes_on_counting(tmp_path: Path) -> None:
    begun(tmp_path, 2)
    for number in (3, 4, 5):
        directory = RunDirectory(tmp_path)
        directory.load(JOB, ["p0"])
        save(directory, number)
        assert number_in(tmp_path) == number
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_a_fall_back_is_logged_and_may_happen_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path, 3)
    for _ in range(3):
        (newest(tmp_path) / "state.json").write_text("{}")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            directory = RunDirectory(tmp_path)
            assert directory.load(JOB, ["p0"])[0]["number"] == 2
        assert "generation 3 cannot be used: state.json is damaged" in caplog.text
        assert "fell back to generation 2" in caplog.text
        save(directory, 3)
        assert number_in(tmp_path) == 3


def test_a_save_that_was_not_recorded_counts(tmp_path: Path) -> None:
    directory = begun(tmp_path, 2)
    copy = (tmp_path / "private.json").read_bytes()
    save(directory, 3)
    (tmp_path / "private.json").write_bytes(copy)
    assert number_in(tmp_path) == 3
    assert json.loads((tmp_path / "private.json").read_text())["generation"] == 3


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no checkpoint to resume from"):
        RunDirectory(tmp_path / "nothing").load(JOB, ["p0"])
    assert not (tmp_path / "nothing").exists()
    begun(tmp_path / "run")
    with pytest.raises(BadInput, match="holds no checkpoint to resume from"):
        number_in(tmp_path / "run")
    begun(tmp_path / "saved", 1)
    with pytest.raises(BadState, match="another job: data differ"):
        RunDirectory(tmp_path / "saved").load({**JOB, "data": "c"}, ["p0"])
    with pytest.raises(BadState, match=r"for the parties \['p0'\], the job has \['p1'\]"):
        RunDirectory(tmp_path / "saved").load(JOB, ["p1"])
    assert number_in(tmp_path / "saved") == 1


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "a", 2)
    begun(tmp_path / "b", 2)
    for path in (tmp_path / "a" / "checkpoints").iterdir():
        for file in path.iterdir():
            (tmp_path / "b" / "checkpoints" / path.name / file.name).write_bytes(file.read_bytes())
    with pytest.raises(BadState, match="its MAC is wrong"):
        number_in(tmp_path / "b")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    directory = begun(tmp_path)
    (tmp_path / "models").touch()
    with pytest.raises(WriteFailed, match=r"models/p0.safetensors: could not write \d+ bytes"):
        directory.finish([], {"p0": nn.Linear(1, 1)})


def test_a_runs_folder_its_models_and_preparations_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = begun(tmp_path / "runs" / "one", 2)
        directory.keep("p0", {"preparation": "{}", "labels": "{}"})
        directory.finish([], {"p0": nn.Linear(2, 2)})
        FolderLock(tmp_path / "runs" / "two").acquire()
    finally:
        os.umask(before)
    run = tmp_path / "runs" / "one"
    folders = [tmp_path / "runs" / "two", run, *(path for path in run.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert len(list((run / "models").iterdir())) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run / "models").iterdir()} == {0o600}
