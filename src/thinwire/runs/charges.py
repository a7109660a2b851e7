"""The privacy ledger's record on disk: `charges.jsonl`, a line for each charge, written before anything leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thinwire.at_rest.atomic_file import WriteFailed, sync_folder, write_all
from thinwire.at_rest.wrapping import PLAIN_RECORDS, Wrapped
from thinwire.errors import BadState

__all__ = ["ChargeLog"]


class ChargeLog:
    """Charges by name, each once. A replayed round finds its charge there, and is not charged again.

    `lines` says how they lie on the disk: as they are, or encrypted.
    """

    def __init__(self, path: Path, lines: Wrapped = PLAIN_RECORDS) -> None:
        self._path = path
        self._lines = lines
        self._known: set[str] = set()
        self._count = 0  # of lines
        self._end = 0
        for entry in self.entries():
            self._known.add(str(entry["charge"]))
            self._count += 1

    def __len__(self) -> int:
        return len(self._known)

    def record(self, charge: str, spent: Callable[[], dict[str, Any]]) -> None:
        """On disk once this returns."""
        if charge in self._known:
            return
        text = json.dumps({"charge": charge, **spent()}, separators=(",", ":")).encode()
        line = b"".join((*self._lines.wrap(self._count, [text]), b"\n"))
        try:
            self._append(line)
        except OSError as error:
            raise WriteFailed(self._path, len(line), error) from error
        self._known.add(charge)
        self._count += 1

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every charge that was recorded. Raises BadState where the record is damaged."""
        data = self._path.read_bytes() if self._path.exists() else b""
        self._end = data.rfind(b"\n") + 1  # a crash may have cut off what follows
        for number, line in enumerate(data[: self._end].splitlines()):
            try:
                entry = json.loads(self._lines.unwrap(number, line))
                _ = entry["charge"]
            except (ValueError, KeyError, TypeError):
                raise BadState(
                    f"{self._path}, line {number + 1}: the record of the privacy ledger is damaged; bring it back "
                    "from a copy, or begin a new run in another folder"
                ) from None
            yield entry

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
