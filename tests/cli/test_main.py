"""Errors become one message and an exit code."""

from __future__ import annotations

import sys

import pytest

from thinwire import cli
from thinwire.errors import BadParameter, Malformed, ThinwireError


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (BadParameter("TopK: fraction must be above 0"), 2, "thinwire: TopK: fraction must be above 0\n"),
        (Malformed("the frame's checksum is wrong"), 1, "thinwire: the frame's checksum is wrong\n"),
        (KeyboardInterrupt(), 130, "thinwire: stopped\n"),
    ],
)
def test_one_message_and_an_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["thinwire"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == code
    assert capsys.readouterr().err == message


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BadParameter("wrong")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["thinwire", "--debug", "demo"])
    with pytest.raises(ThinwireError, match="wrong"):
        cli.main()
