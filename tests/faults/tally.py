"""Counts what was injected and what came of it, over all test processes, in one file of JSON lines."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

VARIABLE = "THINWIRE_FAULTS_TALLY"


class Tally:
    """One test's faults; those that nobody has counted as survived are missing in the end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._injected = 0
        self._unequal = 0

    def inject(self, kind: str, count: int = 1) -> None:
        self._injected += count
        self._write(injected=count, **{kind: count})

    def survive(self) -> None:
        """All that was injected so far."""
        self._write(survived=self._injected)
        self._unequal += self._injected
        self._injected = 0

    def equal(self) -> None:
        """All that was survived so far ended in the digests of an undisturbed run."""
        self._write(equal=self._unequal)
        self._unequal = 0

    def not_compared(self) -> None:
        """All that was survived so far cannot end in the same digests: there was no run, or it follows the clock."""
        self._write(not_compared=self._unequal)
        self._unequal = 0

    def _write(self, **counts: int) -> None:
        if self._path is None:
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, json.dumps(counts).encode() + b"\n")
        finally:
            os.close(descriptor)


def total(path: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in path.read_text().splitlines() if path.exists() else ():
        found.update(json.loads(line))
    return found
