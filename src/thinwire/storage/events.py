"""What happens at a party: one JSON line each for machines, a sentence for people. Never data, ids or keys."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from thinwire.base.format import printable
from thinwire.base.types import PartyName, Round

MOST_SHARED = 200  # events in one answer

# What people are told; all else stands in the file alone.
_SENTENCES = {
    "listening": "listening at {address}",
    "dialling": "dialling {peer!r} at {address}",
    "connected": "{peer!r} is connected",
    "disconnected": "{peer!r} is gone: {why}",
    "left": "{peer!r} has finished",
    "paused": "{peer!r} was stopped in round {at_round}; it goes on once it is started again",
    "unreached": "{peer!r} does not answer: {why}",
    "waiting": "waiting for {peer!r}: {what}; {left_seconds:.0f} s left",
    "begun": "all parties are here: {rounds} rounds",
    "inherited": "{what}",
    "resumed": "going on from round {at_round}",
    "fell_back": "{why}",
    "checkpoint_failed": "no checkpoint: {why}; trying again later",
    "disk_full": "{path} needs {bytes} bytes and the disk is full; free some space and the run goes on",
    "replay_differs": "round {round} does not come out as before on this machine; the logged bytes are sent, but the "
    "run is no longer repeatable to the bit",
    "denied": "refused a caller: {why}",
    "refused": "refused {peer!r}: {why}",
    "damaged": "{peer!r} sent what cannot be: {why}",
    "certificate_problem": "{why}",
    "alignment_unchecked": "{peer!r} named no row ids: whether its rows are ours is not checked",
    "budget": "the privacy budget allows {rounds} of {planned} rounds: the run ends there",
    "stopped": "stopped in round {at_round}; nothing is lost",
    "stopping": "stopping after this round; once more stops at once",
    "untold": "the run is aborted, and {peer!r} is away: staying until it has been told",
    "lingering": "done; waiting until {peer!r} has finished too",
    "unreported": "{peer!r} has not said that it finished; start this command again if it needs our last messages",
}

_SHARED = ("time", "party", "event", "peer", "round")


def sentence(line: Mapping[str, Any]) -> str | None:
    """What people are told of an event; None where it is for the file alone."""
    event = line.get("event")
    if not isinstance(event, str) or event not in _SENTENCES:
        return None
    try:
        return printable(_SENTENCES[event].format(**line))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError):
        return printable(event)  # of another version, or without what only its party may read


class EventLog:
    """Writes to a file in the run's folder and speaks through `say`; counts for /metrics."""

    def __init__(self, path: Path, party: PartyName, say: Callable[[str], None]) -> None:
        self.round: Round | None = None
        self.counts: Counter[tuple[str, str]] = Counter()  # by event and peer
        self._party = party
        self._say = say
        self._lock = Lock()
        self._shared: deque[dict[str, Any]] = deque(maxlen=MOST_SHARED)
        self._happened = 0  # events that people are told of
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def __call__(self, event: str, peer: PartyName | None = None, **facts: Any) -> None:
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "party": self._party, "event": event}
        line |= {"peer": peer, "round": self.round} | facts
        with self._lock:
            self.counts[event, peer or ""] += 1
            if event in _SENTENCES:
                self._shared.append({key: line[key] for key in _SHARED})
                self._happened += 1
            # A full disk, or the end of the run: the log must not stop it.
            with suppress(OSError, ValueError):
                self._file.write(json.dumps(line, default=str) + "\n")
        told = sentence(line)
        if told is not None:
            with suppress(OSError):  # a terminal that is gone
                self._say(told)

    def read_shared(self, since: int) -> tuple[list[dict[str, Any]], int]:
        """What others may read of the last events, from number `since` on, and the number of the next one.

        When, what, with whom and in which round: no reasons, paths or addresses, which may tell of one's own data.
        """
        with self._lock:
            first = self._happened - len(self._shared)
            return list(self._shared)[max(0, since - first) :], self._happened

    def count(self, event: str, peer: PartyName | None = None) -> int:
        """How often it happened; with anybody, unless a peer is named."""
        with self._lock:
            return sum(
                count for (name, other), count in self.counts.items() if name == event and peer in (None, other)
            )

    def list_counts(self) -> list[tuple[tuple[str, str], int]]:
        with self._lock:
            return sorted(self.counts.items())

    def close(self) -> None:
        with self._lock, suppress(OSError):
            self._file.close()
