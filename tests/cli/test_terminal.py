"""What commands write to a terminal: colours, unless NO_COLOR is set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from job.small import write_job
from processes import run, run_in_terminal

# 30 to 38, 40 to 48 and their bright twins; bold, dim and what moves the cursor are no colours.
_COLOR = re.compile(r"\x1b\[(?:\d+;)*(?:[34][0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
COMMANDS = {
    "help": ("--help",),
    "a command's help": ("train", "--help"),
    "a wrong option": ("train", "--nothing"),
    "a progress bar": ("train", "job.toml", "--out", "run"),
    "verdicts": ("doctor", "job.toml", "--name", "bank"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_colours_are_shown_on_a_terminal_unless_no_color_is_set(words: tuple[str, ...], tmp_path: Path) -> None:
    folders = [tmp_path / "with", tmp_path / "without"]
    for folder in folders:
        folder.mkdir()
        write_job(folder)
    assert _COLOR.search(run_in_terminal(*words, folder=folders[0]))
    shown = run_in_terminal(*words, folder=folders[1], NO_COLOR="1")
    assert shown
    assert _COLOR.findall(shown) == []


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_a_pipe_gets_no_control_codes(words: tuple[str, ...], tmp_path: Path) -> None:
    write_job(tmp_path)
    shown = run(*words, folder=tmp_path)
    assert shown.stdout or shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr
