"""Kill -9 before any system call of a restart and its save leaves a generation that loads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from processes import call
from storage.killed_saves import content, opened, save, save_killed_at_every_call


def killed_at_every_call(folder: Path) -> list[Path]:
    call(save_killed_at_every_call, folder)
    found = [path for path in folder.iterdir() if path.name != "start"]
    assert len(found) > 30, "the calls are not counted"
    return found


def generation_in(folder: Path) -> int:
    """What a restart finds there; all of it must be right."""
    private, checkpoints = opened(folder)
    loaded = checkpoints.load(private.generation, lambda data: None)  # noqa: ARG005
    if loaded is None:
        return 0
    data, tensors = content(loaded.generation)
    assert loaded.data == data
    assert torch.equal(loaded.tensors["p0"]["learner.module.w"], tensors["p0"]["learner.module.w"])
    save(private, checkpoints, loaded.generation + 1)  # and it goes on
    assert not list(folder.rglob("new-*")), "what was not finished stays for ever"
    assert not list(folder.rglob("*.part"))
    return loaded.generation


@pytest.mark.long
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_the_old_or_the_new_generation_loads(tmp_path: Path, before: int) -> None:
    private, checkpoints = opened(tmp_path / "start")
    for generation in range(1, before + 1):
        save(private, checkpoints, generation)
    found = {path.name: generation_in(path) for path in killed_at_every_call(tmp_path)}
    assert set(found.values()) == {before, before + 1}


@pytest.mark.faults
def test_after_a_fall_back_too(tmp_path: Path) -> None:
    private, checkpoints = opened(tmp_path / "start")
    for generation in range(1, 4):
        save(private, checkpoints, generation)
    (manifest,) = (tmp_path / "start" / "checkpoints").glob("0000000003-*/manifest")
    manifest.write_bytes(b"damaged")
    found = {path.name: generation_in(path) for path in killed_at_every_call(tmp_path)}
    assert set(found.values()) == {2, 3}
