"""The privacy ledger's record on disk: `charges.jsonl`, a line for each charge, written before anything leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thinwire.errors import BadState
from thinwire.transport.record_file import WriteFailed, sync_folder, write_all

__all__ = ["ChargeLog"]


class ChargeLog:
    """Charges by name, each once. A replayed round finds its charge there, and is not charged again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[str] = set()
        self._end = 0
        if path.exists():
            self._read()

    def __len__(self) -> int:
        return len(self._known)

    def record(self, charge: str, spent: Callable[[], dict[str, Any]]) -> None:
        """On disk once this returns."""
        if charge in self._known:
            return
        line = json.dumps({"charge": charge, **spent()}, separators=(",", ":")).encode() + b"\n"
        try:
            self._append(line)
        except OSError as error:
            raise WriteFailed(self._path, len(line), error) from error
        self._known.add(charge)

    def _append(self, line: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o600)
        try:
            os.ftruncate(descriptor, self._end)  # a line that was cut off by a crash, or by a full disk
            os.lseek(descriptor, self._end, os.SEEK_SET)
            write_all(descriptor, [line])
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if self._end == 0:
            sync_folder(self._path.parent)
        self._end += len(line)

    def _read(self) -> None:
        data = self._path.read_bytes()
        self._end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._end].splitlines(), 1):
            try:
                self._known.add(str(json.loads(line)["charge"]))
            except (ValueError, KeyError, TypeError):
                raise BadState(
                    f"{self._path}, line {number}: the record of the privacy ledger is damaged; bring it back from a "
                    "copy, or begin a new run in another folder"
                ) from None
