"""A party's table as one tensor: fitted once on its training rows, applied to any rows from then on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from thinwire.base.errors import BadColumn, BadState, BadTable
from thinwire.data.prepare import parsing
from thinwire.data.prepare.column_fit import fit_column
from thinwire.data.prepare.columns import AnyColumn, CategoryColumn, HashedColumn, LeftOutColumn
from thinwire.data.prepare.settings import Settings, StrictModel
from thinwire.data.readers.cells import Cells
from thinwire.data.readers.tables import select_columns

_WIDEST = 4096  # places of one category


class Preparation(StrictModel):
    """What was learned from a table before training: medians, ranges, words. It stays at the party."""

    format: Literal[1] = 1
    rows: int  # that it was fitted on
    categories: Literal["one_hot", "codes"]
    missing_words: tuple[str, ...]
    columns: tuple[AnyColumn, ...]  # in the table's order

    @classmethod
    def fit(cls, table: Any, settings: Settings | None = None) -> Preparation:
        """Of all columns of a table: the training rows, without id and label."""
        settings = settings or Settings()
        cells = Cells.of(table)
        if not len(cells):
            raise BadTable(f"{cells.what} has no rows to fit on")
        settings.require_columns(cells.what, cells.names)
        cells = _without_words(cells, settings.missing_words)
        columns = tuple(fit_column(cells, name, settings) for name in cells.names)
        found = cls(
            rows=len(cells),
            categories=settings.categories,
            missing_words=tuple(settings.missing_words),
            columns=columns,
        )
        for column in columns:
            if (
                found.categories == "one_hot"
                and isinstance(column, (CategoryColumn, HashedColumn))
                and column.size > _WIDEST
            ):
                raise BadColumn(
                    f"{cells.what}: column {column.name!r} would become {column.size} numbers a row; use a smaller "
                    'vocabulary, fewer buckets, or categories = "codes" with a deep_tower'
                )
        if not found.width:
            why = "; ".join(f"{column.name!r}: {column.says}" for column in columns[:4])
            raise BadColumn(f"{cells.what}: no column is left to learn from ({why})")
        return found

    def apply(self, table: Any) -> Tensor:
        """float32 [N, width]; columns beyond those that were fitted are not looked at."""
        cells = Cells.of(table)
        if not len(cells):
            raise BadTable(f"{cells.what} has no rows")
        select_columns(cells.what, cells.names, list(self.sources))
        cells = _without_words(cells, self.missing_words)
        codes: list[NDArray[Any]] = []
        numbers: list[NDArray[Any]] = []
        for column in self.columns:
            if isinstance(column, LeftOutColumn):
                continue
            if not isinstance(column, (CategoryColumn, HashedColumn)):
                numbers.append(column.apply(cells))
            elif self.categories == "codes":
                codes.append(column.apply(cells)[:, None])
            else:
                numbers.append(np.eye(column.size, dtype=np.float32)[column.apply(cells)])
        parts = [part.astype(np.float32) for part in (*codes, *numbers)]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that rows must have."""
        return tuple(column.name for column in self.columns if not isinstance(column, LeftOutColumn))

    @property
    def outputs(self) -> tuple[str, ...]:
        """What stands in each column of the tensor."""
        coded = [column for column in self.columns if self._is_coded(column)]
        others = [column for column in self.columns if not self._is_coded(column)]
        return (*(column.name for column in coded), *(name for column in others for name in column.outputs))

    @property
    def width(self) -> int:
        return len(self.outputs)

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """How many codes each of the first columns has, where categories are codes."""
        found = (
            column
            for column in self.columns
            if isinstance(column, (CategoryColumn, HashedColumn)) and self._is_coded(column)
        )
        return tuple(column.size for column in found)

    @property
    def row_dependent_columns(self) -> tuple[str, ...]:
        """Columns whose preparation follows from single rows, so that no guarantee covers them."""
        return tuple(column.name for column in self.columns if not column.public)

    def describe(self) -> list[dict[str, Any]]:
        """A line a column, for people."""
        return [
            {"column": column.name, "type": column.kind, "outputs": len(column.outputs), "says": column.says}
            if not self._is_coded(column)
            else {"column": column.name, "type": column.kind, "outputs": 1, "says": f"codes: {column.says}"}
            for column in self.columns
        ]

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Preparation:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise BadState(f"no preparation that this version reads: {place}: {first['msg']}") from None

    def _is_coded(self, column: Any) -> bool:
        return self.categories == "codes" and isinstance(column, (CategoryColumn, HashedColumn))


def _without_words(cells: Cells, words: Mapping[str, Any] | tuple[str, ...] | list[str]) -> Cells:
    """These words count as nothing."""
    if not words:
        return cells
    table = cells.table
    for place, name in enumerate(cells.names):
        column = table.column(place)
        if parsing.is_text(column.type):
            text = parsing.trim(column)
            nothing = pc.is_in(text, value_set=pa.array(list(words), pa.string()))
            table = table.set_column(place, name, pc.if_else(nothing, pa.scalar(None, pa.string()), text))
    return Cells(table, cells.file, cells.numbers)
