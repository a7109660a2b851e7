"""What lies in a run's folder, by what it tells: single rows, events, or the run as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from thinwire.at_rest import layout
from thinwire.at_rest.atomic_file import WriteFailed
from thinwire.errors import BadInput
from thinwire.runs.facts import require_readable
from thinwire.runs.folder_lock import FolderLock
from thinwire.runs.private_state import PrivateState

__all__ = [
    "MESSAGES",
    "Removed",
    "alone_in",
    "is_finished",
    "removed",
    "require_able_to_go_on",
    "unknown_in",
]

MESSAGES = (layout.SENT, layout.ANSWERS)


@dataclass(frozen=True)
class Removed:
    """A file or folder that is gone."""

    path: str  # below the run's folder
    bytes: int


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Refuses what is no run's folder, and one in which a party runs; none can begin meanwhile."""
    if not (folder / layout.PRIVATE).exists():
        raise BadInput(f"{folder} is no run's folder: it holds no {layout.PRIVATE}")
    require_readable(folder)
    lock = FolderLock(folder)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_finished(folder: Path) -> bool:
    return PrivateState.open(folder).finished


def removed(folder: Path, names: tuple[str, ...]) -> list[Removed]:
    """Removes these parts of the folder; gives what was there."""
    found = []
    for name in names:
        path = folder / name
        if not path.exists():
            continue
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files)
        try:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise WriteFailed(path, 0, error) from error
        found.append(Removed(name, size))
    return found


def unknown_in(folder: Path) -> list[str]:
    """Files that are not ours: what they hold of single rows, only their owner knows."""
    return sorted(path.name for path in folder.iterdir() if not layout.is_known(path.name))


def require_able_to_go_on(folder: Path) -> None:
    """Refuses a run whose rows were forgotten, or whose checkpoints were cleaned away at its end."""
    if (folder / layout.FORGOTTEN).exists():
        raise BadInput(
            f"rows were forgotten in {folder}, so that this run cannot go on; train anew without them, in another "
            f"--out: --from {folder} takes over the weights"
        )
    if (folder / layout.PRIVATE).exists() and not (folder / layout.CHECKPOINTS).exists() and is_finished(folder):
        raise BadInput(
            f"the run in {folder} is finished, and its checkpoints were cleaned away; its models are there"
        )
