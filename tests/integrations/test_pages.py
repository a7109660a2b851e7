"""docs/integrations.md and docs/diagnose.md: every snippet and command of the pages."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from cli.running import ENVIRONMENT, run
from job_files.small import write_job

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    """What stands between fences, of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def commands(page: str) -> list[list[str]]:
    return [shlex.split(line) for block in blocks(page, "") for line in block.splitlines() if line.strip()]


def test_the_snippets_run_one_after_the_other(tmp_path: Path) -> None:
    snippets = blocks("integrations.md", "python")
    assert len(snippets) == 6
    text = "\n".join(snippets)
    subprocess.run([sys.executable, "-c", text], check=True, cwd=tmp_path, env=ENVIRONMENT)
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert (tmp_path / "exported" / "export.json").exists()


def test_the_commands_run(tmp_path: Path) -> None:
    write_job(tmp_path)
    every = commands("integrations.md") + commands("diagnose.md")
    assert [command[1] for command in every] == ["train", "export", "diagnose"]
    for command in every:
        shown = run(*command[1:], folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "scripts" / "bank.ts").exists()
