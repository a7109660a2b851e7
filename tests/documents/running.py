"""A page's blocks as a reader runs them: in order, in one folder that was empty.

Commands of ours run in this process, since loading torch takes longer than most of them; `# terminal 1` behind a
command makes it one of several that run at the same time, each a process. Everything else is bash's.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from documents.pages import ROOT, Block, blocks
from processes import THINWIRE, Processes
from thinwire.cli import main

__all__ = ["run_page"]

_TERMINAL = "# terminal"
_OF_THE_SHELL = set("|&;<>$`*")


def run_page(page: Path, folder: Path, patch: pytest.MonkeyPatch) -> list[Block]:
    """Runs all that is to be run, and returns it; the first thing that fails says on which line it stands."""
    patch.chdir(folder)
    for name, value in _environment().items():
        patch.setenv(name, value)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import thinwire as tw", names)  # noqa: S102  what every page takes for granted
    ran = [block for block in blocks(page) if block.reason is None and block.kind in ("shell", "python")]
    for block in ran:
        if block.kind == "python":
            exec(compile(block.text, block.where, "exec"), names)  # noqa: S102
        else:
            _run_lines(block, patch)
    return ran


def _environment() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        "PATH": os.pathsep.join(paths),
        "EXAMPLES": str(ROOT / "examples"),
        "FREE_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


def _run_lines(block: Block, patch: pytest.MonkeyPatch) -> None:
    together: list[list[str]] = []
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if not words:
            continue
        if _TERMINAL in line:
            together.append(words)
        elif words[0] == "thinwire" and not _OF_THE_SHELL & set(line.partition(" #")[0]):
            _run_here(block, words, patch)
        else:
            shown = subprocess.run(["bash", "-euc", line], check=False, capture_output=True, text=True)
            assert shown.returncode == 0, f"{block.where}: {line}\n{shown.stdout}{shown.stderr}"
    _run_together(block, together)


def _run_here(block: Block, words: Sequence[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "argv", list(words))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, f"{block.where}: {shlex.join(words)} ended with {ended.value.code}"


def _run_together(block: Block, commands: Sequence[Sequence[str]]) -> None:
    with Processes() as started:
        programs = {"thinwire": THINWIRE}
        terminals = [started.command([programs.get(first, first), *rest], Path.cwd()) for first, *rest in commands]
        failed = [terminal.stderr for terminal in terminals if terminal.code()]
    assert not failed, "\n".join([block.where, *failed])
