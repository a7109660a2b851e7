"""What people read when their data is wrong, reviewed as text in messages.txt."""

from __future__ import annotations

from pathlib import Path

import pytest

from job.tables.bad_data import CASES, message

GOLDEN = dict(
    part.split("\n  ", 1) for part in Path(__file__).with_name("messages.txt").read_text().rstrip("\n").split("\n\n")
)
FINE = {"nothing is wrong", "a byte order mark", "CRLF", "a constant column"}  # CRLF and marks are no mistakes


@pytest.mark.parametrize("name", CASES)
def test_the_message_is_the_one_that_was_reviewed(name: str, tmp_path: Path) -> None:
    said = message(tmp_path, CASES[name])
    assert said == GOLDEN[name].rstrip("\n")
    assert said.startswith("nothing: the job is read as it stands") == (name in FINE)
    assert "Traceback" not in said
    assert "\n" not in said


def test_every_reviewed_message_can_still_be_said() -> None:
    assert list(GOLDEN) == list(CASES)
