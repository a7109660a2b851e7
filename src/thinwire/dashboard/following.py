"""A file of JSON lines that grows, is cut short or is replaced while we read it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["Follower", "read_json"]

_AT_ONCE = 4 << 20  # bytes that are read in one look
_LARGEST = 64 << 20  # of a file that is read whole


class Follower:
    """New whole lines since the last look; from the first one again where the file is another one by now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._file: tuple[int, int] | None = None  # device and inode
        self._head = b""  # a file may be written anew in place

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether it begins anew, lines); a line that is no JSON object is left out."""
        try:
            descriptor = _opened(self._path)
        except OSError:
            anew = self._file is not None
            self._place, self._file, self._head = 0, None, b""
            return anew, []
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            now, head = (found.st_dev, found.st_ino), file.read(64)
            anew = self._file is not None and (
                now != self._file or found.st_size < self._place or not head.startswith(self._head)
            )
            if anew:
                self._place = 0
            self._file, self._head = now, head
            file.seek(self._place)
            data = file.read(_AT_ONCE)
        whole = data.rfind(b"\n") + 1
        self._place += whole
        return anew, [line for raw in data[:whole].splitlines() if (line := _object(raw)) is not None]


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is none that can be read."""
    try:
        with os.fdopen(_opened(path), "rb") as file:
            return _object(file.read(_LARGEST))
    except OSError:
        return None


def _opened(path: Path) -> int:
    """A plain file, and no link to one elsewhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("no plain file")
    return descriptor


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
