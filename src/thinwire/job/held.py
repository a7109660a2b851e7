"""A party's features: read, its rows chosen, and prepared where the section asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from thinwire.data import Values, read_features
from thinwire.data.cells import Cells, column_names, read_cells
from thinwire.data.naming import listed, wanted
from thinwire.errors import BadColumn, BadFile, BadInput
from thinwire.job.aligned import RowsOf
from thinwire.job.fates import SplitRows, split_rows
from thinwire.job.messages import at
from thinwire.job.schema import PartyEntry, Source, SplitSection
from thinwire.prepare import Preparation, Settings

__all__ = ["Held", "Reader"]


@dataclass(frozen=True, eq=False)
class Held:
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
class Reader:
    """Reads what one party's section names."""

    path: str  # of the section, for messages
    section: PartyEntry
    folder: Path
    split: SplitSection | None

    @cached_property
    def split_rows(self) -> SplitRows | None:
        return None if self.split is None else split_rows(self.path, self.section, self.folder, self.split)

    def features(self, source: Source, taken: Sequence[str] = ()) -> Held:
        """`taken` are columns of the same file that are no features: the label."""
        if self.section.prepare is None:
            training = self._numbers("features", source)
            _require_none_of(self.path, taken, training.columns)
            return Held(*self.divided("features", training.array, lambda: self._test_numbers(training)))
        training_cells = self._cells("features", source, taken)
        training_rows, test_rows = self.divided(
            "features", training_cells, lambda: self._test_cells(training_cells, taken)
        )
        return self._prepared(self.section.prepare, training_rows, test_rows)

    def divided(self, what: str, table: Any, test_table: Any) -> tuple[Any, Any]:
        """Training and test rows: of one table by the split, else of two tables, each aligned where it says so."""
        split = self.split_rows
        if split is not None:
            if len(table) != split.of:
                raise BadInput(f"{self.path}.{what} has {len(table)} rows, but there are {split.of} ids")
            return table[split.training], None if split.test is None else table[split.test]
        rows, test_rows = RowsOf.training(self.path, self.section), RowsOf.test(self.path, self.section)
        found, tests = rows.taken(table, rows.read(self.folder), what), test_table()
        if tests is None:
            return found, None
        return found, test_rows.taken(tests, test_rows.read(self.folder), f"test_{what}")

    def _prepared(self, settings: Settings, training: Cells, test: Cells | None) -> Held:
        with at(f"{self.path}.prepare"):
            preparation = Preparation.fit(training, settings)
        with at(f"{self.path}.features"):
            features = preparation.apply(training)
        if test is None:
            return Held(features, None, preparation)
        with at(f"{self.path}.{'features' if self.split else 'test_features'}"):
            return Held(features, preparation.apply(test), preparation)

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
            asked = wanted(file, there, source.columns, source.all_but or ())
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
            raise BadColumn(f"{path}.features holds the label {name!r}; write all_but = [{name!r}]")


def _require_same_columns(path: str, training: tuple[str, ...] | None, test: tuple[str, ...] | None) -> None:
    if training == test or training is None or test is None:
        return
    missing = [name for name in training if name not in test]
    extra = [name for name in test if name not in training]
    what = "has them in another order"
    if missing or extra:
        what = f"lacks {listed(missing)}" if missing else f"has {listed(extra)} too"
    raise BadColumn(f"{path}.test_features {what}; name the same columns as in features")
