"""Rows that must be forgotten: what a run's folder held of them is removed, and what that does not undo is said."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unicodedata import normalize

from thinwire.align import read_alignment
from thinwire.at_rest import files_of, layout
from thinwire.errors import BadInput
from thinwire.job.row_ids import read_id_texts
from thinwire.runs.contents import (
    MESSAGES,
    Removed,
    alone_in,
    is_finished,
    removed,
    unknown_in,
)

__all__ = ["Forgotten", "forget"]


@dataclass(frozen=True)
class Forgotten:
    """What was done, and what is left to do."""

    folder: str
    asked: int  # rows or ids
    rows: list[int]  # of the run's training rows, from 0, as far as they are known
    removed: list[Removed]
    still_in: dict[str, int]  # tables of the job that hold some of the ids, and how many
    unknown: list[str]  # files in the folder that are not ours

    def said(self) -> list[str]:
        """For people."""
        lines = [f"{self.folder}: {self.asked} to forget, {len(self.rows)} of them known as training rows here"]
        lines += [f"  removed: {one.path} ({one.bytes} bytes)" for one in self.removed]
        if not self.removed:
            lines.append("  nothing was left in it that holds single rows")
        lines += [f"  look yourself: {name} is not a file of ours" for name in self.unknown]
        lines += [f"  {file} still holds {count} of them: remove them there" for file, count in self.still_in.items()]
        return [
            *lines,
            "The models have learned from these rows, and still have: removing rows does not change weights. Other "
            "parties hold surrogates and messages of their own; each forgets in its own folder.",
            "To train without them: remove them from the tables, run `thinwire align` again, then train anew (nothing"
            f" of them remains), or with --from {self.folder} (faster; a trace of them stays in the weights).",
        ]


def forget(
    folder: str | Path, *, ids: Sequence[str] = (), rows: Sequence[int] = (), give_up: bool = False
) -> Forgotten:
    """Removes from a run's folder everything that is kept by row: checkpoints with their surrogates and worksets, and
    the logs of messages. `give_up`: also from a run that has not ended, which then never will.

    Which rows they were is written down by number; ids are not.
    """
    folder = Path(folder)
    if not ids and not rows:
        raise BadInput("say what to forget: ids, or row numbers from 0")
    with alone_in(folder):
        if not is_finished(folder) and not give_up:
            raise BadInput(
                f"the run in {folder} has not ended, and could not go on without these rows: its batches and the "
                "other parties' surrogates count on them. Let it end first, or give it up: --give-up"
            )
        tables = list(_tables(folder))
        wanted = {_text(one) for one in ids}
        known = _training_rows(tables, wanted)
        _require_there(rows, tables, folder)
        gone = removed(folder, (layout.CHECKPOINTS, *MESSAGES, layout.NEW_ROWS))
        found = Forgotten(
            folder=str(folder),
            asked=len(wanted) + len(set(rows)),
            rows=sorted({*known, *rows}),
            removed=gone,
            still_in={str(one.file): held for one in tables if (held := len(wanted & one.places.keys()))},
            unknown=unknown_in(folder),
        )
        _record(folder, found)
    return found


@dataclass(frozen=True)
class _Table:
    """The ids of a party's rows, and which of them the run took, in its order."""

    file: Path
    training: bool
    places: dict[str, int]  # rows of the file, by id
    taken: list[int] | None  # by the alignment; None: all of them

    def rows(self, wanted: set[str]) -> list[int]:
        here = {self.places[one] for one in wanted if one in self.places}
        order = range(len(self.places)) if self.taken is None else self.taken
        return [row for row, place in enumerate(order) if place in here]


def _tables(folder: Path) -> Iterator[_Table]:
    """Of the parties whose sections this folder's job holds, and whose files are still there."""
    try:
        job = tomllib.loads((folder / layout.JOB).read_text())
    except (OSError, ValueError):
        return  # a job of somebody's own Python has no file
    for section in [*job.get("party", []), job.get("label_party", {})]:
        for prefix in ("", "test_"):
            source = section.get(f"{prefix}ids")
            if source is not None and Path(source["file"]).exists():
                yield _table(source, section.get(f"{prefix}alignment"), training=not prefix)


def _table(source: Mapping[str, Any], alignment: str | None, training: bool) -> _Table:
    file = Path(source["file"])
    texts = read_id_texts(file, source.get("key"), source.get("column"), source.get("delimiter") or ",")
    places = {_text(one): row for row, one in enumerate(texts) if one is not None}
    taken = None
    if alignment is not None and Path(alignment).exists():
        taken = read_alignment(alignment).rows.tolist()
    return _Table(file, training, places, taken)


def _training_rows(tables: Sequence[_Table], wanted: set[str]) -> list[int]:
    """All parties' training rows are the same: whoever knows them."""
    return sorted({row for one in tables if one.training for row in one.rows(wanted)})


def _require_there(rows: Sequence[int], tables: Sequence[_Table], folder: Path) -> None:
    counts = [len(one.places) if one.taken is None else len(one.taken) for one in tables if one.training]
    high = max(counts, default=None)
    for row in rows:
        if row < 0 or (high is not None and row >= high):
            raise BadInput(f"row {row} is not one of the training rows of {folder}, which are 0 to {(high or 1) - 1}")


def _text(one: str) -> str:
    """As ids are compared."""
    return normalize("NFC", one).strip()


def _record(folder: Path, found: Forgotten) -> None:
    """A line for every time; never an id."""
    path = folder / layout.FORGOTTEN
    files = files_of(folder)
    before = files.read(path) if path.exists() else b""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "asked": found.asked,
        "rows": found.rows,
        "removed": [asdict(one) for one in found.removed],
        "models": "unchanged: they have learned from these rows",
    }
    files.replace(path, before + json.dumps(line).encode() + b"\n", mode=0o600)
