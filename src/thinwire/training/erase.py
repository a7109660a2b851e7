"""Rows that must be forgotten: what a run's folder held of them is removed, and what that does not undo is said."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thinwire.align.ids import id_text
from thinwire.base.errors import BadInput
from thinwire.data.readers.features import read_id_texts
from thinwire.data.readers.sources import TableOrigin, TableStore
from thinwire.engine.streams import Storage
from thinwire.job.id_table import IdTable
from thinwire.job.row_selection import RowSelection, RowSet
from thinwire.job.schema import ColumnSource, LabelEntry, PartyEntry, SplitSection
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder
from thinwire.storage.retention import MESSAGES, RemovedPart, alone_in, find_unknown, is_finished, remove_parts


@dataclass(frozen=True)
class Erasure:
    """What was done, and what is left to do."""

    folder: str
    asked: int  # rows or ids
    rows: list[int]  # of the run's training rows, from 0, as far as they are known
    removed: list[RemovedPart]
    still_in: dict[str, int]  # tables of the job that hold some of the ids, and how many
    unknown: list[str]  # files in the folder that are not ours

    def describe(self) -> list[str]:
        """For people."""
        lines = [f"{self.folder}: {self.asked} to erase, {len(self.rows)} of them are training rows of this run"]
        lines += [f"  removed: {one.path} ({one.bytes} bytes)" for one in self.removed]
        if not self.removed:
            lines.append("  it holds no other data about single rows")
        lines += [f"  check this yourself: thinwire did not write {name}" for name in self.unknown]
        lines += [f"  {file} still holds {count} of them: remove them there" for file, count in self.still_in.items()]
        return [
            *lines,
            "The models were trained on these rows and are unchanged: erasing rows does not change weights. Other "
            "parties hold their own surrogates and messages; each runs `thinwire forget` in its own folder.",
            "To train without them: remove them from the tables, run `thinwire align` again, then train from "
            f"scratch (nothing of them remains), or with --from {self.folder} (faster, but a trace of them stays in "
            "the weights).",
        ]


def erase_rows(
    folder: str | Path, *, ids: Sequence[str] = (), rows: Sequence[int] = (), give_up: bool = False
) -> Erasure:
    """Removes from a run's folder everything that is kept by row: checkpoints with their surrogates and worksets, and
    the logs of messages. `give_up`: also from a run that has not ended, which then never will.

    Which rows they were is written down by number; ids are not.
    """
    folder = Path(folder)
    if not ids and not rows:
        raise BadInput("name the rows to erase: ids, or row numbers from 0")
    with alone_in(folder):
        if not is_finished(folder) and not give_up:
            raise BadInput(
                f"the run in {folder} has not ended, and cannot continue without these rows: its batches and the "
                "other parties' surrogates depend on them. Let it finish first, or abandon it with --give-up"
            )
        tables = list(_read_tables(folder))
        wanted = {_normalize(one) for one in ids}
        known = _training_rows(tables, wanted)
        _require_training_rows(rows, tables, folder)
        gone = remove_parts(folder, (layout.CHECKPOINTS, *MESSAGES, layout.NEW_ROWS))
        found = Erasure(
            folder=str(folder),
            asked=len(wanted) + len(set(rows)),
            rows=sorted({*known, *rows}),
            removed=gone,
            still_in={str(one.file): count for one in tables if (count := one.count(wanted))},
            unknown=find_unknown(folder),
        )
        _record(folder, found)
    return found


@dataclass(frozen=True)
class _NamedRows:
    """The ids of one table that a party's section names."""

    file: TableOrigin
    training: bool
    ids: IdTable

    def count(self, wanted: set[str]) -> int:
        """How many of these ids the table holds, whether the run used their rows or not."""
        texts = list(wanted)
        return int((self.ids.find(texts) >= 0).sum()) + len(self.ids.find_outside(texts))


def _read_tables(folder: Path) -> Iterator[_NamedRows]:
    """Of the parties whose sections this folder's job holds, and whose files are still there."""
    try:
        job = tomllib.loads((folder / layout.JOB).read_text())
    except (OSError, ValueError):
        return  # a job of somebody's own Python has no file
    split = job.get("job", {}).get("split")
    chosen = None if split is None else SplitSection.model_validate(split)
    label_party = LabelEntry.model_validate(job.get("label_party", {}))
    for section in [*(PartyEntry.model_validate(one) for one in job.get("party", [])), label_party]:
        rows = RowSelection(section, folder, chosen, TableStore(_find_storage(job, folder)))
        for which, source in ((RowSet.TRAINING, section.ids), (RowSet.TEST, section.test_ids)):
            if source is not None and _is_there(origin := source.find_origin(folder)):
                yield _NamedRows(origin, which is RowSet.TRAINING, _list_ids(rows, which, source))


def _find_storage(job: Mapping[str, Any], folder: Path) -> Storage:
    """Of an encrypted run, nothing goes to a folder that its owner has not named."""
    if job.get("encryption") is None:
        return Storage()
    scratch = job.get("job", {}).get("scratch")
    return Storage(folder=None if scratch is None else folder / scratch).require_folder()


def _is_there(origin: TableOrigin) -> bool:
    """What is elsewhere is taken to be there, and refuses by itself."""
    return not origin.is_local_file or origin.path.exists()


def _list_ids(rows: RowSelection, which: RowSet, source: ColumnSource) -> IdTable:
    """Where the alignment is gone or the table has changed since, nobody knows which rows the ids were."""
    try:
        return rows.list_ids(which) or IdTable(())
    except BadInput:
        file = TableStore().open(source.find_origin(rows.folder), source.column)
        texts = read_id_texts(file, source.key, source.column, source.text_format)
        return IdTable((), frozenset(_normalize(one) for one in texts if one is not None))


def _training_rows(tables: Sequence[_NamedRows], wanted: set[str]) -> set[int]:
    """All parties' training rows are the same: whoever knows them."""
    return {row for one in tables if one.training for row, text in enumerate(one.ids.ids) if text in wanted}


def _require_training_rows(rows: Sequence[int], tables: Sequence[_NamedRows], folder: Path) -> None:
    high = max((len(one.ids.ids) for one in tables if one.training), default=0)
    for row in rows:
        if row < 0 or (high and row >= high):
            raise BadInput(f"row {row} is not one of the training rows of {folder}, which are 0 to {(high or 1) - 1}")


def _normalize(one: str) -> str:
    """As ids are compared."""
    return (id_text(one, 1, "ids") or b"").decode()


def _record(folder: Path, found: Erasure) -> None:
    """A line for every time; never an id."""
    path = folder / layout.FORGOTTEN
    files = open_folder(folder)
    before = files.read(path) if path.exists() else b""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "asked": found.asked,
        "rows": found.rows,
        "removed": [asdict(one) for one in found.removed],
        "models": "unchanged: they were trained on these rows",
    }
    files.replace(path, before + json.dumps(line).encode() + b"\n")
