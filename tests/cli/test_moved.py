"""Commands that have left the package."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest


@pytest.mark.parametrize(("command", "script"), [("bench", "suite.py"), ("load-test", "load_test.py URL")])
def test_the_old_commands_say_where_they_went(
    command: str, script: str, here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    for arguments in ([], ["--only", "engine", "--json"], ["http://127.0.0.1:1", "--clients", "2"]):
        shown = here(command, *arguments)
        assert shown.returncode == 2
        assert f"`thinwire {command}` has moved: run `python benchmarks/{script}`" in shown.stderr
        assert shown.stdout == ""
    assert command not in here("--help").stdout.split()
