"""A checkpoint that is not exactly what was saved is never loaded."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from thinwire.base.errors import BadInput, BadState, Diverged
from thinwire.storage.checkpoints import CheckpointFailed, Checkpoints, LoadedCheckpoint
from thinwire.storage.json_file import canonical_json

KEY = b"k" * 32
OWNER = {"run": "r", "party": "p0"}


def any_state(data: dict[str, Any]) -> None:
    """Nothing to object to."""


def opened(folder: Path, incarnation: int = 0, key: bytes = KEY, owner: dict[str, str] = OWNER) -> Checkpoints:
    return Checkpoints(folder, key, owner, incarnation)


def tensors(generation: int) -> dict[str, dict[str, Tensor]]:
    return {"p0": {"learner.module.w": torch.arange(3.0) + generation, "memory.rows": torch.tensor([generation])}}


def saved(folder: Path, *generations: int, incarnation: int = 0) -> Checkpoints:
    checkpoints = opened(folder, incarnation)
    for generation in generations:
        checkpoints.save({"round": generation}, tensors(generation), generation)
    return checkpoints


def loaded(checkpoints: Checkpoints, newest: int) -> LoadedCheckpoint:
    found = checkpoints.load(newest, any_state)
    assert found is not None
    assert found.data == {"round": found.generation}
    for name, tensor in tensors(found.generation)["p0"].items():
        assert torch.equal(found.tensors["p0"][name], tensor)
    return found


def place(folder: Path, generation: int) -> Path:
    (found,) = folder.glob(f"{generation:010d}-*")
    return found


def test_two_generations_are_kept_and_the_newest_loads(tmp_path: Path) -> None:
    assert opened(tmp_path / "c").load(0, any_state) is None
    saved(tmp_path / "c", 1, 2, 3)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["0000000002-000000", "0000000003-000000"]
    found = loaded(opened(tmp_path / "c"), 3)
    assert found.generation == 3
    assert found.warnings == []


def test_save_tells_the_bytes_it_wrote(tmp_path: Path) -> None:
    written = opened(tmp_path).save({"round": 1}, tensors(1), 1)
    assert written == sum(path.stat().st_size for path in place(tmp_path, 1).iterdir())


def test_tensors_may_share_memory_and_be_empty_or_of_any_type(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    held = {"a": whole, "b": whole[1], "c": whole.T, "d": torch.zeros(0, 3), "e": torch.tensor(True)}
    held["f"] = torch.tensor([1.5], dtype=torch.bfloat16)
    opened(tmp_path).save({}, {"p0": held}, 1)
    found = opened(tmp_path).load(1, any_state)
    assert found is not None
    assert found.tensors["p0"].keys() == held.keys()
    assert all(torch.equal(found.tensors["p0"][name], tensor) for name, tensor in held.items())


# Damage -----------------------------------------------------------------------------------------------------------


def refused(folder: Path) -> None:
    with pytest.raises(BadState, match="holds no checkpoint that can be used"):
        opened(folder).load(1, any_state)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    files = sorted(place(tmp_path, 1).iterdir())
    assert [path.name for path in files] == ["manifest", "p0.safetensors", "state.json"]
    for path in files:
        whole = path.read_bytes()
        for index in range(len(whole)):
            for bit in range(8):
                flipped = bytearray(whole)
                flipped[index] ^= 1 << bit
                path.write_bytes(flipped)
                refused(tmp_path)
        path.write_bytes(whole)
    loaded(opened(tmp_path), 1)


def test_every_truncation_and_every_trailing_byte_is_noticed(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    for path in sorted(place(tmp_path, 1).iterdir()):
        whole = path.read_bytes()
        for cut in [*(whole[:size] for size in range(len(whole))), whole + b"\n", whole + b"\0"]:
            path.write_bytes(cut)
            refused(tmp_path)
        path.unlink()
        refused(tmp_path)
        path.write_bytes(whole)


def test_without_the_mac_a_forged_owner_would_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1)
    manifest = place(tmp_path, 1) / "manifest"
    manifest.write_bytes(manifest.read_bytes().replace(b'"party":"p0"', b'"party":"p1"'))
    with pytest.raises(BadState, match="MAC is wrong"):
        opened(tmp_path, owner={**OWNER, "party": "p1"}).load(1, any_state)
    monkeypatch.setattr("hmac.compare_digest", lambda *_: True)
    assert opened(tmp_path, owner={**OWNER, "party": "p1"}).load(1, any_state) is not None


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda path: damage(path / "manifest"), "MAC is wrong"),
        (lambda path: damage(path / "state.json"), r"state\.json is damaged"),
        (lambda path: damage(path / "p0.safetensors"), r"p0\.safetensors has \d+ bytes, not \d+"),
        (lambda path: (path / "state.json").unlink(), r"state\.json cannot be read: No such file"),
        (shutil.rmtree, "generation 3 is missing"),
    ],
)
def test_it_falls_back_one_generation_and_says_so(tmp_path: Path, spoil: Callable[[Path], None], reason: str) -> None:
    saved(tmp_path, 1, 2, 3)
    spoil(place(tmp_path, 3))
    checkpoints = opened(tmp_path)
    found = loaded(checkpoints, 3)
    assert found.generation == 2
    (why, said) = found.warnings
    assert re.search(reason, why)
    assert said == "fell back to generation 2"
    checkpoints.save({"round": 3}, tensors(3), 3)  # in the damaged one's place
    assert loaded(opened(tmp_path), 3).warnings == []
    assert loaded(checkpoints, 3).generation == 3


def test_both_damaged_says_why_and_what_to_do(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    damage(place(tmp_path, 1) / "state.json")
    damage(place(tmp_path, 2) / "manifest")
    with pytest.raises(BadState, match=r"generation 2 cannot.*MAC.*generation 1 cannot.*state\.json.*new run"):
        opened(tmp_path).load(2, any_state)


@pytest.mark.parametrize("other", [{"party": "p1"}, {"run": "another"}])
def test_another_partys_or_runs_checkpoint_is_refused(tmp_path: Path, other: dict[str, str]) -> None:
    saved(tmp_path, 1)
    with pytest.raises(BadState, match=r"it is of .* this is"):
        opened(tmp_path, owner=OWNER | other).load(1, any_state)
    with pytest.raises(BadState, match="MAC is wrong"):
        opened(tmp_path, key=b"x" * 32).load(1, any_state)


def test_a_rolled_back_folder_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    with pytest.raises(BadState, match="generation 4 is missing; generation 2 cannot be used: it was rolled back"):
        opened(tmp_path).load(4, any_state)
    assert loaded(opened(tmp_path), 3).warnings == ["generation 3 is missing", "fell back to generation 2"]
    place(tmp_path, 2).rename(tmp_path / "0000000004-000000")
    with pytest.raises(BadState, match="generation 2 was put in its place"):
        opened(tmp_path).load(4, any_state)


def test_a_generation_that_was_not_yet_recorded_is_the_newest(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    found = loaded(opened(tmp_path), 1)
    assert (found.generation, found.warnings) == (2, [])
    saved(tmp_path / "first", 1)
    assert loaded(opened(tmp_path / "first"), 0).generation == 1


def test_what_the_check_says_reaches_the_caller(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)

    def refuse(data: dict[str, Any]) -> None:
        raise BadState(f"created by another job in round {data['round']}")

    with pytest.raises(BadState, match="another job in round 2"):
        opened(tmp_path).load(2, refuse)


# Signed, and still wrong ------------------------------------------------------------------------------------------


def signed_again(folder: Path, content: bytes | None = None, **changes: Any) -> None:
    """As if our own key had signed it."""
    path = place(folder, 1)
    manifest = json.loads((path / "manifest").read_bytes().partition(b"\n")[2]) | changes
    if content is not None:
        (path / "p0.safetensors").write_bytes(content)
        manifest["files"]["p0"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    text = canonical_json(manifest)
    (path / "manifest").write_bytes(opened(folder)._mac(text) + b"\n" + text)


def safetensors_file(*spans: tuple[int, int], size: int) -> bytes:
    header = {
        f"t{n}": {"dtype": "F32", "shape": [(b - a) // 4], "data_offsets": [a, b]} for n, (a, b) in enumerate(spans)
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pickle.dumps({"w": [1.0]}), id="pickle"),
        pytest.param(safetensors_file((0, 8), (12, 16), size=16), id="hole"),
        pytest.param(safetensors_file((0, 8), (4, 12), size=12), id="overlap"),
        pytest.param(safetensors_file((0, 8), size=12), id="trailing"),
        pytest.param(safetensors_file((0, 8), size=4), id="truncated"),
        pytest.param(b"", id="empty"),
    ],
)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    saved(tmp_path, 1)
    signed_again(tmp_path, content)
    with pytest.raises(BadState, match=r"p0\.safetensors is not a safetensors file"):
        opened(tmp_path).load(1, any_state)


def test_a_newer_format_stops_at_once_and_an_older_one_falls_back(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    signed_again(tmp_path, format=7)
    with pytest.raises(BadState, match="has format 7, this version reads 2; use the version"):
        opened(tmp_path).load(1, any_state)
    signed_again(tmp_path, format=1)
    with pytest.raises(BadState, match="cannot be used: it has format 1"):
        opened(tmp_path).load(1, any_state)


@pytest.mark.parametrize(
    ("name", "value", "usable"),
    [
        ("learner.module.w", float("nan"), False),
        ("top.module.w", float("inf"), True),
        ("module.w", float("-inf"), True),
        ("uplink.surrogate", float("nan"), False),
        ("memory.bound", float("inf"), True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_spoiled_weights_are_refused(
    tmp_path: Path, name: str, value: float, usable: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"p0": {name: torch.tensor([1.0, value], dtype=dtype)}}
    if usable:
        opened(tmp_path).save({}, held, 1)
        assert opened(tmp_path).load(1, any_state) is not None
        return
    with pytest.raises(Diverged, match=f"p0: {name} holds NaN"):
        opened(tmp_path).save({}, held, 1)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr("thinwire.storage.checkpoints._find_spoiled", lambda _: None)
        opened(tmp_path).save({}, held, 1)
    with pytest.raises(BadState, match=f"{name} holds NaN"):
        opened(tmp_path).load(1, any_state)


# Saving -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../p0", "", "a/b", "p.0", ".", "p0\n"])
def test_only_a_partys_name_names_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="is not a valid name for a tensor file"):
        opened(tmp_path).save({}, {name: {}}, 1)
    assert list(tmp_path.iterdir()) == []


def test_generations_count_up(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    with pytest.raises(BadInput, match="generation 2 after 2"):
        checkpoints.save({}, {}, 2)
    loaded(opened(tmp_path), 2)


class Failing:
    """A call, the `number`-th of which fails."""

    def __init__(self, call: Callable[..., Any], number: int) -> None:
        self.call = call
        self.left = number

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.call(*args, **options)


@pytest.mark.parametrize(("name", "calls"), [("open", 5), ("writev", 3), ("fsync", 5), ("rename", 1), ("mkdir", 2)])
def test_an_error_at_any_call_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, calls: int
) -> None:
    for number in range(1, calls + 1):
        folder = tmp_path / str(number)
        checkpoints = saved(folder, 1, 2)
        told = ""
        with monkeypatch.context() as patch:
            call = Failing(getattr(os, name), number)
            patch.setattr(os, name, call)
            try:
                checkpoints.save({"round": 3}, tensors(3), 3)
            except CheckpointFailed as error:
                told = str(error)
        assert call.left <= 0
        if told:
            assert told == f"{folder}/0000000003-000000: could not write 31 bytes: No space left on device"
            assert not list(folder.glob("new-*"))
            assert loaded(opened(folder), 2).generation in (2, 3)
            checkpoints.save({"round": 3}, tensors(3), 3)
        assert loaded(opened(folder), 3).warnings == []


# Replaced processes -----------------------------------------------------------------------------------------------


def test_a_replaced_process_that_saves_late_does_no_harm(tmp_path: Path) -> None:
    old = saved(tmp_path, 1, 2, incarnation=1)
    new = opened(tmp_path, 2)
    loaded(new, 2)
    old.save({"round": "late"}, {}, 3)
    assert loaded(opened(tmp_path, 3), 2).generation == 2  # the new one had not saved yet
    new.save({"round": 3}, tensors(3), 3)
    old.save({"round": "late"}, {}, 4)
    assert loaded(opened(tmp_path, 3), 3).generation == 3
    new.save({"round": 4}, tensors(4), 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000003-000002", "0000000004-000002"]


def test_nor_does_its_generation_stand_in_for_a_damaged_one(tmp_path: Path) -> None:
    old = saved(tmp_path, 1, 2, incarnation=1)
    new = opened(tmp_path, 2)
    loaded(new, 2)
    new.save({"round": 3}, tensors(3), 3)
    old.save({"round": "late"}, {}, 3)
    damage(tmp_path / "0000000003-000002" / "manifest")
    assert loaded(opened(tmp_path, 3), 3).generation == 2
