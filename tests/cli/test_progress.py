"""What a run says of itself while it runs."""

from __future__ import annotations

from io import StringIO
from typing import Any

from rich.console import Console

from thinwire.report.progress import RunProgress

HALVED = [
    {"round": 10, "from": 11, "to": 5, "loss": 3.5, "lowest_loss": 1.25},
    {"round": 30, "from": 5, "to": 2, "loss": 9.0, "lowest_loss": 3.5},
]


def event(round: int, halved: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "round": round,
        "epoch": round / 20,
        "train": {"loss": 1.0},
        "test": {},
        "bytes": {"up": 1, "down": 1, "total": 2},
        "link_seconds": None,
        "diagnostics": {"a": {"backed_off": []}, "shop": {"backed_off": halved}, "distortion": [0.0]},
    }


def test_backing_off_is_said_once_each_time() -> None:
    out = StringIO()
    with RunProgress("thin", 40, Console(file=out, width=200)) as progress:
        for round, seen in ((10, 0), (20, 1), (30, 1), (40, 2)):
            progress(event(round, HALVED[:seen]))
    said = [line for line in out.getvalue().splitlines() if "cached steps" in line]
    assert said == [
        "thin: the training loss rose from 1.25 to 3.5, so from round 10 on 5 cached steps a round, not 11",
        "thin: the training loss rose from 3.5 to 9, so from round 30 on 2 cached steps a round, not 5",
    ]
