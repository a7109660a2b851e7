"""One party's tables as numbers: read where they are, rows selected, cells prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from thinwire.base.errors import BadColumn, BadFile, BadInput, BadLabels
from thinwire.base.types import Progress, name_stages
from thinwire.data.prepare import LabelCoding, Preparation
from thinwire.data.readers.features import Values, compare_columns, convert_to_floats, read_features, read_labels
from thinwire.data.readers.large_table import HELD_BYTES, HELD_ROWS, LargeCells, copy_csv
from thinwire.data.readers.sources import TableStore
from thinwire.data.readers.tables import (
    Cells,
    StoredTable,
    TableFile,
    column_names,
    open_stored,
    read_cells,
    select_columns,
)
from thinwire.data.readers.text_format import TextFormat
from thinwire.job.messages import at
from thinwire.job.row_selection import RowSelection
from thinwire.job.schema import ColumnSource, FileSource, LabelSection, PartyEntry, Source, SplitSection

AnyTable: TypeAlias = Values | Cells | LargeCells


@dataclass(frozen=True, eq=False)
class PartyTables:
    """One party's rows as numbers."""

    features: Any  # [N, ...]
    validation_features: Any = None
    test_features: Any = None
    preparation: Preparation | None = None
    unaligned_features: Any = None  # of rows that others lack
    groups: Mapping[str, Any] = field(default_factory=dict)  # with a group: "group", "validation_group", "test_group"

    @property
    def follows(self) -> dict[str, Any]:
        """Sizes of a model that follow from the preparation."""
        if self.preparation is None or self.preparation.categories != "codes":
            return {}
        return {"fields_vocab": list(self.preparation.vocabularies)}


@dataclass(frozen=True)
class TableReader:
    """Reads what one party's section names."""

    section: PartyEntry
    folder: Path
    split: SplitSection | None
    keeps_unaligned: bool = False  # rows that others lack, for models that learn without labels
    owner_columns: Sequence[str] = ()  # ids of the rows' owners, in the label party's table: no features
    tables: TableStore = field(default_factory=TableStore, compare=False, repr=False)
    on_progress: Progress | None = None

    @cached_property
    def rows(self) -> RowSelection:
        return RowSelection(self.section, self.folder, self.split, self.tables)

    def open(self, field: str, source: FileSource) -> TableFile:
        """Where the field's data is, in the order of the ids."""
        column = self.section.test_id_column if field.startswith("test_") else self.section.id_column
        return self.tables.open(source.find_origin(self.folder), column)

    def read_features(self, source: Source, taken: Sequence[str] = ()) -> PartyTables:
        """`taken` are columns of the same file that are no features: the label."""
        settings = self.section.prepare
        read = self._read_numbers if settings is None else self._read_cells
        table, test = read("features", source, taken), None
        test_source = None if self.rows.splits_test_rows else self.section.test_features
        if test_source is not None:
            test = read("test_features", test_source, taken)
            _require_alike(f"{self.section.path}.test_features", table, test)
        tables = self.rows.divide("features", table, test)
        spare = self.rows.take_unaligned(table) if self.keeps_unaligned else None
        if settings is None:
            found = self.convert("features", self._to_array, tables)
            others = None if spare is None else self._to_array(spare)
            return PartyTables(*found, unaligned_features=others, groups=self._list_groups())
        with at(f"{self.section.path}.prepare"):
            follower = name_stages(self.on_progress, self.section.name)
            preparation = Preparation.fit(tables[0], settings, follower)
        converted = self.convert("features", preparation.apply, tables)
        spare = None if spare is None else preparation.apply(spare)
        return PartyTables(*converted, preparation, spare, self._list_groups())

    def _to_array(self, table: Values | LargeCells) -> Any:
        if isinstance(table, LargeCells):
            return table.convert(partial(convert_to_floats, with_gaps=self.section.takes_gaps))
        return table.array

    def open_large(self, file: TableFile, form: TextFormat, names: Sequence[str]) -> LargeCells | None:
        """A table of many rows, to be read in blocks; None where it is small enough to be held whole."""
        storage = self.tables.storage
        if file.suffix.lower() == StoredTable.suffix:
            stored = open_stored(file)
            return LargeCells(stored, tuple(names), storage) if len(stored) > HELD_ROWS else None
        if isinstance(file, Path) and file.suffix.lower() == ".csv" and file.stat().st_size > HELD_BYTES:
            return LargeCells(copy_csv(file, names, form, storage), tuple(names), storage, None, file, form)
        return None

    def _list_groups(self) -> dict[str, Any]:
        kinds = {"group": self.rows.training, "validation_group": self.rows.validation, "test_group": self.rows.test}
        return {field: rows.index for field, rows in kinds.items() if rows is not None and rows.index is not None}

    def convert(
        self, field: str, apply: Callable[[Any], Tensor], tables: tuple[Any, Any, Any]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """All as tensors; what is refused names the field whose file it stands in."""
        training, validation, test = tables
        with at(f"{self.section.path}.{field}"):
            rows, steering = apply(training), None if validation is None else apply(validation)
        if test is None:
            return rows, steering, None
        with at(f"{self.section.path}.{field if self.section.test_source is None else f'test_{field}'}"):
            return rows, steering, apply(test)

    def _read_numbers(self, field: str, source: Source, taken: Sequence[str]) -> Values | LargeCells:
        with at(f"{self.section.path}.{field}"):
            file, form = self.open(field, source), source.text_format
            columns, all_but = source.columns, source.all_but or ()
            found: Values | LargeCells | None = None
            if file.suffix.lower() == StoredTable.suffix and source.key is None:
                found = self.open_large(file, form, select_columns(file, column_names(file), columns, all_but))
            found = found or read_features(file, source.key, columns, all_but, form, self.section.takes_gaps)
        for name in taken:
            if name in (found.names or ()):  # a label among the features leaks the answer
                says = f"holds the label {name!r}; write all_but = [{name!r}]"
                raise BadColumn.of(f"{self.section.path}.{field}", says)
        for name in self.owner_columns:
            if name in (found.names or ()):
                says = f"holds {name!r}, the ids of the rows' owners; write all_but = [{name!r}]"
                raise BadColumn.of(f"{self.section.path}.{field}", says)
        return found

    def _read_cells(self, field: str, source: Source, taken: Sequence[str]) -> Cells | LargeCells:
        """Without the id, where it stands in the same file, and without what is `taken`."""
        with at(f"{self.section.path}.{field}"):
            file, form = self.open(field, source), source.text_format
            if source.key is not None:
                raise BadFile(f"{file}: prepare is for tables, .csv and .parquet; an NPZ file's arrays are ready")
            own = [*self._id_columns(source), *self.owner_columns]
            there = column_names(file, form)
            left_out = [name for name in [*own, *taken] if name in there]
            asked = select_columns(file, there, source.columns, source.all_but or ())
            for name in left_out:
                if name in (source.columns or ()):
                    what = "the rows' id" if name in own else "the label"
                    raise BadColumn(f"{file}: column {name!r} is {what}, not a feature; remove it from columns")
            kept = [name for name in asked if name not in left_out]
            return self.open_large(file, form, kept) or read_cells(file, kept, (), form)

    def _id_columns(self, source: Source) -> list[str]:
        """What the ids are called, in the files that hold them; test rows call them alike."""
        named = [ids for ids in (self.section.ids, self.section.test_ids) if ids is not None and ids.column]
        here = [ids for ids in named if self.is_same_table(ids, source)]
        return [str(ids.column) for ids in here or named]

    def is_same_table(self, one: FileSource, other: FileSource) -> bool:
        """However the two paths are written."""
        return one.find_origin(self.folder).is_same(other.find_origin(self.folder))


def _require_alike(path: str, training: AnyTable, test: AnyTable) -> None:
    """Test rows, at `path`, of the same columns or of the same shape as training rows."""
    what = compare_columns(training.names, test.names)
    if what is not None:
        raise BadColumn.of(path, f"{what}; name the same columns as in features")
    if isinstance(training, Values) and isinstance(test, Values) and test.shape != training.shape:
        raise BadInput(f"{path} has rows of shape {test.shape}, features {training.shape}")


def read_label_column(
    reader: TableReader, section: LabelSection
) -> tuple[Tensor, Tensor | None, Tensor | None, LabelCoding | None]:
    """Training, validation and test labels, and what their numbers stand for where they have a task."""
    source = section.labels
    test_source = None if reader.rows.splits_test_rows else section.test_labels
    coded = source.task is not None or source.classes is not None
    read: Callable[[TableReader, str, ColumnSource], Any] = _read_label_cells if coded else _read_label_numbers
    labels = read(reader, "labels", source)
    test_labels = None if test_source is None else read(reader, "test_labels", test_source)
    tables = reader.rows.divide("labels", labels, test_labels)
    if not coded:
        return *tables, None
    coding = _fit_coding(section, tables[0])
    return *reader.convert("labels", coding.apply, tables), coding


def _fit_coding(section: LabelSection, training: Cells | LargeCells) -> LabelCoding:
    source = section.labels
    with at("label_party.labels"):
        classes = None if source.classes is None else tuple(source.classes)
        coding = LabelCoding.fit(training, str(source.column), source.task or "auto", classes)
    fitting = section.loss in ("squared_error", "poisson")
    if fitting != (coding.task == "regression"):
        right = "squared_error" if coding.task == "regression" else "cross_entropy"
        raise BadLabels.of("label_party.loss", f"is {section.loss!r}, but {coding.says}; write loss = {right!r}")
    # Counts are not standardised.
    return coding.model_copy(update={"mean": 0.0, "deviation": 1.0}) if section.loss == "poisson" else coding


def _read_label_numbers(reader: TableReader, field: str, source: ColumnSource) -> Tensor:
    with at(f"label_party.{field}"):
        file = reader.open(field, source)
        return torch.as_tensor(read_labels(file, source.key, source.column, source.text_format))


def _read_label_cells(reader: TableReader, field: str, source: ColumnSource) -> Cells | LargeCells:
    with at(f"label_party.{field}"):
        if source.key is not None or source.column is None:
            raise BadColumn('task applies to a column of a table; name it with column = "..."')
        file, form = reader.open(field, source), source.text_format
        names = select_columns(file, column_names(file, form), [source.column])
        return reader.open_large(file, form, names) or read_cells(file, names, (), form)
