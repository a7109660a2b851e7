"""Rows that were aligned: which of a party's own they are, and that its table is still the one that was aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.align import Alignment, Ids, normalised, read_alignment
from thinwire.errors import BadIds, BadInput
from thinwire.job.messages import at
from thinwire.job.row_ids import RowIds, read_id_texts
from thinwire.job.schema import ColumnSource, PartyEntry
from thinwire.types import PartyName

__all__ = ["RowsOf", "ids_of", "require_one_alignment", "require_same_rows"]


@dataclass(frozen=True)
class RowsOf:
    """One party's training rows, or its test rows: where their ids are, and where their alignment is."""

    path: str  # of the section, for messages
    prefix: str  # "" or "test_"
    name: PartyName
    ids: ColumnSource | None
    alignment: str | None

    @classmethod
    def training(cls, path: str, section: PartyEntry) -> RowsOf:
        return cls(path, "", section.name, section.ids, section.alignment)

    @classmethod
    def test(cls, path: str, section: PartyEntry) -> RowsOf:
        return cls(path, "test_", section.name, section.test_ids, section.test_alignment)

    @property
    def what(self) -> str:
        return "test rows" if self.prefix else "training rows"

    def file(self, folder: Path) -> Path:
        """Where `thinwire align` writes."""
        return folder / (self.alignment or f"{self.name}{'-test' if self.prefix else ''}.alignment")

    def read(self, folder: Path) -> Alignment | None:
        """Refuses another party's alignment, and one of ids that have changed since; None where there is none."""
        if self.alignment is None:
            return None
        with at(f"{self.path}.{self.prefix}alignment"):
            found = read_alignment(folder / self.alignment)
            if found.me != self.name:
                raise BadInput(f"{folder / self.alignment} is the alignment of {found.me!r}, not of {self.name!r}")
            found.require_same_ids(ids_of(self, folder))
        return found

    def taken(self, values: Any, alignment: Alignment | None, what: str) -> Any:
        """The aligned rows of a table, in the common order."""
        if alignment is None:
            return values
        if len(values) != alignment.sizes[self.name]:
            raise BadInput(
                f"{self.path}.{what} has {len(values)} rows, its alignment is of {alignment.sizes[self.name]} ids"
            )
        return values[alignment.rows]

    def row_ids(self, folder: Path) -> RowIds | None:
        """What parties compare, without showing an id."""
        found = self.read(folder)
        return None if found is None else RowIds(found.digest, len(found))


def ids_of(rows: RowsOf, folder: Path) -> Ids:
    """As they are compared; refuses rows without one, and two with the same."""
    with at(f"{rows.path}.{rows.prefix}ids"):
        if rows.ids is None:
            raise BadInput('missing: say where the ids are, such as { file = "rows.csv", column = "id" }')
        source = rows.ids
        texts = read_id_texts(folder / source.file, source.key, source.column, source.delimiter or ",")
        return normalised(texts, str(folder / source.file))


def require_one_alignment(found: Mapping[str, Alignment | None]) -> None:
    """All parties' rows come from one alignment, or from none; by the paths of the fields."""
    given = {path: alignment for path, alignment in found.items() if alignment is not None}
    if not given:
        return
    missing = [path for path in found if path not in given]
    first = next(iter(given))
    if missing:
        raise BadInput(f"{missing[0]} is missing: {first} is given, and aligned rows fit aligned rows only")
    for path, alignment in given.items():
        if alignment.digest != given[first].digest:
            raise BadInput(f"{path} and {first} are of two alignments; run `thinwire align` again for all parties")


def require_same_rows(every: Sequence[RowsOf], folder: Path) -> None:
    """Without an alignment, parties that name their ids hold the same rows in the same order."""
    named = [rows for rows in every if rows.ids is not None and rows.alignment is None]
    digests = [(rows, ids_of(rows, folder).digest()) for rows in named] if len(named) > 1 else []
    for rows, digest in digests[1:]:
        if digest != digests[0][1]:
            raise BadIds(
                f"{rows.path}.{rows.prefix}ids are not those of {named[0].path} in the same order; name where the "
                f'common rows stand, {rows.prefix}alignment = "{rows.file(folder).name}" and so on, and run '
                "`thinwire align`"
            )
