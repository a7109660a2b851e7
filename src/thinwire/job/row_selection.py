"""Which rows train, and which are kept back: answered here for training, scoring, alignment and erasure.

A party names the ids of its rows, and perhaps an alignment, which says which of them all parties hold. Validation and
test rows come by `[job] split` from the same table: a keyed hash of each row's id decides, the same at every party;
where a party holds owners of rows, which have no id of their own there, of the row's place in the alignment.
Test rows may instead have tables of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.align import Alignment, Ids, OwnerIds, Workspace, normalize_owner_ids, read_alignment, store_ids
from thinwire.align.ids import RowNumbers, collect_ids
from thinwire.base.errors import BadIds, BadInput
from thinwire.base.numbering import number_by_appearance
from thinwire.base.types import PartyName
from thinwire.data.readers.features import read_id_column, stream_id_texts
from thinwire.data.readers.sources import TableStore
from thinwire.data.readers.tables import TableFile
from thinwire.engine.streams import Storage
from thinwire.job.id_table import IdIndex, IdTable, IdTexts, UnmatchedRows
from thinwire.job.messages import at
from thinwire.job.schema import ColumnSource, PartyEntry, SplitSection

TRAINING, VALIDATION, TEST = 0, 1, 2
_SPLIT_ROWS = 65_536  # at a time
_TESTS = ("test_features", "test_labels", "test_ids", "test_alignment")
_NO_IDS = 'missing; name the file and column of the ids, such as { file = "rows.csv", column = "id" }'


class RowSet(StrEnum):
    """Which of a job's rows."""

    TEST = "test"
    VALIDATION = "validation"
    TRAINING = "training"
    ALL = "all"  # training rows, then validation rows, then test rows

    @property
    def kinds(self) -> tuple[RowSet, ...]:
        """The single kinds of rows that it holds, in order."""
        return (RowSet.TRAINING, RowSet.VALIDATION, RowSet.TEST) if self is RowSet.ALL else (self,)


@dataclass(frozen=True, slots=True)
class RowDigest:
    """What parties compare without showing an id: a digest of their rows' ids in order, and how many there are."""

    digest: str
    count: int


@dataclass(frozen=True)
class RowSource:
    """One party's training table, or its test table: where the rows' ids are, and where their alignment is."""

    section: PartyEntry
    folder: Path  # of the job file
    prefix: str = ""  # or "test_"
    tables: TableStore = field(default_factory=TableStore, compare=False, repr=False)

    @property
    def ids_source(self) -> ColumnSource | None:
        return self.section.test_ids if self.prefix else self.section.ids

    @property
    def alignment_file(self) -> str | None:
        return self.section.test_alignment if self.prefix else self.section.alignment

    def locate(self, field: str) -> str:
        """A field's dotted path, for messages."""
        return f"{self.section.path}.{self.prefix}{field}"

    @property
    def what(self) -> str:
        return "test rows" if self.prefix else "training rows"

    @property
    def file(self) -> Path:
        """Where `thinwire align` writes."""
        return self.folder / (self.alignment_file or f"{self.section.name}{'-test' if self.prefix else ''}.alignment")

    @cached_property
    def ids(self) -> Ids:
        """As they are compared; refuses rows without one, and two with the same."""
        return self.read_ids()

    def read_ids(self) -> Ids:
        """The same, not kept: there may be very many."""
        with at(self.locate("ids")):
            if self.ids_source is None:
                raise BadInput(_NO_IDS)
            return read_ids(self._open(self.ids_source), self.ids_source, self.tables.storage)

    @property
    def workspace(self) -> Workspace:
        """Where `thinwire align` keeps the buckets of large sets until it is done."""
        file = "" if self.ids_source is None else str(self.ids_source.find_origin(self.folder))
        return Workspace(self.file.with_name(f"{self.file.name}.buckets"), where=file)

    def store_ids(self) -> Ids:
        """As `ids`; those of a large table lie in the workspace, and are not compared with each other yet."""
        if self.ids_source is None:
            return self.ids
        source, room = self.ids_source, self.workspace
        with at(self.locate("ids")):
            pieces = stream_id_texts(self._open(source), source.key, source.column, source.text_format)
            return store_ids(pieces, room.folder, room.in_memory_ids, room.where)

    def read_owners(self, column: str) -> OwnerIds:
        """Whose each row of the label party's is: a column beside the ids."""
        with at(self.locate("ids")):
            if self.ids_source is None:
                raise BadInput(_NO_IDS)
            return read_owner_ids(self._open(self.ids_source), self.ids_source, column)

    def _open(self, source: ColumnSource) -> TableFile:
        return self.tables.open(source.find_origin(self.folder), source.column)

    @cached_property
    def alignment(self) -> Alignment | None:
        """Refuses another party's alignment, and one of ids that have changed since; None where there is none."""
        if self.alignment_file is None:
            if self.section.group is not None and not (self.prefix and self.section.test_source is None):
                says = "is missing, but a group needs it: name a file here, and run `thinwire align`"
                raise BadInput.of(self.locate("alignment"), says)
            return None
        with at(self.locate("alignment")):
            found = read_alignment(self.file)
            if found.me != self.section.name:
                raise BadInput(f"{self.file} is the alignment of {found.me!r}, not of {self.section.name!r}")
            found.require_same_ids(self.ids)
            if found.is_grouped != (self.section.group is not None):
                says = (
                    "of owners of rows, and there is no group"
                    if found.is_grouped
                    else "of single rows, not of a group"
                )
                raise BadInput(f"{self.file} is {says}; align again, or change `group` at all parties")
        return found

    def count_unmatched_rows(self) -> UnmatchedRows:
        """Without an alignment all parties hold the same rows."""
        found = self.alignment
        return UnmatchedRows(0, len(self.ids), {}, 0) if found is None else UnmatchedRows.outside_alignment(found)

    def select(self) -> SelectedRows:
        """All rows as they stand, or the aligned ones in the common order."""
        if self.alignment is None:
            return SelectedRows(self, None)
        return self.select_places(np.arange(len(self.alignment)), None)

    def select_places(self, places: RowNumbers, digest: str | None) -> SelectedRows:
        """These rows of the alignment; of all rows as they stand, where there is none."""
        if self.alignment is None:
            return SelectedRows(self, places, digest)
        rows, index = self.alignment.rows[places], None
        if self.alignment.is_grouped:
            rows, index = number_by_appearance(rows)
        owners = {party: number_by_appearance(of[places])[1] for party, of in self.alignment.owners.items()}
        return SelectedRows(self, rows, digest, index, owners)


@dataclass(frozen=True, eq=False)
class SelectedRows:
    """Some rows of one table, in the order that all parties agreed on."""

    source: RowSource
    rows: RowNumbers | None  # None: all of them, as they stand
    split_digest: str | None = None  # of all common rows and of the split, where a split chose these
    index: RowNumbers | None = None  # with a group: for each row of the run, which of `rows` it belongs to
    owners: Mapping[PartyName, RowNumbers] = field(default_factory=dict)  # at the label party: of each row, by party

    def take(self, table: Any, what: str) -> Any:
        """These rows of a table of numbers or cells."""
        if self.rows is None:
            return table
        self.require_size(len(table), f"{self.source.section.path}.{what}")
        return table[self.rows]

    def require_size(self, size: int, path: str) -> None:
        if self.rows is not None and size != len(self.source.ids):
            raise BadInput.of(path, f"has {size} rows, but there are {len(self.source.ids)} ids")

    @cached_property
    def digest(self) -> RowDigest | None:
        """Of aligned rows the alignment's own, which all parties have; None where the rows have no ids."""
        if self.split_digest is not None and self.rows is not None:
            return RowDigest(self.split_digest, len(self.rows if self.index is None else self.index))
        if self.source.alignment is not None:
            return RowDigest(self.source.alignment.digest, len(self.source.alignment))
        if self.source.ids_source is None:
            return None
        return RowDigest(self.source.ids.digest(), len(self.source.ids))

    def list_ids(self) -> IdTexts | None:
        """None where the rows have no ids; with a group, each row has its owner's."""
        if self.source.ids_source is None:
            return None
        if self.rows is None or self.index is None:
            return IdTexts.of(self.source.ids, self.rows)
        return IdTexts.of(self.source.ids, self.rows[self.index])


@dataclass(frozen=True)
class RowSelection:
    """Which rows of one party's tables train, which steer, and which judge."""

    section: PartyEntry
    folder: Path
    split: SplitSection | None = None
    tables: TableStore = field(default_factory=TableStore, compare=False, repr=False)

    @cached_property
    def training(self) -> SelectedRows:
        if self.split is not None:
            return self._split_rows[RowSet.TRAINING]
        return self._sources[""].select()

    @cached_property
    def validation(self) -> SelectedRows | None:
        """None where no split keeps such rows back."""
        return self._split_rows.get(RowSet.VALIDATION)

    @cached_property
    def test(self) -> SelectedRows | None:
        """None where a split keeps none back, unless they have tables of their own, which may still be missing."""
        if self.split is not None and (self.split.test or self.section.test_source is None):
            return self._split_rows.get(RowSet.TEST)
        return self._sources["test_"].select()

    @cached_property
    def _split_rows(self) -> dict[RowSet, SelectedRows]:
        if self.split is None:
            return {}
        _require_one_source(self.section, self.split)
        return _select_by_split(self._sources[""], self.split)

    @cached_property
    def _sources(self) -> dict[str, RowSource]:
        """By prefix; each reads its ids once."""
        return {prefix: RowSource(self.section, self.folder, prefix, self.tables) for prefix in ("", "test_")}

    @property
    def splits_test_rows(self) -> bool:
        """Do test rows come from the same table as training rows?"""
        return RowSet.TEST in self._split_rows

    def divide(self, what: str, table: Any, test_table: Any) -> tuple[Any, Any, Any]:
        """Training, validation and test rows: of one table by the split, or test rows of a table of their own."""
        training = self.training.take(table, what)
        validation = None if self.validation is None else self.validation.take(table, what)
        rows, where = (table, what) if self.splits_test_rows else (test_table, f"test_{what}")
        return training, validation, None if rows is None or self.test is None else self.test.take(rows, where)

    def take_unaligned(self, table: Any) -> Any:
        """The rows of a table that some other party lacks; None where there are none, or nobody has asked."""
        source = self._sources[""]
        if source.alignment is None or len(table) != len(source.ids):
            return None
        rows = np.setdiff1d(np.arange(len(table)), source.alignment.rows)
        return table[rows] if len(rows) else None

    def select(self, kind: RowSet) -> SelectedRows | None:
        """The rows of one kind."""
        found: SelectedRows | None = getattr(self, kind.value)
        return found

    def list_sources(self, which: RowSet) -> list[RowSource]:
        """The tables that these rows come from, of those that name ids."""
        prefixes = dict.fromkeys(self._find_prefix(kind) for kind in which.kinds)
        sources = [self._sources[prefix] for prefix in prefixes if prefix is not None]
        return [source for source in sources if source.ids_source is not None]

    def _find_prefix(self, kind: RowSet) -> str | None:
        """Of the table that holds these rows, which are not looked at; None where there are none."""
        if kind is RowSet.TRAINING or (self.split is not None and getattr(self.split, kind.value)):
            return ""
        has_table = self.split is None or self.section.test_source is not None
        return "test_" if kind is RowSet.TEST and has_table else None

    def count_unmatched_rows(self, which: RowSet) -> UnmatchedRows | None:
        """Rows of these tables that are outside their alignment; None where no table names ids."""
        counts = [source.count_unmatched_rows() for source in self.list_sources(which)]
        return reduce(add, counts) if counts else None

    def list_ids(self, which: RowSet) -> IdTable | None:
        """The ids of these rows in order; None where the section names none."""
        chosen = [rows for kind in which.kinds if (rows := self.select(kind)) is not None]
        parts = [texts for rows in chosen if (texts := rows.list_ids()) is not None]
        if len(parts) != len(chosen):
            return None
        ids, sources = IdTexts.join(parts), self.list_sources(which)
        if len(sources) > 1 and IdIndex(ids).has_repeats():
            return None  # the same id among training and test rows: a row number says which is meant
        return IdTable(ids, held=tuple(source.ids for source in sources))


def read_ids(file: TableFile, source: ColumnSource, storage: Storage) -> Ids:
    """The ids of a file that is laid out as the section says, as they are compared; very many lie in files."""
    return collect_ids(read_id_column(file, source.key, source.column, source.text_format), str(file), storage)


def read_owner_ids(file: TableFile, source: ColumnSource, column: str) -> OwnerIds:
    """Whose each row is, by another column of the file, or another array of it, that holds the ids."""
    key, name = (None, column) if source.key is None else (column, None)
    return normalize_owner_ids(read_id_column(file, key, name, source.text_format), f"{file}, column {column!r}")


def split_ids(ids: Iterable[bytes], split: SplitSection) -> NDArray[np.int8]:
    """0 for training, 1 for validation, 2 for test. HMAC-SHA256 of the id as it is compared: NFC, trimmed, UTF-8."""
    hashes, found = _hash_ids(ids, split.key.encode()), [np.zeros(0, np.int8)]
    while len(shares := np.fromiter(islice(hashes, _SPLIT_ROWS), np.float64)):
        shares /= 2.0**64
        found.append(np.full(len(shares), TRAINING, dtype=np.int8))
        found[-1][shares < split.test + split.validation] = VALIDATION
        found[-1][shares < split.test] = TEST
    return np.concatenate(found)


def _hash_ids(ids: Iterable[bytes], key: bytes) -> Iterator[int]:
    """The first 8 bytes of each id's HMAC. Its two hashes begin with the key once, not once an id: half the time."""
    block = (key if len(key) <= 64 else hashlib.sha256(key).digest()).ljust(64, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
    for one in ids:
        inside, outside = inner.copy(), outer.copy()
        inside.update(one)
        outside.update(inside.digest())
        yield int.from_bytes(outside.digest()[:8], "big")


def _select_by_split(source: RowSource, split: SplitSection) -> dict[RowSet, SelectedRows]:
    """The kinds of rows that the split makes; refuses one that leaves nothing of a kind."""
    ids, alignment = source.ids, source.alignment
    rows = None if alignment is None else alignment.rows
    if alignment is not None and alignment.grouped:  # not every party holds the rows' own ids
        found = split_ids((str(place).encode() for place in range(len(alignment))), split)
    else:
        found = split_ids(ids.iterate(rows), split)
    shares = {RowSet.TRAINING: 1.0, RowSet.VALIDATION: split.validation, RowSet.TEST: split.test}
    chosen = {kind: np.flatnonzero(found == number) for number, (kind, share) in enumerate(shares.items()) if share}
    if not all(map(len, chosen.values())):
        left = ", ".join(f"{len(some)} are left for {kind}" for kind, some in chosen.items())
        raise BadInput(f"of {len(found)} rows {left}; use more rows, or different fractions").at("job.split")
    common = ids.digest() if alignment is None else alignment.digest
    text = f"{common} {split.test!r} {split.validation!r} {split.key}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {kind: source.select_places(some, digest) for kind, some in chosen.items()}


def _require_one_source(section: PartyEntry, split: SplitSection) -> None:
    """Refuses test rows that come from elsewhere."""
    given = next((field for field in _TESTS if getattr(section, field, None) is not None), None)
    if given is not None and split.test:
        says = "job.split takes the test rows from the same table; remove one of the two, or set test = 0 there"
        raise BadInput(says).at(f"{section.path}.{given}")
    if split.test + split.validation >= 1:
        raise BadInput("test and validation together must leave some rows for training").at("job.split")


def require_one_alignment(every: Sequence[RowSource]) -> None:
    """All parties' rows come from one alignment, or from none."""
    paths = {rows.locate("alignment"): rows.alignment for rows in every}
    given = {path: alignment for path, alignment in paths.items() if alignment is not None}
    if not given:
        return
    missing = [path for path in paths if path not in given]
    first = next(iter(given))
    if missing:
        raise BadInput(f"{missing[0]} is missing: {first} is given, and aligned rows fit aligned rows only")
    for path, alignment in given.items():
        if alignment.digest != given[first].digest:
            raise BadInput.of(path, f"and {first} are of two alignments; run `thinwire align` again for all parties")


def require_same_rows(every: Sequence[RowSource]) -> None:
    """Without an alignment, parties that name their ids hold the same rows in the same order."""
    named = [rows for rows in every if rows.ids_source is not None and rows.alignment_file is None]
    digests = [(rows, rows.read_ids().digest()) for rows in named] if len(named) > 1 else []
    for rows, digest in digests[1:]:
        if digest != digests[0][1]:
            raise BadIds(
                f"{rows.locate('ids')} are not those of {named[0].section.path} in the same order; name the file for "
                f'the shared rows, {rows.prefix}alignment = "{rows.file.name}" and so on, and run '
                "`thinwire align`"
            )
