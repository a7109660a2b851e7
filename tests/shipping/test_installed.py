"""The wheel in an environment of its own, as a user installs it. Minutes: make test-dist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shipping.building import ROOT, build

pytestmark = [pytest.mark.dist, pytest.mark.timeout(1800)]


def test_the_demo_runs_from_the_wheel(tmp_path: Path) -> None:
    wheel = build("wheel", tmp_path / "dist")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    programs, constraint = tmp_path / "venv" / "bin", ROOT / "constraints" / "cpu.txt"
    install: list[str | Path] = [
        programs / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        constraint,
        wheel,
    ]
    subprocess.run(install, check=True, cwd=tmp_path)
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # the checkout's own sources

    def run(*arguments: str) -> str:
        command: list[str | Path] = [programs / "thinwire", *arguments]
        return subprocess.run(command, check=True, cwd=tmp_path, env=clean, capture_output=True, text=True).stdout

    shown = json.loads(run("demo", "--json"))
    assert {one["method"] for one in shown["methods"]} >= {"svfl", "thin"}
    assert all(one["test"]["accuracy"] > 0.8 for one in shown["methods"])
    assert (tmp_path / shown["report"]).stat().st_size > 10_000
    assert "thin-mnist" in run("reproduce")
    where = subprocess.run(
        [programs / "python", "-c", "import thinwire; print(thinwire.__file__)"],
        check=True,
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
    ).stdout
    assert str(tmp_path) in where
