"""The wheel and the source archive, built once for all tests of a process, with what is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "build"]

ROOT = Path(__file__).resolve().parents[2]


def build(target: str, folder: Path) -> Path:
    """`target` is wheel or sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    (built,) = folder.iterdir()
    return built
