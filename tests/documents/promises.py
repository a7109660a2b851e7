"""What a page promises beyond commands that end well, looked at in the folder where it was run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from documents.pages import Block

__all__ = ["PROMISES"]

_MOST_COMMANDS = 6


def _tutorial(folder: Path, ran: Sequence[Block]) -> None:
    """From two tables to alignment, model, report and scores, in six commands at most."""
    shown = [block for block in ran if block.kind == "shell" and not block.hidden]
    typed = [line for block in shown for line in block.text.splitlines() if line.strip()]
    assert 3 <= len(typed) <= _MOST_COMMANDS
    assert json.loads((folder / "run" / "events.jsonl").read_text().splitlines()[-1])["test"]["auc"] > 0.97
    for name in ("hospital", "laboratory"):
        assert (folder / f"{name}.alignment").exists()
        assert (folder / "run" / "models" / f"{name}.preparation.json").exists()
    assert (folder / "run" / "report.html").exists()
    known = {row["patient"]: row["diagnosis"] for row in _table(folder / "laboratory.csv")}
    right = [
        (float(row["probability_malignant"]) > 0.5) == (known[row["id"]] == "malignant")
        for row in _table(folder / "scores.csv")
    ]
    assert sum(right) > 0.9 * len(right) > 50


def _network(folder: Path, ran: Sequence[Block]) -> None:
    """Every party has its own model, and no other."""
    runs = folder / "runs" / "job"
    assert {f"{path.parts[-3]}/{path.name}" for path in runs.glob("*/models/*.safetensors")} == {
        "clinic/top.safetensors",
        "imaging/imaging.safetensors",
        "laboratory/laboratory.safetensors",
    }
    last = json.loads((runs / "clinic" / "events.jsonl").read_text().splitlines()[-1])
    assert last["test"]["accuracy"] > 0.9


def _table(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def _compressor(folder: Path, ran: Sequence[Block]) -> None:
    """Forty lines, as the title says."""
    assert len([line for line in ran[0].text.splitlines() if line.strip()]) <= 40


def _integrations(folder: Path, ran: Sequence[Block]) -> None:
    """Event files, and models in two formats."""
    assert list((folder / "run" / "tensorboard").glob("events.*"))
    assert (folder / "exported" / "bank.pt2").exists()
    assert (folder / "scripts" / "top.ts").exists()


PROMISES: dict[str, Callable[[Path, Sequence[Block]], None]] = {
    "docs/tutorial.md": _tutorial,
    "docs/network.md": _network,
    "docs/howto/compressor.md": _compressor,
    "docs/integrations.md": _integrations,
}
