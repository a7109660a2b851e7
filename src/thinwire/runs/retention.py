"""How long a finished run keeps what, and the cleaning that follows from it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from thinwire.at_rest import layout
from thinwire.at_rest.atomic_file import replace_file
from thinwire.runs.contents import MESSAGES, Removed, alone_in, is_finished, removed

__all__ = ["Cleaned", "Retention", "clean"]

_GENERATION = re.compile(r"\d{10,}-\d{6,}")


@dataclass(frozen=True)
class Retention:
    """In days after the run's end, 0: at once; None: for good. Of checkpoints, how many generations too."""

    checkpoints_days: float | None = None
    checkpoints_count: int | None = None  # 1 or 2; two are written
    messages_days: float | None = None
    logs_days: float | None = None  # each line by its own age


@dataclass(frozen=True)
class Cleaned:
    """What is gone, and why nothing is where nothing is."""

    folder: str
    removed: list[Removed]
    note: str | None = None


def clean(folder: Path, rules: Retention, now: datetime) -> Cleaned:
    """Applies the rules to a finished run; one that may go on is left alone."""
    with alone_in(folder):
        if not is_finished(folder):
            return Cleaned(str(folder), [], "not finished: nothing was removed")
        age = now - _ended(folder)
        gone = []
        if _is_over(rules.checkpoints_days, age):
            gone += removed(folder, (layout.CHECKPOINTS,))
        elif rules.checkpoints_count is not None:
            gone += _old_generations(folder / layout.CHECKPOINTS, rules.checkpoints_count)
        if _is_over(rules.messages_days, age):
            gone += removed(folder, MESSAGES)
        if rules.logs_days is not None:
            gone += _old_lines(folder / layout.LOG, now - timedelta(days=rules.logs_days))
        return Cleaned(str(folder), gone)


def _is_over(days: float | None, age: timedelta) -> bool:
    return days is not None and age >= timedelta(days=days)


def _ended(folder: Path) -> datetime:
    """The ledger is written at the end."""
    path = folder / layout.LEDGER
    written = path.stat().st_mtime if path.exists() else folder.stat().st_mtime
    return datetime.fromtimestamp(written, UTC)


def _old_generations(folder: Path, count: int) -> list[Removed]:
    if not folder.is_dir():
        return []
    names = sorted((path.name for path in folder.iterdir() if _GENERATION.fullmatch(path.name)), reverse=True)
    return [Removed(f"checkpoints/{name}", gone.bytes) for name in names[count:] for gone in removed(folder, (name,))]


def _old_lines(path: Path, since: datetime) -> list[Removed]:
    """A line that says no time is kept."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not _is_before(line, since)]
    if len(kept) == len(lines):
        return []
    replace_file(path, b"".join(kept))
    return [Removed(f"{layout.LOG}: {len(lines) - len(kept)} lines", sum(map(len, lines)) - sum(map(len, kept)))]


def _is_before(line: bytes, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(json.loads(line)["time"]) < since
    except (ValueError, KeyError, TypeError):
        return False
