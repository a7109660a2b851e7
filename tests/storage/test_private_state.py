"""private.json: secret from its first byte, never half written, and never taken back by a replaced process."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from thinwire.base.errors import BadInput, BadState
from thinwire.storage.atomic_file import WriteFailed
from thinwire.storage.json_file import canonical_json
from thinwire.storage.private_state import PrivateState, Replaced, _check


def rewritten(folder: Path, **changes: Any) -> None:
    path = folder / "private.json"
    held = json.loads(path.read_text()) | changes
    del held["check"]
    path.write_bytes(canonical_json({**held, "check": _check(held)}))


def test_a_new_one_has_fresh_secrets_and_is_found_again(tmp_path: Path) -> None:
    made = PrivateState.open(tmp_path / "a")
    assert len(made.mac_key) == len(made.noise_secret) == 32
    assert len({made.mac_key, made.noise_secret, PrivateState.open(tmp_path / "b").mac_key}) == 3
    made.begin_incarnation()
    made.set_run_nonce("nonce")
    made.set_generation(4)
    made.set_aborted("a party left")
    made.set_finished(True)
    made.set_noise_secret(b"n" * 32)
    found = PrivateState.open(tmp_path / "a")
    assert (found.incarnation, found.run_nonce, found.generation) == (1, "nonce", 4)
    assert (found.abort_reason, found.is_finished, found.noise_secret) == ("a party left", True, b"n" * 32)
    assert found.mac_key == made.mac_key


def test_each_process_has_a_higher_number(tmp_path: Path) -> None:
    assert [PrivateState.open(tmp_path).begin_incarnation() for _ in range(3)] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["incarnation-000003", "private.json"]


def test_no_secret_is_shown(tmp_path: Path) -> None:
    made = PrivateState.open(tmp_path)
    for secret in (made.mac_key, made.noise_secret):
        assert secret.hex() not in repr(made)
        assert repr(secret) not in repr(made)
    assert "incarnation=0" in repr(made)


def test_the_file_is_closed_to_others_from_its_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    writev = os.writev

    def looking(descriptor: int, parts: list[bytes]) -> int:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return writev(descriptor, parts)

    monkeypatch.setattr(os, "writev", looking)
    before = os.umask(0)
    try:
        PrivateState.open(tmp_path).begin_incarnation()
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600]
    assert stat.S_IMODE((tmp_path / "private.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_open_to_others_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    PrivateState.open(tmp_path)
    (tmp_path / "private.json").chmod(mode)
    with pytest.raises(BadInput, match=r"chmod 600 .*private\.json"):
        PrivateState.open(tmp_path)


def test_every_flipped_bit_and_every_truncation_is_noticed(tmp_path: Path) -> None:
    PrivateState.open(tmp_path)
    path = tmp_path / "private.json"
    whole = path.read_bytes()
    for index in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[index] ^= 1 << bit
            path.write_bytes(flipped)
            with pytest.raises(BadState, match=r"(is damaged: .* restore it|has format \d, this version reads 2)"):
                PrivateState.open(tmp_path)
        path.write_bytes(whole[:index])
        with pytest.raises(BadState, match="is damaged"):
            PrivateState.open(tmp_path)


@pytest.mark.parametrize("text", ["[]", "1", "null", "{}", '{"format": 1}', "[" * 100_000])
def test_other_json_is_damage(tmp_path: Path, text: str) -> None:
    path = tmp_path / "private.json"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(BadState, match="is damaged"):
        PrivateState.open(tmp_path)


def test_the_first_format_counted_no_charges_and_is_still_read(tmp_path: Path) -> None:
    made = PrivateState.open(tmp_path)
    path = tmp_path / "private.json"
    held = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("check", "charges")}
    held["format"] = 1
    path.write_bytes(canonical_json({**held, "check": _check(held)}))
    found = PrivateState.open(tmp_path)
    assert found.mac_key == made.mac_key
    found.open_charges(tmp_path / "charges.jsonl").record("release 0", dict)
    found.set_generation(1)
    assert json.loads(path.read_text())["charges"] == {"charges.jsonl": 1}


def test_a_newer_format_names_both_numbers(tmp_path: Path) -> None:
    PrivateState.open(tmp_path)
    rewritten(tmp_path, format=9, something_new=True)
    with pytest.raises(BadState, match="format 9, this version reads 2; use the version that wrote it"):
        PrivateState.open(tmp_path)


def test_a_replaced_process_changes_nothing(tmp_path: Path) -> None:
    old = PrivateState.open(tmp_path)
    old.begin_incarnation()
    new = PrivateState.open(tmp_path)
    new.begin_incarnation()
    new.set_generation(5)
    with pytest.raises(Replaced, match="process 2 of this party has taken over from this one, which was 1"):
        old.set_generation(3)
    assert old.generation == 0
    assert PrivateState.open(tmp_path).generation == 5


def test_no_number_is_given_twice_even_if_the_file_went_back(tmp_path: Path) -> None:
    before = PrivateState.open(tmp_path)
    before.begin_incarnation()
    copy = (tmp_path / "private.json").read_bytes()
    PrivateState.open(tmp_path).begin_incarnation()
    (tmp_path / "private.json").write_bytes(copy)  # what a process stopped just before its rename does
    assert PrivateState.open(tmp_path).begin_incarnation() == 3
    assert before.begin_incarnation() == 4


def test_two_that_begin_at_once_have_different_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = PrivateState.open(tmp_path), PrivateState.open(tmp_path)
    monkeypatch.setattr("thinwire.storage.private_state._claims", lambda folder: [])  # noqa: ARG005
    assert [first.begin_incarnation(), second.begin_incarnation()] == [1, 2]


def test_a_full_disk_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = PrivateState.open(tmp_path)

    def full(descriptor: int, parts: list[bytes]) -> int:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(WriteFailed, match=r"private.json: could not write \d+ bytes: No space left"):
            made.set_generation(3)
    assert made.generation == PrivateState.open(tmp_path).generation == 0
    assert [path.name for path in tmp_path.iterdir()] == ["private.json"]
    made.set_generation(3)
    assert PrivateState.open(tmp_path).generation == 3


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WriteFailed, match="Not a directory"):
        PrivateState.open(tmp_path / "file" / "run")
