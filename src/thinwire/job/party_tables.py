"""A party's features and labels: read, the rows selected, and prepared where the section asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.base.errors import BadColumn, BadFile, BadInput, BadLabels
from thinwire.base.format import quote_names
from thinwire.data.prepare import LabelCoding, Preparation, Settings
from thinwire.data.readers.cells import Cells, column_names, read_cells
from thinwire.data.readers.features import Values, read_features, read_labels
from thinwire.data.readers.tables import select_columns
from thinwire.job.messages import at
from thinwire.job.row_selection import RowSelection
from thinwire.job.schema import ColumnSource, LabelSection, PartyEntry, Source, SplitSection


@dataclass(frozen=True, eq=False)
class PartyTables:
    """One party's rows as numbers."""

    features: Any  # [N, ...]
    test_features: Any
    preparation: Preparation | None = None

    @property
    def follows(self) -> dict[str, Any]:
        """Sizes of a model that follow from the preparation."""
        if self.preparation is None or self.preparation.categories != "codes":
            return {}
        return {"fields_vocab": list(self.preparation.vocabularies)}


@dataclass(frozen=True)
class TableReader:
    """Reads what one party's section names."""

    path: str  # of the section, for messages
    section: PartyEntry
    folder: Path
    split: SplitSection | None

    @cached_property
    def rows(self) -> RowSelection:
        return RowSelection(self.path, self.section, self.folder, self.split)

    def read_features(self, source: Source, taken: Sequence[str] = ()) -> PartyTables:
        """`taken` are columns of the same file that are no features: the label."""
        if self.section.prepare is None:
            training = self._numbers("features", source)
            _require_none_of(self.path, taken, training.columns)
            return PartyTables(*self.rows.divide("features", training.array, lambda: self._test_numbers(training)))
        training_cells = self._cells("features", source, taken)
        training_rows, test_rows = self.rows.divide(
            "features", training_cells, lambda: self._test_cells(training_cells, taken)
        )
        return self._prepare(self.section.prepare, training_rows, test_rows)

    def _prepare(self, settings: Settings, training: Cells, test: Cells | None) -> PartyTables:
        with at(f"{self.path}.prepare"):
            preparation = Preparation.fit(training, settings)
        with at(f"{self.path}.features"):
            features = preparation.apply(training)
        if test is None:
            return PartyTables(features, None, preparation)
        with at(f"{self.path}.{'features' if self.split else 'test_features'}"):
            return PartyTables(features, preparation.apply(test), preparation)

    # Tables of numbers --------------------------------------------------------------------------------------

    def _numbers(self, field: str, source: Source) -> Values:
        with at(f"{self.path}.{field}"):
            return read_features(
                self.folder / source.file, source.key, source.columns, source.all_but or (), source.delimiter or ","
            )

    def _test_numbers(self, training: Values) -> Any:
        if self.section.test_features is None:
            return None
        test = self._numbers("test_features", self.section.test_features)
        _require_same_columns(self.path, training.columns, test.columns)
        if test.array.shape[1:] != training.array.shape[1:]:
            raise BadInput(
                f"{self.path}.test_features has rows of shape {list(test.array.shape[1:])}, features "
                f"{list(training.array.shape[1:])}"
            )
        return test.array

    # Tables of any columns ----------------------------------------------------------------------------------

    def _cells(self, field: str, source: Source, taken: Sequence[str]) -> Cells:
        """Without the id, where it stands in the same file, and without what is `taken`."""
        with at(f"{self.path}.{field}"):
            file, delimiter = self.folder / source.file, source.delimiter or ","
            if source.key is not None:
                raise BadFile(f"{file}: prepare is for tables, .csv and .parquet; an NPZ file's arrays are ready")
            own = self._id_columns(source)
            there = column_names(file, delimiter)
            left_out = [name for name in [*own, *taken] if name in there]
            asked = select_columns(file, there, source.columns, source.all_but or ())
            for name in left_out:
                if name in (source.columns or ()):
                    what = "the rows' id" if name in own else "the label"
                    raise BadColumn(f"{file}: column {name!r} is {what}, and no feature; leave it out of columns")
            return read_cells(file, [name for name in asked if name not in left_out], (), delimiter)

    def _id_columns(self, source: Source) -> list[str]:
        """What the ids are called, in the files that hold them; test rows call them alike."""
        named = [ids for ids in (self.section.ids, self.section.test_ids) if ids is not None and ids.column]
        here = [ids for ids in named if self.is_same_file(ids.file, source.file)]
        return [str(ids.column) for ids in here or named]

    def is_same_file(self, one: str, other: str) -> bool:
        """However the two paths are written."""
        return (self.folder / one).resolve() == (self.folder / other).resolve()

    def _test_cells(self, training: Cells, taken: Sequence[str]) -> Cells | None:
        if self.section.test_features is None:
            return None
        test = self._cells("test_features", self.section.test_features, taken)
        _require_same_columns(self.path, training.names, test.names)
        return test


def _require_none_of(path: str, taken: Sequence[str], columns: tuple[str, ...] | None) -> None:
    """A label among the features would be learned by heart."""
    for name in taken:
        if name in (columns or ()):
            raise BadColumn.of(f"{path}.features", f"holds the label {name!r}; write all_but = [{name!r}]")


def _require_same_columns(path: str, training: tuple[str, ...] | None, test: tuple[str, ...] | None) -> None:
    if training == test or training is None or test is None:
        return
    missing = [name for name in training if name not in test]
    extra = [name for name in test if name not in training]
    what = "has them in another order"
    if missing or extra:
        what = f"lacks {quote_names(missing)}" if missing else f"has {quote_names(extra)} too"
    raise BadColumn.of(f"{path}.test_features", f"{what}; name the same columns as in features")


# Labels ----------------------------------------------------------------------------------------------------


def read_label_column(reader: TableReader, section: LabelSection) -> tuple[Tensor, Tensor | None, LabelCoding | None]:
    """Training labels, test labels where there are any, and what their numbers stand for where they have a task."""
    if section.labels.task is None and section.labels.classes is None:
        labels, tests = reader.rows.divide(
            "labels", _read_numbers(reader, "labels", section.labels), lambda: _read_test_numbers(reader, section)
        )
        return labels, tests, None
    training, test = reader.rows.divide(
        "labels", _read_label_cells(reader, "labels", section.labels), lambda: _read_test_label_cells(reader, section)
    )
    coding = _fit_coding(section, training)
    with at("label_party.labels"):
        labels = coding.apply(training)
    if test is None:
        return labels, None, coding
    with at("label_party.labels" if reader.split else "label_party.test_labels"):
        return labels, coding.apply(test), coding


def _fit_coding(section: LabelSection, training: Cells) -> LabelCoding:
    source = section.labels
    with at("label_party.labels"):
        classes = None if source.classes is None else tuple(source.classes)
        coding = LabelCoding.fit(training, str(source.column), source.task or "auto", classes)
    fitting = section.loss == "squared_error"
    if fitting != (coding.task == "regression"):
        right = "squared_error" if coding.task == "regression" else "cross_entropy"
        raise BadLabels.of("label_party.loss", f"is {section.loss!r}, but {coding.says}; write loss = {right!r}")
    return coding


def _read_numbers(reader: TableReader, field: str, source: ColumnSource) -> Tensor:
    with at(f"{reader.path}.{field}"):
        file = reader.folder / source.file
        return torch.as_tensor(read_labels(file, source.key, source.column, source.delimiter or ","))


def _read_test_numbers(reader: TableReader, section: LabelSection) -> Tensor | None:
    return None if section.test_labels is None else _read_numbers(reader, "test_labels", section.test_labels)


def _read_label_cells(reader: TableReader, field: str, source: ColumnSource) -> Cells:
    with at(f"{reader.path}.{field}"):
        if source.key is not None or source.column is None:
            raise BadColumn('task is for the column of a table: say which by column = "..."')
        return read_cells(reader.folder / source.file, [source.column], (), source.delimiter or ",")


def _read_test_label_cells(reader: TableReader, section: LabelSection) -> Cells | None:
    return None if section.test_labels is None else _read_label_cells(reader, "test_labels", section.test_labels)
