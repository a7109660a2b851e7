"""A row of the table, how two things are measured against each other, and a suite's rows on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.process import environment

__all__ = ["FILE", "Pair", "Results", "Row", "compare", "measure_in_turns", "middle", "read_results", "write_results"]

FILE = "bench.json"


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


def compare(ours: float, other: float) -> Pair:
    return Pair(ours, other, ours / other)


def measure_in_turns(ours: Callable[[], float], other: Callable[[], float], repeats: int) -> Pair:
    """Each once to warm up, then in turns: what else the machine does meets both alike."""
    other(), ours()
    return middle([compare(ours(), other()) for _ in range(repeats)])


def middle(pairs: Sequence[Pair]) -> Pair:
    """Medians, of the ratios too: not the ratio of the medians."""
    return Pair(*(median(getattr(pair, field) for pair in pairs) for field in ("ours", "other", "ratio")))


@dataclass(frozen=True)
class Results:
    """The latest rows of every bench, and when each was measured."""

    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)  # by bench, UTC

    def ratio(self, bench: str, name: str) -> float | None:
        """Of a row of this name; None where there is none."""
        return next((row.ratio for row in self.rows.get(bench, ()) if row.name == name), None)

    def update(self, rows: Mapping[str, Sequence[Row]]) -> Results:
        """With these rows measured now; benches that were left out this time keep theirs."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Results({**self.rows, **rows}, {**self.made, **dict.fromkeys(rows, now)})

    def to_json(self) -> dict[str, Any]:
        benches = {
            name: {"made": self.made.get(name), "rows": [asdict(row) for row in rows]}
            for name, rows in self.rows.items()
        }
        return {"environment": environment(), "benches": benches}


def read_results(folder: Path) -> Results:
    """What the folder holds; nothing where it holds nothing."""
    path = folder / FILE
    if not path.exists():
        return Results()
    try:
        benches = json.loads(path.read_text(encoding="utf-8"))["benches"]
        rows = {name: [Row(**row) for row in one["rows"]] for name, one in benches.items()}
        return Results(rows, {name: one["made"] for name, one in benches.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: not what `benchmarks/suite.py` writes ({error!r}); use a different --out, or remove it"
        ) from None


def write_results(folder: Path, results: Results) -> Path:
    path = folder / FILE
    path.write_text(json.dumps(results.to_json(), indent=2) + "\n", encoding="utf-8")
    return path
