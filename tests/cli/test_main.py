"""Errors become one message and an exit code."""

from __future__ import annotations

import sys
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from thinwire import cli
from thinwire.base.errors import BadParameter, Malformed, ThinwireError
from thinwire.report.progress import RunProgress


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            BadParameter("TopK: fraction must be above 0"),
            2,
            "thinwire: TopK: fraction must be above 0 [bad-parameter]\n",
        ),
        (Malformed("the frame's checksum is wrong"), 1, "thinwire: the frame's checksum is wrong [malformed]\n"),
        (KeyboardInterrupt(), 130, "thinwire: stopped\n"),
        (OSError("disk full"), 1, "thinwire: OSError: disk full (--debug shows the traceback)\n"),
    ],
)
def test_one_message_and_an_exit_code(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["thinwire"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == code
    assert capsys.readouterr().err == message


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> None:
        raise BadParameter("wrong")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["thinwire", "--debug", "demo"])
    with pytest.raises(ThinwireError, match="wrong"):
        cli.main()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_on_a_terminal_and_elsewhere(terminal: bool) -> None:
    text = StringIO()
    console = Console(file=text, force_terminal=terminal, width=80)
    event: dict[str, Any] = {
        "test": {"accuracy": 0.5},
        "train": {"loss": 1.25},
        "link_seconds": 2.0,
        "diagnostics": {},
    }
    with RunProgress("celu", 20, console) as progress:
        for round in (0, 10):
            progress({**event, "round": round, "epoch": round / 4, "bytes": {"up": 1500 * round, "down": 10}})
    assert progress.begun
    for said in (
        "celu",
        "round 10/20",
        "training loss 1.25, test accuracy 0.5",
        "up 15 kB, down 10 B",
        "link 2 s",
        "left",
    ):
        assert said in text.getvalue()
    assert ("\x1b[" in text.getvalue()) == terminal
