"""JSON on disk: one text for a value, and readers that know a last line may be half written."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

_AT_ONCE = 4 << 20  # bytes that are read in one look
_LARGEST = 64 << 20  # of a file that is read whole


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value: what a digest or a MAC is over."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def dump_indented_json(value: Any, sort_keys: bool = False) -> bytes:
    """For files that people look into."""
    return json.dumps(value, indent=2, sort_keys=sort_keys).encode() + b"\n"


def parse_object(raw: bytes) -> dict[str, Any] | None:
    """None where it is not JSON object."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_object(path: Path) -> dict[str, Any] | None:
    """The object in a file that anybody may have written; None where there is none that can be read."""
    try:
        with os.fdopen(_open_plain(path), "rb") as file:
            return parse_object(file.read(_LARGEST))
    except OSError:
        return None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in the whole lines of a file that we wrote. Raises ValueError, and OSError as usual."""
    data = path.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


class LineFollower:
    """New whole lines since the last look; from the first one again where the file is another one by now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place = 0
        self._file: tuple[int, int] | None = None  # device and inode
        self._head = b""  # a file may be written anew in place

    def look(self) -> tuple[bool, list[dict[str, Any]]]:
        """(whether it begins anew, lines); a line that is no JSON object is left out."""
        try:
            descriptor = _open_plain(self._path)
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
        return anew, [line for raw in data[:whole].splitlines() if (line := parse_object(raw)) is not None]


def _open_plain(path: Path) -> int:
    """A plain file, and no link to one elsewhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("no plain file")
    return descriptor
