"""Encrypted logs: records one by one, a torn tail as in a readable log, and nothing out of its place."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from thinwire.base.errors import BadState
from thinwire.net.links.outgoing_log import DamagedLog, LogFailed, OutgoingLog
from thinwire.storage.atomic_file import WriteFailed
from thinwire.storage.encrypted_files import HEADER_SIZE, MARK, Files, RunKey
from thinwire.storage.private_state import ChargeLog

KEY = RunKey(b"k" * 32, b"r" * 16)
FRAMES = [b"embeddings of row %d" % number for number in range(4)]


def log_in(run: Path, name: str = "bank", incarnation: int = 1) -> OutgoingLog:
    folder = run / "sent" / name
    return OutgoingLog(folder, incarnation, _refuse, Files(run, KEY).logs(folder))


def _refuse(failed: WriteFailed) -> None:
    raise AssertionError(str(failed))


def filled(run: Path, name: str = "bank") -> Path:
    """A log's one file."""
    log = log_in(run, name)
    for number, frame in enumerate(FRAMES):
        log.append(number, (frame[:5], memoryview(frame)[5:]))
    log.close()
    (file,) = (run / "sent" / name).iterdir()
    return file


def held(log: OutgoingLog) -> list[bytes]:
    try:
        return [log.read(number) for number in range(log.first_sequence, log.next_sequence)]
    finally:
        log.close()


def test_frames_come_back_and_are_not_readable(tmp_path: Path) -> None:
    file = filled(tmp_path)
    data = file.read_bytes()
    assert data.startswith(MARK)
    assert b"embeddings" not in data
    assert held(log_in(tmp_path, incarnation=2)) == FRAMES


def test_killed_at_any_byte_only_what_was_not_whole_is_gone(tmp_path: Path) -> None:
    data = filled(tmp_path / "whole").read_bytes()
    found = set()
    for end in range(len(data) + 1):
        folder = tmp_path / f"{end}" / "sent" / "bank"
        folder.mkdir(parents=True)
        (folder / "000001-0000000000.log").write_bytes(data[:end])
        frames = held(log_in(tmp_path / f"{end}", incarnation=2))
        assert frames == FRAMES[: len(frames)]
        found.add(len(frames))
    assert found == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("kept", [0, HEADER_SIZE])
def test_zeros_after_a_power_cut_are_no_damage(tmp_path: Path, kept: int) -> None:
    file = filled(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:kept] + bytes(len(data) - kept))
    assert held(log_in(tmp_path, incarnation=2)) == []


def test_a_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    file = filled(tmp_path)
    data = file.read_bytes()
    for place in range(len(data)):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(DamagedLog, match=file.name):
            held(log_in(tmp_path, incarnation=2))
        for made in file.parent.iterdir():
            if made != file:
                made.unlink()


def test_a_log_in_the_place_of_another_is_noticed(tmp_path: Path) -> None:
    one, other = filled(tmp_path, "bank"), filled(tmp_path, "shop")
    other.write_bytes(one.read_bytes())
    with pytest.raises(DamagedLog, match="number 0 is lost: it cannot be decrypted"):
        held(log_in(tmp_path, "shop", incarnation=2))


def test_a_file_that_has_no_room_for_its_first_bytes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_in(tmp_path)
    log.append(0, [FRAMES[0]])
    log.roll()
    writev = os.writev

    def full(descriptor: int, parts: Sequence[bytes | memoryview]) -> int:
        if parts[0][: len(MARK)] == MARK:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return writev(descriptor, parts)

    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(LogFailed):
            log.append(1, [FRAMES[1]])
    log.append(1, [FRAMES[1]])
    assert held(log) == FRAMES[:2]
    assert held(log_in(tmp_path, incarnation=2)) == FRAMES[:2]


def charges(run: Path) -> ChargeLog:
    path = run / "charges.jsonl"
    return ChargeLog(path, Files(run, KEY).lines(path))


def test_charges_are_encrypted_line_by_line_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    log = charges(tmp_path)
    for number in range(3):
        log.record(f"prediction {number}", lambda: {"rows": "17-19"})
    data = (tmp_path / "charges.jsonl").read_bytes()
    assert b"17-19" not in data
    assert all(line.startswith(b"TWREST1 ") for line in data.splitlines())
    (tmp_path / "charges.jsonl").write_bytes(data[:-3])
    log = charges(tmp_path)
    assert log.lines == 2
    log.record("prediction 2", lambda: {"rows": "20"})
    assert [entry["rows"] for entry in charges(tmp_path).entries()] == ["17-19", "17-19", "20"]


def test_charges_that_are_changed_or_change_places_are_noticed(tmp_path: Path) -> None:
    log = charges(tmp_path)
    log.record("round 0", dict)
    log.record("round 1", dict)
    first, second = (tmp_path / "charges.jsonl").read_bytes().splitlines(keepends=True)
    readable = b'{"charge":"round 0"}\n'
    for damaged in (second + first, second, first + readable, first[:20] + b"A" + first[21:] + second):
        (tmp_path / "charges.jsonl").write_bytes(damaged)
        with pytest.raises(BadState, match=r"charges\.jsonl, line \d: the record of the privacy ledger is damaged"):
            charges(tmp_path)
