"""Rows to score that a user names: in other files, as objects, or by numbers such as 0-99,250,300-."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from thinwire.align import Ids, OwnerIds
from thinwire.base.errors import BadColumn, BadInput
from thinwire.base.format import did_you_mean, quote_names
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation
from thinwire.data.readers.features import Values, compare_columns, read_features
from thinwire.data.readers.sources import TableStore
from thinwire.data.readers.tables import GAPS, TableFile, column_names, read_cells, select_columns
from thinwire.engine.protocols.context import Groups
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.streams import RowOwners, Storage, blocks, make_table, release_pages
from thinwire.job.messages import within
from thinwire.job.row_selection import RowSet, read_ids, read_owner_ids
from thinwire.job.schema import PartyEntry, Source
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder

_PIECE = 65_536  # rows that are copied at a time


def resolve_row_set(which: RowSet | None, held_out: Collection[str]) -> RowSet:
    """Test rows where there are any, unless told otherwise; `held_out` are the kinds of rows that are kept back."""
    if which in (RowSet.TEST, RowSet.VALIDATION) and which not in held_out:
        raise BadInput(f"--table {which}: the job has no {which} rows; give --table training")
    return which or (RowSet.TEST if RowSet.TEST in held_out else RowSet.TRAINING)


def join_tables(which: RowSet, party: Any, storage: Storage) -> Tensor:
    """These rows of what a party holds: training rows first, then validation rows, then test rows."""
    tables = {RowSet.TRAINING: party.features}
    tables |= {kind: getattr(party, f"{kind}_features") for kind in (RowSet.VALIDATION, RowSet.TEST)}
    found = [torch.as_tensor(tables[kind]) for kind in which.kinds if tables[kind] is not None]
    if len(found) == 1:
        return found[0]
    if found[0].dim() != 2 or found[0].dtype != torch.float32 or not storage.spills:
        return torch.cat(found)
    joined, start = make_table(sum(map(len, found)), found[0].shape[1], storage, "the rows to score"), 0
    for piece in (piece for table in found for piece in table.split(_PIECE)):
        joined[start : start + len(piece)] = piece
        start += len(piece)
        for table in (joined, piece):
            release_pages(table)
    return joined


def join_owners(which: RowSet, groups: Groups) -> RowOwners:
    """Of the same rows: each belongs to a row of the joined table."""
    parts = {RowSet.TRAINING: groups.training, **{RowSet(kind): owners for kind, owners in groups.held_out.items()}}
    return RowOwners.join([parts[kind] for kind in which.kinds if kind in parts])


def count_row_set(which: RowSet, rows: int, held_out: Mapping[HeldOut, int]) -> tuple[int, int]:
    """Where these rows begin in that order, and how many they are."""
    counts = {RowSet.TRAINING: rows, **{RowSet(kind): held_out.get(kind, 0) for kind in HeldOut}}
    before = list(counts)[: list(counts).index(which.kinds[0])]
    return sum(counts[kind] for kind in before), sum(counts[kind] for kind in which.kinds)


def digest_parts(*parts: str | Tensor) -> str:
    """SHA-256 over texts and tables, one behind the other."""
    digest = hashlib.sha256()
    for part in parts:
        pieces = [part.encode()] if isinstance(part, str) else (one.numpy().data for one in blocks(part.contiguous()))
        for piece in pieces:
            digest.update(piece)
    return digest.hexdigest()


def read_new_features(section: PartyEntry, folder: Path, file: Path, run: Path) -> Any:
    """The columns that the section names, of another file of the same kind; refuses other columns or shapes.

    Where the section prepares its table, they are prepared as in `run`, the folder of the trained model.
    """
    if section.features is None:
        raise BadInput(f"{section.path} has no features; it takes part without them")
    if section.prepare is not None:
        return _prepared(section, section.features, file, run)
    table = TableStore().open(section.features.find_origin(folder), section.id_column)
    trained = _read(f"{section.path}.features", section, section.features, table)
    new = _read(f"--features {section.name}", section, section.features, file)
    what, known = compare_columns(trained.names, new.names), quote_names(trained.names or ())
    if what is None and new.shape != trained.shape:
        what, known = f"has rows of shape {new.shape}", str(trained.shape)
    if what is not None:
        raise BadInput(f"--features {section.name}: {file} {what}; the model was trained on {known}")
    return new.array


def _read_preparation(section: PartyEntry, run: Path) -> Preparation:
    """As the run's folder keeps it."""
    kept = layout.metadata_file(run, section.name, "preparation")
    if not kept.exists():
        raise BadInput(f"{run} does not hold how {section.name!r} prepared its table: {kept.name} is missing")
    return Preparation.from_json(open_folder(run).read(kept))


def _prepared(section: PartyEntry, source: Source, file: Path, run: Path) -> Tensor:
    preparation = _read_preparation(section, run)
    with within(f"--features {section.name}"):
        return preparation.apply(read_cells(file, list(preparation.sources), (), source.text_format))


def read_new_ids(section: PartyEntry, features: Path | None, ids: Path | None) -> Ids | None:
    """Their ids: of `ids`, or of the features' file where the section keeps both in one; None where it has none."""
    if section.ids is None:
        return None
    file = _find_ids_file(section, features, ids)
    with within(f"--ids {section.name}"):
        return read_ids(file, section.ids, Storage(spills=False))


def read_new_owners(
    section: PartyEntry, features: Path | None, ids: Path | None, grouped: Mapping[PartyName, str]
) -> dict[PartyName, OwnerIds]:
    """Of the label party's new rows, at parties with a group: columns beside the ids."""
    if not grouped or section.ids is None:
        return {}
    file = _find_ids_file(section, features, ids)
    with within(f"--ids {section.name}"):
        return {name: read_owner_ids(file, section.ids, column) for name, column in grouped.items()}


def _find_ids_file(section: PartyEntry, features: Path | None, ids: Path | None) -> Path:
    origins = [one.find_origin(Path()) for one in (section.features, section.ids) if one is not None]
    together = len(origins) == 2 and origins[0].is_same(origins[1])
    file = ids or (features if together else None)
    if file is None:
        raise BadInput(f"--ids {section.name}: say which file holds the ids of the new rows")
    return file


def _read(where: str, section: PartyEntry, source: Source, file: TableFile) -> Values:
    with within(where):
        return read_features(
            file, source.key, source.columns, source.all_but or (), source.text_format, section.takes_gaps
        )


# A table's columns by name, one object a row, as requests bring them ----------------------------------------------


@dataclass(frozen=True)
class NamedColumns:
    """The columns of a model's table, and how cells became numbers in training; nothing is fitted here."""

    names: tuple[str, ...]  # that an object may have
    required: tuple[str, ...]
    preparation: Preparation | None = None  # None: numbers as they stand
    gaps: Sequence[str] = ()  # words that counted as nothing in training
    takes_null: bool = False  # numbers as they stand may be missing

    def convert(self, objects: Sequence[Any]) -> Tensor:
        """float32, a row for each object; a row does not depend on the others."""
        for place, one in enumerate(objects):
            self._check(f"features[{place}]", one)
        if self.preparation is None:
            rows = [[nan if one[name] is None else float(one[name]) for name in self.names] for one in objects]
            return torch.tensor(rows, dtype=torch.float32)
        columns = {name: [self._spell(one[name]) for one in objects] for name in self.required}
        table = pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})
        try:
            return self.preparation.apply(table)
        except BadInput as error:
            raise BadColumn(f"features: {error}") from None

    def _check(self, where: str, one: Any) -> None:
        if not isinstance(one, dict):
            raise BadColumn(
                f"{where} is not an object; give all rows as objects of columns, or all as lists of numbers"
            )
        unknown = next((name for name in one if name not in self.names), None)
        if unknown is not None:
            hint = did_you_mean(unknown[:40], self.names) or f"; it has {quote_names(self.names)}"
            raise BadColumn(f"{where} has {unknown[:40]!r}, which is not a column of the model{hint}")
        missing = [name for name in self.required if name not in one]
        if missing:
            raise BadColumn(f"{where} lacks {quote_names(missing)}; give null where a value is missing")
        for name in self.required:
            self._check_value(f"{where}: {name!r}", one[name])

    def _check_value(self, where: str, value: Any) -> None:
        if isinstance(value, (list, dict)):
            raise BadColumn(f"{where} must be a number, text, true, false or null")
        if self.preparation is None and (isinstance(value, str) or (value is None and not self.takes_null)):
            raise BadColumn(
                f"{where} must be a number: the model's table was not prepared, so that nothing is filled in"
            )

    def _spell(self, value: Any) -> str | None:
        """As the cell of a table: a JSON number has a point, the table its own decimal sign."""
        match value:
            case None:
                return None
            case bool():
                return "true" if value else "false"
            case int() | float():
                return repr(value).replace(".", "." if self.preparation is None else self.preparation.decimal)
        return None if value in self.gaps else str(value)


def read_named_columns(section: PartyEntry, folder: Path, run: Path) -> NamedColumns | None:
    """Of the table that the section's model was trained on; None where its columns have no names."""
    source = section.features
    origin = None if source is None else source.find_origin(folder)
    suffix = "" if origin is None else origin.suffix
    if source is None or origin is None or suffix not in (".csv", ".parquet"):
        return None
    if section.prepare is not None:
        if not layout.metadata_file(run, section.name, "preparation").exists():
            return None
        preparation = _read_preparation(section, run)
        names = tuple(column.name for column in preparation.columns)
        return NamedColumns(names, preparation.sources, preparation, GAPS if suffix == ".csv" else ())
    file = TableStore().open(origin, section.id_column)
    names = select_columns(file, column_names(file, source.text_format), source.columns, source.all_but or ())
    return NamedColumns(names, names, takes_null=section.takes_gaps)


RowNumbers = npt.NDArray[np.int64]


def parse_row_numbers(text: str, count: int) -> RowNumbers:
    """The rows of "3,10-19,90-" of a table of `count` rows, in that order; each once."""
    rows = np.concatenate([np.arange(some.start, some.stop) for some in read_row_ranges(text, count)])
    if len(np.unique(rows)) != len(rows):
        raise BadInput(f"--rows {text!r} names a row twice")
    return rows


def read_row_ranges(text: str, count: int | None) -> list[range]:
    """In that order; where nobody knows how many rows there are, a range has both its ends."""
    found = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        is_open = bool(dash) and not last
        if not first.isdecimal() or not (last or "0").isdecimal() or max(len(first), len(last)) > 18:
            raise BadInput(f"--rows {part.strip()!r}: use row numbers from 0 and ranges, such as 3,10-19,90-")
        if is_open and count is None:
            raise BadInput(f"--rows {part.strip()!r}: write the last row of the range too, such as 10-19")
        rows = range(int(first), (count or 0) if is_open else int(last or first) + 1)
        if count is not None and max(rows.start, rows.stop - 1) >= count:
            raise BadInput(f"--rows {part.strip()!r}: there are {count} rows, numbered from 0 to {count - 1}")
        if not rows:
            raise BadInput(f"--rows {part.strip()!r}: a range goes from the lower number to the higher")
        found.append(rows)
    return found
