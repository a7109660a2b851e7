"""Stopping all parties of this process after the same round."""

from __future__ import annotations

from threading import Lock

from thinwire.types import Round

__all__ = ["Control"]


class Control:
    """Shared by the programs of one process. Ctrl-C asks; every program ends after the same round."""

    def __init__(self) -> None:
        self._lock = Lock()  # Ctrl-C arrives in another thread
        self._begun: Round = -1
        self._last: Round | None = None

    def may_begin(self, round: Round) -> bool:
        with self._lock:
            if self._last is not None and round > self._last:
                return False
            self._begun = max(self._begun, round)
            return True

    def stop(self) -> None:
        """No round beyond those that a party has begun already."""
        with self._lock:
            self._last = self._begun

    @property
    def stopping(self) -> bool:
        return self._last is not None
