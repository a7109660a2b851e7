"""Commands in this process, where a process of their own would add nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire import cli


@pytest.fixture
def here(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run` without a new process: main() with these arguments, in this folder."""

    def run_here(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        words = list(map(str, arguments))
        monkeypatch.setattr(sys, "argv", ["thinwire", *words])
        if folder is not None:
            monkeypatch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        code = ended.value.code
        return subprocess.CompletedProcess(words, code if isinstance(code, int) else 0, shown.out, shown.err)

    return run_here
