"""A row of the table, and how two things are measured against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Pair", "Row", "middle", "pair", "paired"]


@dataclass(frozen=True)
class Row:
    """Ours over the other's: below 1 is better than what it is held against, and less is better in every row."""

    name: str
    help: str
    against: str  # what it is held against
    unit: str
    ours: float | None = None
    other: float | None = None
    ratio: float | None = None  # None: not measured, and `note` says why
    note: str = ""

    @property
    def words(self) -> str:
        """A line of help: what is measured, against what, and what there is to say about it."""
        return f"{self.help}; against {self.against}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True)
class Pair:
    """Ours, the other's, and their ratio."""

    ours: float
    other: float
    ratio: float

    def row(self, name: str, help: str, against: str, unit: str) -> Row:
        return Row(name, help, against, unit, self.ours, self.other, self.ratio)


def pair(ours: float, other: float) -> Pair:
    return Pair(ours, other, ours / other)


def paired(ours: Callable[[], float], other: Callable[[], float], repeats: int) -> Pair:
    """Each once to warm up, then in turns: what else the machine does meets both alike."""
    other(), ours()
    return middle([pair(ours(), other()) for _ in range(repeats)])


def middle(pairs: Sequence[Pair]) -> Pair:
    """Medians, of the ratios too: not the ratio of the medians."""
    return Pair(*(median(getattr(pair, field) for pair in pairs) for field in ("ours", "other", "ratio")))
