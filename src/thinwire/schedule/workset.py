"""The last W exchanges, each used at most R times (CELU-VFL): which one comes next.

The workset knows rounds and uses; the party keeps the tensors.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.seeds import derived_seed
from thinwire.types import Round

__all__ = ["Workset"]


@dataclass(slots=True)
class _Entry:
    round: Round
    uses: int = 1  # the exchange's own
    last_draw: int = -1


class Workset:
    """Draws cached exchanges by one of three rules.

    "round_robin": an entry is not drawn again within the next W - 1 draws; of those that may be, the one
    drawn longest ago, of these the oldest. "consecutive": the newest. "random": any, by the seed.
    """

    def __init__(self, capacity: int, reuse: int, sampling: str, seed: int) -> None:
        self._capacity = capacity
        self._reuse = reuse
        self._sampling = sampling
        self._seed = seed
        self._entries: list[_Entry] = []
        self._draws = 0
        self._bubbles = 0
        self._left_with: Counter[int] = Counter()

    def insert(self, round: Round) -> None:
        """Takes in the exchange of this round; drops those inserted before round - W + 1."""
        self._drop([entry for entry in self._entries if entry.round < round - self._capacity + 1])
        if self._reuse > 1:
            self._entries.append(_Entry(round))

    def draw(self) -> Round | None:
        """The exchange to use now; None (a bubble) where none may be."""
        free = [entry for entry in self._entries if self._may_be_drawn(entry)]
        if not free:
            self._bubbles += 1
            return None
        entry = self._chosen(free)
        entry.last_draw = self._draws
        entry.uses += 1
        self._draws += 1
        if entry.uses >= self._reuse:
            self._drop([entry])
        return entry.round

    def _may_be_drawn(self, entry: _Entry) -> bool:
        if self._sampling != "round_robin" or entry.last_draw < 0:
            return True
        return self._draws - entry.last_draw > self._capacity - 1

    def _chosen(self, free: list[_Entry]) -> _Entry:
        if self._sampling == "consecutive":
            return free[-1]
        if self._sampling == "random":
            return free[derived_seed(self._seed, "workset", self._draws) % len(free)]
        return min(free, key=lambda entry: (entry.last_draw, entry.round))

    def _drop(self, entries: list[_Entry]) -> None:
        for entry in entries:
            self._left_with[entry.uses] += 1
            self._entries.remove(entry)

    def rounds(self) -> set[Round]:
        return {entry.round for entry in self._entries}

    def diagnostics(self) -> dict[str, Any]:
        return {
            "draws": self._draws,
            "bubbles": self._bubbles,
            "uses": {str(uses): count for uses, count in sorted(self._left_with.items())},
        }

    def state(self) -> dict[str, Any]:
        return {
            "entries": [asdict(entry) for entry in self._entries],
            "draws": self._draws,
            "bubbles": self._bubbles,
            "left_with": {str(uses): count for uses, count in self._left_with.items()},
        }

    def load(self, state: dict[str, Any]) -> None:
        self._entries = [_Entry(**entry) for entry in state["entries"]]
        self._draws = state["draws"]
        self._bubbles = state["bubbles"]
        self._left_with = Counter({int(uses): count for uses, count in state["left_with"].items()})
