"""Answers to questions whose outcome depends on timing, so that a replay is given the same ones."""

from __future__ import annotations

from thinwire.transport.outgoing_log import OutgoingLog

__all__ = ["Journal"]

_WIDTH = 8  # bytes an answer


class Journal:
    """A durable list of unsigned numbers; an answer that `append` took is there after a crash."""

    def __init__(self, log: OutgoingLog) -> None:
        self._log = log

    @property
    def next_index(self) -> int:
        return self._log.next_sequence

    def append(self, value: int) -> None:
        self._log.append(self._log.next_sequence, (value.to_bytes(_WIDTH, "little"),))

    def read(self, index: int) -> int | None:
        """None: not asked yet."""
        if index >= self._log.next_sequence:
            return None
        return int.from_bytes(self._log.read(index), "little")

    def prune(self, below: int) -> None:
        self._log.prune(below)

    def roll(self) -> None:
        self._log.roll()

    def sync(self) -> None:
        self._log.sync()

    def close(self) -> None:
        self._log.close()
