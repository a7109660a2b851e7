"""Tables that fit in memory: numbers are standardised, words coded, both as the training rows say."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.data.blocks import TextStyle, column_names, table_blocks
from thinwire.data.finding import Source, find_or_fetch
from thinwire.data.sampling import Drawn, drawn
from thinwire.data.sets.fields import Field, Labels, divided_fields
from thinwire.data.sets.labels import class_labels
from thinwire.data.sets.request import Request
from thinwire.data.splits import Split
from thinwire.data.standardising import standardised, vocabulary_codes
from thinwire.data.vertical import VerticalData
from thinwire.errors import BadInput

__all__ = ["TabularSet"]

_TEST_SHARE = 0.2


@dataclass(frozen=True)
class TabularSet:
    """A CSV or Parquet file, its columns, and what its label column says."""

    name: str
    source: Source
    places: tuple[str, ...]  # where to look, the first one is where to put it
    fields: tuple[str, ...]  # in the file's order
    words: tuple[str, ...]  # the fields that hold words; the others hold numbers
    indicators: tuple[str, ...]  # the fields that hold 0 or 1, and stay as they are
    label: tuple[str, ...]  # the label column, under every name it goes by
    classes: tuple[str, ...]  # what the label column says, class 0 first
    default_split: Split
    style: TextStyle = TextStyle()
    other: tuple[tuple[str, ...], Callable[[Path], Iterable[Any]]] | None = (
        None  # suffixes of another kind, its reader
    )
    note: str = ""

    def load(self, split: Split, request: Request) -> VerticalData:
        file = find_or_fetch(self.source, request.folder, self.places, None)
        label, blocks = self._opened(file)
        train, test = drawn(blocks, class_labels(file, label, self.classes), request.subset, _TEST_SHARE)
        fields = [self._field(file, name, train, test) for name in self.fields]
        about = (
            f"{self.source.title} ({file.name}), numbers standardised and words coded by the training rows{self.note}"
            ", test rows by a hash of the row number (a fifth)"
        )
        return divided_fields(self.name, fields, Labels(train.labels, test.labels), split, about)

    def _opened(self, file: Path) -> tuple[str, Iterable[Any]]:
        if self.other is not None and file.suffix in self.other[0]:
            return self.label[0], self.other[1](file)
        there = column_names(file, self.style)
        label = next((name for name in self.label if name in there), self.label[0])
        numbers = [name for name in self.fields if name not in self.words]
        return label, table_blocks(file, numbers, (*self.words, label), self.style)

    def _field(self, file: Path, name: str, train: Drawn, test: Drawn) -> Field:
        if name in self.words:
            codes, test_codes, categories = vocabulary_codes(train.table[name], test.table[name])
            return Field(name, codes, test_codes, categories)
        values, test_values = (_numbers(file, part, name) for part in (train, test))
        if name in self.indicators:
            return Field(name, values.astype(np.float32), test_values.astype(np.float32))
        return Field(name, *standardised(values[:, None], test_values[:, None]))


def _numbers(file: Path, part: Drawn, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = part.table[name].to_numpy()
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(part.numbers[np.argmax(wrong)])
        raise BadInput(f"{file}: row {row + 1}, column {name!r} is empty or not a finite number")
    return values
