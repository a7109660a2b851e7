"""What happens at a party: one JSON line each for machines, a sentence for people. Never data, ids or keys."""

from __future__ import annotations

import json
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from thinwire.base.format import printable
from thinwire.base.types import PartyName, Round
from thinwire.storage.atomic_file import make_folder

MOST_SHARED = 200  # events in one answer
_MINUTE = 60.0  # seconds

# What people are told, by the event's name; all else stands in the file alone.
_SENTENCES: dict[str, str] = tomllib.loads(Path(__file__).with_name("event_sentences.toml").read_text("utf-8"))
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


class LineQuota:
    """So many lines a minute about one thing; what is beyond is left out and counted. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._minutes: dict[Hashable, tuple[float, int, int]] = {}  # when it began, lines, left out

    def spend(self, about: Hashable, most: int) -> int | None:
        """None: leave this line out. Otherwise how many were left out before it."""
        with self._lock:
            now = monotonic()
            began, lines, left_out = self._minutes.get(about, (now, 0, 0))
            if now - began >= _MINUTE:
                began, lines = now, 0
            spent = lines >= most
            self._minutes[about] = (began, lines, left_out + 1) if spent else (began, lines + 1, 0)
            return None if spent else left_out


class EventLog:
    """Writes to a file in the run's folder and speaks through `say`; counts for /metrics.

    At most `lines` a minute about one event with one peer.
    """

    def __init__(self, path: Path, party: PartyName, say: Callable[[str], None], lines: int) -> None:
        self.round: Round | None = None
        self.counts: Counter[tuple[str, str]] = Counter()  # by event and peer
        self._party = party
        self._say = say
        self._lines = lines
        self._quota = LineQuota()
        self._lock = Lock()
        self._shared: deque[dict[str, Any]] = deque(maxlen=MOST_SHARED)
        self._happened = 0  # events that people are told of
        make_folder(path.parent)
        self._file = path.open("a", buffering=1, encoding="utf-8")

    def __call__(self, event: str, peer: PartyName | None = None, **facts: Any) -> None:
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "party": self._party,
            "event": event,
        }
        line |= {"peer": peer, "round": self.round} | facts
        left_out = self._quota.spend((event, peer), self._lines)
        line |= {"left_out": left_out} if left_out else {}
        with self._lock:
            self.counts[event, peer or ""] += 1
            if left_out is None:
                return
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
