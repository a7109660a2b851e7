"""A replay is given the answers of the first time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thinwire.net.links.outgoing_log import DamagedLog, OutgoingLog, append_answer, read_answer


def opened(folder: Path, incarnation: int = 1) -> OutgoingLog:
    return OutgoingLog(folder, incarnation, print)


def test_answers_are_there_after_a_restart(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for value in (1, 0, 2**64 - 1):
        append_answer(journal, value)
    again = opened(tmp_path, 2)
    assert again.next_sequence == 3
    assert [read_answer(again, index) for index in range(4)] == [1, 0, 2**64 - 1, None]
    with pytest.raises(OverflowError):
        append_answer(again, -1)
    assert again.next_sequence == 3


def test_a_torn_answer_was_never_given(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    append_answer(journal, 7)
    append_answer(journal, 8)
    journal.sync()
    journal.close()
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - 1)
    again = opened(tmp_path, 2)
    assert [read_answer(again, index) for index in range(2)] == [7, None]


def test_a_replaced_process_answers_in_vain(tmp_path: Path) -> None:
    old = opened(tmp_path)
    append_answer(old, 1)
    new = opened(tmp_path, 2)
    append_answer(old, 5)
    append_answer(new, 6)
    assert read_answer(opened(tmp_path, 3), 1) == 6


def test_old_answers_are_pruned(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    append_answer(journal, 1)
    journal.roll()
    append_answer(journal, 2)
    journal.prune(1)
    assert read_answer(journal, 1) == 2
    with pytest.raises(DamagedLog):
        read_answer(journal, 0)
    journal.prune(2)
    assert opened(tmp_path, 2).next_sequence == 2
