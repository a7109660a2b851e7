"""The runs of one folder, each under a number of ours: no name that a request brings becomes a path."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from time import monotonic

from thinwire.at_rest import layout
from thinwire.dashboard.live_run import LiveRun
from thinwire.errors import BadInput
from thinwire.report.finding import found_runs

__all__ = ["Board"]

_SHOWN = 4  # runs, unless some are chosen
_MOST_SHOWN = 12
_LOOK_SECONDS = 0.4
_FIND_SECONDS = 2.0


class Board:
    """Looks at the runs at most every so often, whoever asks."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise BadInput(f"{root}: there is no such folder; give a run's folder, or one that runs lie in, or will")
        self.root = root
        self.runs: dict[str, LiveRun] = {}  # by key, by name
        self._lock = Lock()
        self._looked: dict[str, float] = {}
        self._found = -_FIND_SECONDS

    def shown(self, asked: Sequence[str]) -> list[tuple[str, LiveRun]]:
        """Those that were asked for and exist, or the newest; freshly looked at."""
        with self._lock:
            self._find()
            chosen = [key for key in dict.fromkeys(asked) if key in self.runs][:_MOST_SHOWN]
            if not chosen:
                newest = sorted(self.runs, key=lambda key: _began(self.runs[key].folder))[-_SHOWN:]
                chosen = [key for key in self.runs if key in newest]
            for key in chosen:
                self._look(key)
            return [(key, self.runs[key]) for key in chosen]

    def _look(self, key: str) -> None:
        if monotonic() - self._looked.get(key, -_LOOK_SECONDS) >= _LOOK_SECONDS:
            self.runs[key].look()
            self._looked[key] = monotonic()

    def _find(self) -> None:
        if monotonic() - self._found < _FIND_SECONDS:
            return
        folders = {_key(folder, self.root): folder for folder in found_runs(self.root, begun=False)}
        self.runs = {
            key: self.runs.get(key) or LiveRun(folder, _name(folder, self.root)) for key, folder in folders.items()
        }
        self._found = monotonic()


def _name(folder: Path, root: Path) -> str:
    return folder.resolve().name if folder == root else str(folder.relative_to(root))


def _key(folder: Path, root: Path) -> str:
    return hashlib.sha256(str(folder.relative_to(root)).encode()).hexdigest()[:12]


def _began(folder: Path) -> float:
    """When it was last begun, as far as the disk knows."""
    times = []
    for name in (layout.ABOUT, layout.LOG):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
