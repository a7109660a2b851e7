"""The six commands of docs/network.md, as a newcomer types them: from nothing to a trained model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "three_organisations"


def commands() -> list[list[str]]:
    """The first block of the page, one command a line."""
    text = (ROOT / "docs" / "network.md").read_text()
    (block,) = re.findall(r"## Three terminals, six commands.*?```\n(.*?)```", text, re.DOTALL)
    lines = [line.partition("#")[0].strip() for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line]


def program(command: list[str]) -> list[str]:
    tools = {"python": [sys.executable], "thinwire": [str(Path(sys.executable).with_name("thinwire"))]}
    return [*tools[command[0]], *command[1:]]


def test_three_terminals_and_six_commands(tmp_path: Path) -> None:
    first, parties = commands()[:3], commands()[3:]
    assert len(parties) == 3
    folder = tmp_path / "example"
    folder.mkdir()
    for name in ("make_data.py", "job.toml"):
        shutil.copy(EXAMPLE / name, folder / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = folder / "job.toml"
    job.write_text(job.read_text().replace("7443", str(port)))  # the real one may be in use here
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in first:
        subprocess.run(program(command), cwd=folder, env=environment, check=True, capture_output=True)
    terminals = [
        subprocess.Popen(program(command), cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        for command in parties
    ]
    told = [terminal.communicate(timeout=180)[1] for terminal in terminals]
    assert [terminal.returncode for terminal in terminals] == [0, 0, 0], "\n".join(told)
    runs = folder / "runs" / "job"
    assert {path.name for path in runs.glob("*/models/*")} == {
        "top.safetensors",
        "imaging.safetensors",
        "laboratory.safetensors",
    }
    last = json.loads((runs / "clinic" / "events.jsonl").read_text().splitlines()[-1])
    assert last["test"]["accuracy"] > 0.9
