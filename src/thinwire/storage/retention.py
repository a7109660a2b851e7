"""What lies in a run's folder, by what it tells of single rows; how long it is kept, and the cleaning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from thinwire.base.errors import BadInput
from thinwire.storage import layout
from thinwire.storage.atomic_file import map_write_errors, replace_file
from thinwire.storage.checkpoints import GENERATION
from thinwire.storage.encrypted_files import Files
from thinwire.storage.folder_lock import FolderLock
from thinwire.storage.private_state import PrivateState
from thinwire.storage.run_facts import require_readable

MESSAGES = (layout.SENT, layout.ANSWERS)


@dataclass(frozen=True)
class RemovedPart:
    """A file or folder that is gone."""

    path: str  # below the run's folder
    bytes: int


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuses what is not a run folder, and one in which a party runs; none can begin meanwhile."""
    if not (folder / layout.PRIVATE).exists():
        raise BadInput(f"{folder} is not a run folder: it holds no {layout.PRIVATE}")
    require_readable(folder)
    lock = FolderLock(folder)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def has_checkpoint(folder: Path, files: Files | None = None) -> bool:
    """Whether a run has got so far that it can be resumed; until then it may as well begin anew."""
    if not (folder / layout.PRIVATE).exists():
        return False
    saved = any(GENERATION.fullmatch(path.name) for path in (folder / layout.CHECKPOINTS).glob("*"))
    return saved or PrivateState.open(folder, files).generation > 0


def holds_run(folder: Path) -> bool:
    """Whether a run is under way here, or can be resumed, or was written by something else."""
    if not (folder / layout.EVENTS).exists():
        return False
    try:
        with alone_in(folder):
            return has_checkpoint(folder)
    except BadInput:
        return True


def is_finished(folder: Path) -> bool:
    return PrivateState.open(folder).is_finished


def remove_parts(folder: Path, names: tuple[str, ...]) -> list[RemovedPart]:
    """Removes these parts of the folder; gives what was there."""
    found = []
    for name in names:
        path = folder / name
        if not path.exists():
            continue
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        with map_write_errors(path):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        found.append(RemovedPart(name, size))
    return found


def find_unknown(folder: Path) -> list[str]:
    """Files that are not ours: what they hold of single rows, only their owner knows."""
    return sorted(path.name for path in folder.iterdir() if not layout.is_known(path.name))


def require_able_to_go_on(folder: Path) -> None:
    """Refuses a run whose rows were forgotten, or whose checkpoints were cleaned away at its end."""
    if (folder / layout.FORGOTTEN).exists():
        raise BadInput(
            f"rows were erased in {folder}, so this run cannot be resumed; train again without them in a different "
            f"--out; --from {folder} reuses the weights"
        )
    if (folder / layout.PRIVATE).exists() and not (folder / layout.CHECKPOINTS).exists() and is_finished(folder):
        raise BadInput(
            f"the run in {folder} is finished, and its checkpoints were removed; its models are still there"
        )


@dataclass(frozen=True)
class Retention:
    """In days after the run's end, 0: at once; None: for good. Of checkpoints, how many generations too."""

    checkpoints_days: float | None = None
    checkpoints_count: int | None = None  # 1 or 2; two are written
    messages_days: float | None = None
    logs_days: float | None = None  # each line by its own age


@dataclass(frozen=True)
class CleanupResult:
    """What is gone, and why nothing is where nothing is."""

    folder: str
    removed: list[RemovedPart]
    note: str | None = None


def clean(folder: Path, rules: Retention, now: datetime) -> CleanupResult:
    """Applies the rules to a finished run; one that may go on is left alone."""
    with alone_in(folder):
        if not is_finished(folder):
            return CleanupResult(str(folder), [], "not finished: nothing was removed")
        age = now - _ended(folder)
        gone = []
        if _is_over(rules.checkpoints_days, age):
            gone += remove_parts(folder, (layout.CHECKPOINTS,))
        elif rules.checkpoints_count is not None:
            gone += _old_generations(folder / layout.CHECKPOINTS, rules.checkpoints_count)
        if _is_over(rules.messages_days, age):
            gone += remove_parts(folder, MESSAGES)
        if rules.logs_days is not None:
            gone += _old_lines(folder / layout.LOG, now - timedelta(days=rules.logs_days))
        return CleanupResult(str(folder), gone)


def _is_over(days: float | None, age: timedelta) -> bool:
    return days is not None and age >= timedelta(days=days)


def _ended(folder: Path) -> datetime:
    """The ledger is written at the end."""
    path = folder / layout.LEDGER
    written = path.stat().st_mtime if path.exists() else folder.stat().st_mtime
    return datetime.fromtimestamp(written, UTC)


def _old_generations(folder: Path, count: int) -> list[RemovedPart]:
    if not folder.is_dir():
        return []
    names = sorted((path.name for path in folder.iterdir() if GENERATION.fullmatch(path.name)), reverse=True)
    return [
        RemovedPart(f"checkpoints/{name}", gone.bytes)
        for name in names[count:]
        for gone in remove_parts(folder, (name,))
    ]


def _old_lines(path: Path, since: datetime) -> list[RemovedPart]:
    """A line that says no time is kept."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if not _is_before(line, since)]
    if len(kept) == len(lines):
        return []
    replace_file(path, b"".join(kept))
    return [RemovedPart(f"{layout.LOG}: {len(lines) - len(kept)} lines", sum(map(len, lines)) - sum(map(len, kept)))]


def _is_before(line: bytes, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(json.loads(line)["time"]) < since
    except (ValueError, KeyError, TypeError):
        return False
