"""A replay is given the answers of the first time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thinwire.net.links.outgoing_log import AnswerLog, DamagedLog, OutgoingLog


def opened(folder: Path, incarnation: int = 1) -> AnswerLog:
    return AnswerLog(OutgoingLog(folder, incarnation, print))


def test_answers_are_there_after_a_restart(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for value in (1, 0, 2**64 - 1):
        journal.append(value)
    again = opened(tmp_path, 2)
    assert again.next_index == 3
    assert [again.read(index) for index in range(4)] == [1, 0, 2**64 - 1, None]
    with pytest.raises(OverflowError):
        again.append(-1)
    assert again.next_index == 3


def test_a_torn_answer_was_never_given(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(7)
    journal.append(8)
    journal.sync()
    journal.close()
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    again = opened(tmp_path, 2)
    assert [again.read(index) for index in range(2)] == [7, None]


def test_a_replaced_process_answers_in_vain(tmp_path: Path) -> None:
    old = opened(tmp_path)
    old.append(1)
    new = opened(tmp_path, 2)
    old.append(5)
    new.append(6)
    assert opened(tmp_path, 3).read(1) == 6


def test_old_answers_are_pruned(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(1)
    journal.roll()
    journal.append(2)
    journal.prune(1)
    assert journal.read(1) == 2
    with pytest.raises(DamagedLog):
        journal.read(0)
    journal.prune(2)
    assert opened(tmp_path, 2).next_index == 2
