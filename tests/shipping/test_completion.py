"""Shells complete commands and options."""

from __future__ import annotations

import os
import subprocess

import pytest

from processes import THINWIRE


def _completed(line: str) -> list[str]:
    asked = {"_THINWIRE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    shown = subprocess.run([THINWIRE], env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    return shown.stdout.split()


def test_commands_are_completed() -> None:
    assert _completed("thinwire tr") == ["train"]


def test_options_are_completed() -> None:
    assert "--resume" in _completed("thinwire train --r")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_needs_is_shown(shell: str) -> None:
    # Which shell it is, is otherwise looked for among the processes above this one.
    told = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = subprocess.run(
        [THINWIRE, "--show-completion", shell], env=told, capture_output=True, text=True, check=True
    )
    assert "_THINWIRE_COMPLETE" in shown.stdout
