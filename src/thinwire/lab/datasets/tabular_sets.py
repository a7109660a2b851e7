"""Tables that fit in memory: numbers are standardised, words coded, both as the training rows say.

Bank marketing (Moro et al., 2014), the additional full version: did a client subscribe to a deposit?
Forest cover type (Blackard and Dean, 1999): seven kinds of forest from maps, 581,012 places.
Default of credit card clients in Taiwan (Yeh and Lien, 2009): 23 numbers about 30,000 clients.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import require_file
from thinwire.lab.datasets.dataset_files import (
    CHECKED,
    DataSource,
    TextStyle,
    column_names,
    find_or_fetch,
    read_catalogue,
    table_blocks,
)
from thinwire.lab.datasets.sampling import RowSample, code_words, draw_rows, standardize
from thinwire.lab.datasets.vertical import (
    ColumnsByName,
    Field,
    Request,
    Split,
    VerticalData,
    label_reader,
    split_fields,
)

_TEST_SHARE = 0.2


@dataclass(frozen=True)
class TabularSet:
    """A CSV or Parquet file, its columns, and what its label column says."""

    __pydantic_config__ = CHECKED

    name: str
    source: DataSource
    parties: dict[str, tuple[str, ...]]  # by default, and their fields, in the file's order
    label: tuple[str, ...]  # the label column, under every name it goes by
    classes: tuple[str, ...]  # what the label column says, class 0 first
    words: tuple[str, ...] = ()  # the fields that hold words; the others hold numbers
    indicators: tuple[str, ...] = ()  # patterns of the fields that hold 0 or 1, and stay as they are
    delimiter: str = ","
    header: bool = True  # the first line of a text file names the columns
    libsvm: tuple[str, ...] = ()  # suffixes of files in that format
    note: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.parties.values()))

    @property
    def default_split(self) -> ColumnsByName:
        return ColumnsByName(self.parties)

    def load(self, split: Split, request: Request) -> VerticalData:
        file = find_or_fetch(self.source, request.folder)
        label, blocks = self._opened(file)
        train, test = draw_rows(blocks, label_reader(file, label, self.classes), request.subset, _TEST_SHARE)
        fields = [self._field(file, name, train, test) for name in self.fields]
        about = (
            f"{self.source.title} ({file.name}), numbers standardised and words coded by the training rows{self.note}"
            ", test rows by a hash of the row number (a fifth)"
        )
        return split_fields(self.name, fields, (train.labels, test.labels), split, about)

    def _opened(self, file: Path) -> tuple[str, Iterable[Any]]:
        if file.suffix in self.libsvm:
            x, labels = read_libsvm(file, len(self.fields))
            columns = {name: x[:, k].astype(np.float64) for k, name in enumerate(self.fields)}
            return self.label[0], [pa.table({**columns, self.label[0]: labels.astype(np.int64)})]
        style = TextStyle(self.delimiter, None if self.header else (*self.fields, self.label[0]))
        there = column_names(file, style)
        label = next((name for name in self.label if name in there), self.label[0])
        numbers = [name for name in self.fields if name not in self.words]
        return label, table_blocks(file, numbers, (*self.words, label), style)

    def _field(self, file: Path, name: str, train: RowSample, test: RowSample) -> Field:
        if name in self.words:
            codes, test_codes, categories = code_words(train.table[name], test.table[name])
            return Field(name, codes, test_codes, categories)
        values, test_values = (_numbers(file, part, name) for part in (train, test))
        if any(fnmatchcase(name, pattern) for pattern in self.indicators):
            return Field(name, values.astype(np.float32), test_values.astype(np.float32))
        return Field(name, *standardize(values[:, None], test_values[:, None]))


def _numbers(file: Path, part: RowSample, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = part.table[name].to_numpy()
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(part.numbers[np.argmax(wrong)])
        raise BadInput(f"{file}: row {row + 1}, column {name!r} is empty or not a finite number")
    return values


_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


def read_libsvm(file: Path, features: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Features [N, features] and labels [N]; plain, .gz or .bz2."""
    require_file(file)
    try:
        with _OPENERS.get(file.suffix, open)(file, "rb") as opened:
            data: bytes = opened.read()
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{file}: damaged or cut off: {error}") from None
    labels, values = array("d"), array("f")  # not lists: a large file has millions of values
    for number, line in enumerate(data.split(b"\n"), 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        try:
            values.extend(_row(words[1:], features))
            labels.append(float(words[0]))
        except ValueError as error:
            raise BadInput(f"{file}: line {number}: {error or 'not a row of numbers'}") from None
    if not labels:
        raise BadInput(f"{file} has no rows")
    return np.frombuffer(values, np.float32).reshape(-1, features), np.frombuffer(labels, np.float64)


def _row(words: list[bytes], features: int) -> list[float]:
    """The values of one line, 0 where it names none."""
    values = [0.0] * features
    last = 0
    for word in words:
        index, colon, value = word.partition(b":")
        place = int(index) if colon else 0
        if not last < place <= features:
            raise ValueError(
                f"{word.decode(errors='replace')!r}: expected index:value, indices rising up to {features}"
            )
        values[place - 1] = float(value)
        last = place
    return values


CREDIT_CARD, BANK_MARKETING, COVTYPE = (
    read_catalogue(TabularSet, name) for name in ("credit_card", "bank_marketing", "covtype")
)
