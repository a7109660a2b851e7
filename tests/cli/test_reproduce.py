"""`thinwire reproduce` on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from rich.console import Console

from thinwire.cli.reproduce import _run
from thinwire.lab.papers import runs as reproduce

ERASED = "\x1b[2K"  # a line of the terminal
PLAN: Any = SimpleNamespace(experiment=lambda: SimpleNamespace(curves=["celu"], seeds=[0]))


def test_a_run_that_is_stopped_leaves_the_message_on_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(plan: Any, jobs: int, started: Callable[[str, int, int], Any]) -> Iterator[Any]:
        started("celu", 0, 10)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(reproduce, "run_all", stopped)
    with pytest.raises(typer.Exit) as ended:
        _run(PLAN, 1, Console(stderr=True, force_terminal=True, width=80))
    assert ended.value.exit_code == 130
    shown = capsys.readouterr().err
    assert ERASED in shown, "the progress was shown"
    assert shown.rpartition(ERASED)[2].endswith("thinwire: stopped; run the same command again to resume\n")
    assert "celu" not in shown.rpartition(ERASED)[2]
