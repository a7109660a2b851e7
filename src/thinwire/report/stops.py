"""Whether a run was stopped by its own people, and how it goes on."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.at_rest import layout

__all__ = ["Stop", "going_on", "last_stop"]

_STARTS = ("listening", "dialling")  # a party's first words; nothing of the kind comes after its stop


@dataclass(frozen=True)
class Stop:
    """In which round, and when."""

    round: int
    time: str  # UTC


def last_stop(lines: Iterable[Mapping[str, Any]], before: Stop | None = None) -> Stop | None:
    """Of a party's log: its last process was stopped, and none has been started since. `before`: of earlier lines."""
    for line in lines:
        event, round = line.get("event"), line.get("at_round")
        if event in _STARTS:
            before = None
        elif event == "stopped" and isinstance(round, int):
            before = Stop(round, str(line.get("time", "")))
    return before


def going_on(folder: Path, me: str | None) -> str | None:
    """The command that goes on with the run of a folder; None where it was begun from Python."""
    if not (folder / layout.JOB).is_file():
        return None
    job, out = shlex.quote(str(folder / layout.JOB)), shlex.quote(str(folder))
    if me is None:
        return f"thinwire train {job} --out {out} --resume"
    return f"thinwire party {job} --name {me} --out {out}"
