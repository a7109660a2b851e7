"""A party's table, and its labels, as tensors: fitted once on the training rows, applied to any rows from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, ClassVar, Literal, Self, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from thinwire.base.errors import BadColumn, BadLabels, BadState, BadTable
from thinwire.base.format import quote_names
from thinwire.base.types import Progress, follow
from thinwire.data.prepare import parsing
from thinwire.data.prepare.columns import (
    AnyColumn,
    CodedColumn,
    LeftOutColumn,
    NumberColumn,
    fit_column,
    fit_large_column,
)
from thinwire.data.prepare.settings import Finite, Settings, StrictModel
from thinwire.data.prepare.statistics import EXACT_ROWS, Range, Standard
from thinwire.data.readers.large_table import LargeCells
from thinwire.data.readers.tables import Cells, select_columns
from thinwire.data.readers.text_format import PLAIN, Decimal, TextFormat, Thousands

_WIDEST = 4096  # places of one category


class _Fitted(StrictModel):
    """What was fitted on training rows, kept as JSON beside the model."""

    what: ClassVar[str]  # for messages

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise BadState(f"no {cls.what} that this version reads: {place}: {first['msg']}") from None


class Preparation(_Fitted):
    """What was learned from a table before training: medians, ranges, words. It stays at the party."""

    what: ClassVar[str] = "preparation"
    format: Literal[1] = 1
    rows: int  # that it was fitted on
    categories: Literal["one_hot", "codes"]
    missing_words: tuple[str, ...]
    columns: tuple[AnyColumn, ...]  # in the table's order
    decimal: Decimal = "."  # of the training rows' file; text of rows that come in no file is read alike
    thousands: Thousands | None = None

    @classmethod
    def fit(cls, table: Any, settings: Settings | None = None, on_progress: Progress | None = None) -> Preparation:
        """Of all columns of a table: the training rows, without id and label; `on_progress` counts the columns."""
        settings = settings or Settings()
        cells = table if isinstance(table, LargeCells) else Cells.of(table)
        if not len(cells):
            raise BadTable(f"{cells.what} has no rows to fit")
        settings.require_columns(cells.what, cells.names)
        if isinstance(cells, LargeCells):
            names = follow(cells.names, on_progress, "columns")
            columns = tuple(_fit_large(cells.select([name]), settings) for name in names)
        else:
            cells = _without_words(cells, settings.missing_words)
            names = follow(cells.names, on_progress, "columns")
            columns = tuple(fit_column(cells, name, settings) for name in names)
        found = cls(
            rows=len(cells),
            categories=settings.categories,
            missing_words=tuple(settings.missing_words),
            columns=columns,
            decimal=(cells.form or PLAIN).decimal,  # type: ignore[arg-type]
            thousands=(cells.form or PLAIN).thousands,  # type: ignore[arg-type]
        )
        for column in columns:
            if found.categories == "one_hot" and isinstance(column, CodedColumn) and column.size > _WIDEST:
                raise BadColumn(
                    f"{cells.what}: column {column.name!r} would become {column.size} features; use a smaller "
                    'vocabulary, fewer buckets, or categories = "codes" with a deep_tower'
                )
        if not found.width:
            why = "; ".join(f"{column.name!r}: {column.says}" for column in columns[:4])
            raise BadColumn(f"{cells.what}: no column is left to learn from ({why})")
        return found

    def apply(self, table: Any) -> Tensor:
        """float32 [N, width]; columns beyond those that were fitted are not looked at."""
        if isinstance(table, LargeCells):
            return table.select(self.sources).convert(self.apply)
        cells = Cells.of(table)
        if not len(cells):
            raise BadTable(f"{cells.what} has no rows")
        select_columns(cells.what, cells.names, list(self.sources))
        if cells.form is None:
            cells = replace(cells, form=TextFormat(decimal=self.decimal, thousands=self.thousands))
        cells = _without_words(cells, self.missing_words)
        codes: list[NDArray[Any]] = []
        numbers: list[NDArray[Any]] = []
        for column in self.columns:
            if isinstance(column, LeftOutColumn):
                continue
            if not isinstance(column, CodedColumn):
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
        coded = [column.name for column in self.columns if self._is_coded(column)]
        others = [column.outputs for column in self.columns if not self._is_coded(column)]
        return (*coded, *chain.from_iterable(others))

    @property
    def slopes(self) -> list[tuple[str, float | None]]:
        """Of every output, by name, along its column's own unit; None where it is no straight line."""
        scales = {column.name: column.scale for column in self.columns if isinstance(column, NumberColumn)}
        found = {name: 1 / scale.deviation for name, scale in scales.items() if isinstance(scale, Standard)}
        found |= {name: 2 / (one.high - one.low) for name, one in scales.items() if isinstance(one, Range)}
        return [(name, found.get(name)) for name in self.outputs]

    @property
    def feature_places(self) -> dict[str, list[int]]:
        """Which columns of the tensor each of the table's became."""
        coded = [column for column in self.columns if self._is_coded(column)]
        widths = {column.name: 1 for column in coded}
        widths |= {column.name: len(column.outputs) for column in self.columns if not self._is_coded(column)}
        ends = accumulate(widths.values())
        return {
            name: list(range(end - widths[name], end)) for name, end in zip(widths, ends, strict=True) if widths[name]
        }

    @property
    def width(self) -> int:
        return len(self.outputs)

    @property
    def vocabularies(self) -> tuple[int, ...]:
        """How many codes each of the first columns has, where categories are codes."""
        return tuple(column.size for column in self.columns if self._is_coded(column))

    @property
    def code_names(self) -> tuple[tuple[str, ...], ...]:
        """What the codes of each of the first columns stand for, where categories are codes."""
        return tuple(column.codes for column in self.columns if self._is_coded(column))

    @property
    def keeps_gaps(self) -> bool:
        """Can a prepared row hold NaN?"""
        return any(getattr(column, "keep", False) for column in self.columns)

    @property
    def row_dependent_columns(self) -> tuple[str, ...]:
        """Columns whose preparation follows from single rows, so that no guarantee covers them."""
        return tuple(column.name for column in self.columns if not column.public)

    def find_difference(self, other: Preparation) -> str | None:
        """In words, what makes a model of columns prepared so unfit for the other's; None where they are alike."""
        mine, theirs = ({one.name: one for one in each.columns} for each in (self, other))
        if self.categories != other.categories or list(mine) != list(theirs):
            return f"columns {quote_names(list(theirs))} there and {quote_names(list(mine))} here"
        for name, column in mine.items():
            if _list_facts(column) != _list_facts(theirs[name]):
                return f"column {name!r} was prepared as {theirs[name].says} there, and is {column.says} here"
        return None

    def describe(self) -> list[dict[str, Any]]:
        """A line a column, for people."""
        return [
            {"column": column.name, "type": column.kind, "outputs": len(column.outputs), "says": column.says}
            if not self._is_coded(column)
            else {"column": column.name, "type": column.kind, "outputs": 1, "says": f"codes: {column.says}"}
            for column in self.columns
        ]

    def _is_coded(self, column: AnyColumn) -> TypeGuard[CodedColumn]:
        return self.categories == "codes" and isinstance(column, CodedColumn)


def _fit_large(column: LargeCells, settings: Settings) -> AnyColumn:
    """Of one column, which is held in memory up to a fixed number of rows, and is else read several times."""
    (name,), words = column.names, settings.missing_words
    if len(column) <= EXACT_ROWS:
        return fit_column(_without_words(column.read(), words), name, settings)
    return fit_large_column(
        lambda: (_without_words(block, words) for _, block in column.blocks()), len(column), name, settings
    )


def _list_facts(column: AnyColumn) -> dict[str, Any]:
    """What a prepared value depends on, gaps that are kept aside."""
    if isinstance(column, LeftOutColumn):
        return {"kind": column.kind}
    unused = {"public", "fill"} if getattr(column, "keep", False) else {"public"}
    return column.model_dump(exclude=unused)


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
    return replace(cells, table=table)


# A label column as classes or as numbers: guessed and said, its classes' names kept -------------------------------


Task = Literal["binary", "multiclass", "regression"]

_MOST_NUMBERS = 20  # different whole numbers that count as classes
_MOST_CLASSES = 1000


class LabelCoding(_Fitted):
    """What the labels of the training rows say. Class k is `classes[k]`; numbers are standardised."""

    what: ClassVar[str] = "coding of labels"
    format: Literal[1] = 1
    column: str
    task: Task
    classes: tuple[str, ...] = ()
    mean: Finite = 0.0
    deviation: Finite = 1.0

    @classmethod
    def fit(
        cls, table: Any, column: str, task: Task | Literal["auto"] = "auto", classes: tuple[str, ...] | None = None
    ) -> LabelCoding:
        """Of the training rows. `classes` gives their order; without it they are sorted, numbers by their size."""
        if isinstance(table, LargeCells):
            few = None if task == "regression" else table.read_different(_MOST_CLASSES)
            return cls.fit(table.read() if few is None or len(few) < 2 else few, column, task, classes)
        cells = Cells.of(table)
        words = _spell(_list_words(cells, column), cells.form or PLAIN)
        if task == "regression" or (task == "auto" and classes is None and _is_quantity(cells, column)):
            x = parsing.parse_numbers(cells, column)
            if x.min() == x.max():
                raise BadLabels(
                    f"{cells.what}: all {len(x)} labels in {column!r} are {x[0]:g}; there is nothing to learn"
                )
            return cls(column=column, task="regression", mean=float(x.mean()), deviation=float(x.std()))
        found = tuple(sorted(set(words), key=_place)) if classes is None else classes
        _require_classes(cells, column, found, words)
        guessed: Task = "binary" if len(found) == 2 else "multiclass"
        if task == "binary" and guessed != "binary":
            raise BadLabels(
                f"{cells.what}: {column!r} holds {len(found)} classes ({quote_names(found)}), not two; use "
                "task = 'multiclass'"
            )
        return cls(column=column, task=guessed, classes=found)

    def apply(self, table: Any) -> Tensor:
        """int64 classes [N], or float32 in deviations from the mean."""
        if isinstance(table, LargeCells):
            return table.collect(self.apply)
        cells = Cells.of(table)
        texts = _words(cells, self.column)
        if self.task == "regression":
            x = (parsing.parse_numbers(cells, self.column) - self.mean) / self.deviation
            return torch.from_numpy(x.astype(np.float32))
        names = _spell(self.classes, PLAIN)
        different = texts.unique()
        words = different.to_pylist()
        if all(map(PLAIN.spell_number, names)):
            words = [_spell_number(word, cells.form or PLAIN) for word in words]
        codes = {name: code for code, name in enumerate(names)}
        places = pc.index_in(texts, different).to_numpy()
        found = np.array([codes.get(word, -1) for word in words])[places]
        if (found < 0).any():
            row = int((found < 0).argmax())
            raise BadLabels(
                f"{cells.what}: {cells.where(row)}, label {self.column!r} is {words[places[row]]!r}, a class that no "
                f"training row has; the classes are {quote_names(self.classes)}"
            )
        return torch.from_numpy(found)

    def in_units(self, predictions: Tensor) -> Tensor:
        """A regression's predictions in the label's own units."""
        return predictions * self.deviation + self.mean

    def outputs(self, loss: str) -> int:
        """How many numbers the top model gives a row."""
        return len(self.classes) if loss == "cross_entropy" else 1

    @property
    def says(self) -> str:
        if self.task == "regression":
            return f"label {self.column!r}: regression, mean {self.mean:.4g}, standard deviation {self.deviation:.4g}"
        positive = f"; {self.classes[1]!r} is the positive class" if self.task == "binary" else ""
        return f"label {self.column!r}: {self.task}, {quote_names(self.classes)}{positive}"


def _list_words(cells: Cells, column: str) -> list[str]:
    """The different labels, in the order of the rows."""
    found: list[str] = _words(cells, column).unique().to_pylist()
    return found


def _words(cells: Cells, column: str) -> Any:
    """An Arrow column of text, as far as it is text or finite numbers."""
    words, values = parsing.parse_words(cells, column), cells.column(column)
    if words.null_count:
        row = words.is_null().index(True).as_py()
        raise BadLabels(f"{cells.what}: {cells.where(row)} has no label in {column!r}; drop the row at every party")
    found, wrong = parsing.convert_numbers(values, cells.form or PLAIN)
    infinite = ~wrong & ~np.isfinite(found)
    if infinite.any():
        row = int(infinite.argmax())
        raise BadLabels(
            f"{cells.what}: {cells.where(row)}, label {column!r} is {words[row].as_py()[:60]!r}, not a finite "
            "number; correct it, or drop the row at every party"
        )
    if not pa.types.is_floating(values.type):
        return words
    different, places = np.unique(found, return_inverse=True)
    return pa.array([repr(float(x)) for x in different], pa.string()).take(pa.array(places))


def _spell(words: Sequence[str], form: TextFormat) -> list[str]:
    """Where all are numbers, a number is written alike whatever the file says: 7, 7.0 and 007 are one class."""
    return [_spell_number(word, form) for word in words] if all(map(form.spell_number, words)) else list(words)


def _spell_number(word: str, form: TextFormat) -> str:
    number = form.spell_number(word)
    if number is None:
        return word
    x = float(number)
    # By its digits where it is written so: a float holds no more than 15 of them.
    return str(int(number) if number.lstrip("+-").isdigit() else int(x) if x.is_integer() else x)


def _is_quantity(cells: Cells, column: str) -> bool:
    """Numbers that are not whole, or too many different ones to be classes."""
    found, wrong = parsing.convert_numbers(cells.column(column), cells.form or PLAIN)
    if wrong.any():
        return False
    different: NDArray[np.float64] = np.unique(found)
    return len(different) > _MOST_NUMBERS or bool((different != np.floor(different)).any())


def _place(word: str) -> tuple[float, str]:
    """False before true, no before yes, numbers by their size."""
    known = {"false": 0.0, "no": 0.0, "true": 1.0, "yes": 1.0}.get(word.lower())
    try:
        return (known if known is not None else float(word), word)
    except ValueError:
        return (0.0, word)


def _require_classes(cells: Cells, column: str, found: tuple[str, ...], words: list[str]) -> None:
    if len(found) == 1:
        raise BadLabels(
            f"{cells.what}: all {len(cells)} labels in {column!r} are {found[0]!r}; training needs at "
            "least two classes"
        )
    if len(set(found)) != len(found):
        raise BadLabels(f"classes names one class twice: {quote_names(found)}")
    if len(found) > _MOST_CLASSES:
        raise BadLabels(f"{cells.what}: {column!r} holds {len(found)} distinct texts; is it the label column?")
    missing = [word for word in found if word not in words]
    if missing:
        raise BadLabels(f"{cells.what}: no training row has class {missing[0]!r}, which classes = [...] lists")
