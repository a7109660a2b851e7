"""A label column as classes or as numbers: guessed and said, its classes' names kept."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.types
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from thinwire.base.errors import BadLabels, BadState
from thinwire.base.format import quote_names
from thinwire.data.prepare import parsing
from thinwire.data.prepare.settings import Finite, StrictModel
from thinwire.data.readers.cells import Cells

Task = Literal["binary", "multiclass", "regression"]

_MOST_NUMBERS = 20  # different whole numbers that count as classes
_MOST_CLASSES = 1000


class LabelCoding(StrictModel):
    """What the labels of the training rows say. Class k is `classes[k]`; numbers are standardised."""

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
        cells = Cells.of(table)
        words = _words(cells, column)
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
                f"{cells.what}: {column!r} holds {len(found)} classes ({quote_names(found)}), not two; say multiclass"
            )
        return cls(column=column, task=guessed, classes=found)

    def apply(self, table: Any) -> Tensor:
        """int64 classes [N], or float32 in deviations from the mean."""
        cells = Cells.of(table)
        words = _words(cells, self.column)
        if self.task == "regression":
            x = (parsing.parse_numbers(cells, self.column) - self.mean) / self.deviation
            return torch.from_numpy(x.astype(np.float32))
        codes = {word: code for code, word in enumerate(self.classes)}
        for row, word in enumerate(words):
            if word not in codes:
                raise BadLabels(
                    f"{cells.what}: {cells.where(row)}, label {self.column!r} is {word!r}, a class that no training "
                    f"row has; they have {quote_names(self.classes)}"
                )
        return torch.tensor([codes[word] for word in words], dtype=torch.int64)

    def in_units(self, predictions: Tensor) -> Tensor:
        """A regression's predictions in the label's own units."""
        return predictions * self.deviation + self.mean

    def outputs(self, loss: str) -> int:
        """How many numbers the top model gives a row."""
        return len(self.classes) if loss == "cross_entropy" else 1

    @property
    def says(self) -> str:
        if self.task == "regression":
            return f"label {self.column!r}: regression, mean {self.mean:.4g}, deviation {self.deviation:.4g}"
        positive = f"; {self.classes[1]!r} counts as positive" if self.task == "binary" else ""
        return f"label {self.column!r}: {self.task}, {quote_names(self.classes)}{positive}"

    def to_json(self) -> str:
        return self.model_dump_json(indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> LabelCoding:
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise BadState(f"no coding of labels that this version reads: {error.errors()[0]['msg']}") from None


def _words(cells: Cells, column: str) -> list[str]:
    """As text; whole numbers are written alike whatever the file says."""
    words = parsing.parse_words(cells, column)
    if words.null_count:
        row = words.is_null().index(True).as_py()
        raise BadLabels(f"{cells.what}: {cells.where(row)} has no label in {column!r}; drop the row at every party")
    found, wrong = parsing.convert_numbers(cells.column(column))
    if wrong.any() or pa.types.is_boolean(cells.column(column).type):
        return [str(word) for word in words.to_pylist()]
    return [f"{x:g}" if x == int(x) and abs(x) < 1e15 else repr(float(x)) for x in found]


def _is_quantity(cells: Cells, column: str) -> bool:
    """Numbers that are not whole, or too many different ones to be classes."""
    found, wrong = parsing.convert_numbers(cells.column(column))
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
            f"{cells.what}: all {len(words)} labels in {column!r} are {found[0]!r}; training needs two classes"
        )
    if len(set(found)) != len(found):
        raise BadLabels(f"classes names one class twice: {quote_names(found)}")
    if len(found) > _MOST_CLASSES:
        raise BadLabels(f"{cells.what}: {column!r} holds {len(found)} different texts; is it the label column?")
    missing = [word for word in found if word not in words]
    if missing:
        raise BadLabels(f"{cells.what}: no training row is of class {missing[0]!r}, of classes = [...]")
