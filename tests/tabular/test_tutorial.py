"""docs/tutorial.md as a newcomer follows it: every snippet and command of the page, from an empty folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.running import run

ROOT = Path(__file__).resolve().parents[2]
MOST_COMMANDS = 6


def blocks(page: str, language: str) -> list[str]:
    """What stands between fences, of one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("tutorial.md", "") for line in block.splitlines() if line.strip()]


def named_in_the_text() -> list[list[str]]:
    """Commands between backticks, whole ones."""
    text = (ROOT / "docs" / "tutorial.md").read_text()
    return [shlex.split(found) for found in re.findall(r"`(thinwire [^`]+)`", text)]


def test_from_two_files_to_a_model(tmp_path: Path) -> None:
    (snippet,) = blocks("tutorial.md", "python")
    subprocess.run([sys.executable, "-c", snippet], check=True, cwd=tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hospital.csv", "laboratory.csv"]
    assert 5 <= len(commands()) <= MOST_COMMANDS
    for command in commands():
        shown = run(*command[1:], folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
    last = json.loads((tmp_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert last["test"]["auc"] > 0.97
    for name in ("hospital", "laboratory"):
        assert (tmp_path / "run" / "models" / f"{name}.preparation.json").exists()
    assert "<svg" in (tmp_path / "report.html").read_text()
    head, *scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert head == '"id","probability_benign","probability_malignant"'
    assert len(scores) > 50
    assert all(line.startswith('"p') for line in scores)
    assert len(named_in_the_text()) == 2
    for command in named_in_the_text():
        shown = run(*command[1:], folder=tmp_path)
        assert shown.returncode == 0, shown.stderr


@pytest.mark.parametrize("number", range(len(blocks("tabular.md", "python"))))
def test_snippets_of_the_page_on_tables(number: int, tmp_path: Path) -> None:
    snippet = blocks("tabular.md", "python")[number]
    subprocess.run([sys.executable, "-c", snippet], check=True, cwd=tmp_path)
