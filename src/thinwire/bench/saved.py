"""A suite's figures on disk, to hold the next run's against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thinwire.bench.rows import Row
from thinwire.environment import environment
from thinwire.errors import BadInput

__all__ = ["FILE", "Saved", "read_saved", "write_saved"]

FILE = "bench.json"


@dataclass(frozen=True)
class Saved:
    """The latest rows of every bench, and when each was measured."""

    rows: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)  # by bench, UTC

    def ratio(self, bench: str, name: str) -> float | None:
        """Of a row of this name; None where there is none."""
        return next((row.ratio for row in self.rows.get(bench, ()) if row.name == name), None)

    def updated(self, rows: Mapping[str, Sequence[Row]]) -> Saved:
        """With these rows measured now; benches that were left out this time keep theirs."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return Saved({**self.rows, **rows}, {**self.made, **dict.fromkeys(rows, now)})

    def described(self) -> dict[str, Any]:
        benches = {
            name: {"made": self.made.get(name), "rows": [asdict(row) for row in rows]}
            for name, rows in self.rows.items()
        }
        return {"environment": environment(), "benches": benches}


def read_saved(folder: Path) -> Saved:
    """What the folder holds; nothing where it holds nothing."""
    path = folder / FILE
    if not path.exists():
        return Saved()
    try:
        benches = json.loads(path.read_text(encoding="utf-8"))["benches"]
        rows = {name: [Row(**row) for row in one["rows"]] for name, one in benches.items()}
        return Saved(rows, {name: one["made"] for name, one in benches.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path}: not what `thinwire bench` writes ({error!r}); give another --out, or remove it"
        ) from None


def write_saved(folder: Path, saved: Saved) -> Path:
    path = folder / FILE
    path.write_text(json.dumps(saved.described(), indent=2) + "\n", encoding="utf-8")
    return path
