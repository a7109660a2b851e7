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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import require_file
from thinwire.lab.datasets.dataset_files import DataSource, TextStyle, column_names, find_or_fetch, table_blocks
from thinwire.lab.datasets.fields import Field, label_reader, split_fields
from thinwire.lab.datasets.sampling import RowSample, code_words, draw_rows, standardize
from thinwire.lab.datasets.vertical import ColumnsByName, Request, Split, VerticalData

_TEST_SHARE = 0.2


@dataclass(frozen=True)
class TabularSet:
    """A CSV or Parquet file, its columns, and what its label column says."""

    name: str
    source: DataSource
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
        train, test = draw_rows(blocks, label_reader(file, label, self.classes), request.subset, _TEST_SHARE)
        fields = [self._field(file, name, train, test) for name in self.fields]
        about = (
            f"{self.source.title} ({file.name}), numbers standardised and words coded by the training rows{self.note}"
            ", test rows by a hash of the row number (a fifth)"
        )
        return split_fields(self.name, fields, (train.labels, test.labels), split, about)

    def _opened(self, file: Path) -> tuple[str, Iterable[Any]]:
        if self.other is not None and file.suffix in self.other[0]:
            return self.label[0], self.other[1](file)
        there = column_names(file, self.style)
        label = next((name for name in self.label if name in there), self.label[0])
        numbers = [name for name in self.fields if name not in self.words]
        return label, table_blocks(file, numbers, (*self.words, label), self.style)

    def _field(self, file: Path, name: str, train: RowSample, test: RowSample) -> Field:
        if name in self.words:
            codes, test_codes, categories = code_words(train.table[name], test.table[name])
            return Field(name, codes, test_codes, categories)
        values, test_values = (_numbers(file, part, name) for part in (train, test))
        if name in self.indicators:
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
    # Arrays, not lists: a large file has millions of values.
    labels, rows, columns, values = array("d"), array("q"), array("q"), array("f")
    for number, line in enumerate(data.split(b"\n"), 1):
        words = line.partition(b"#")[0].split()
        if not words:
            continue
        try:
            indices, own = _row(words, features)
            labels.append(float(words[0]))
        except ValueError as error:
            raise BadInput(f"{file}: line {number}: {error or 'not a row of numbers'}") from None
        rows.extend([len(labels) - 1] * len(indices))
        columns.extend(indices)
        values.extend(own)
    if not labels:
        raise BadInput(f"{file} has no rows")
    x = np.zeros((len(labels), features), dtype=np.float32)
    x[np.frombuffer(rows, np.int64), np.frombuffer(columns, np.int64)] = np.frombuffer(values, np.float32)
    return x, np.frombuffer(labels, np.float64)


def _row(words: list[bytes], features: int) -> tuple[list[int], list[float]]:
    indices, values = [], []
    last = 0
    for word in words[1:]:
        index, colon, value = word.partition(b":")
        place = int(index) if colon else 0
        if not last < place <= features:
            raise ValueError(
                f"{word.decode(errors='replace')!r}: expected index:value, indices rising up to {features}"
            )
        indices.append(place - 1)
        values.append(float(value))
        last = place
    return indices, values


CLIENT = ("age", "job", "marital", "education", "default", "housing", "loan")
CAMPAIGN = (
    *("contact", "month", "day_of_week", "campaign", "pdays", "previous", "poutcome"),
    *("emp.var.rate", "cons.price.idx", "cons.conf.idx", "euribor3m", "nr.employed"),
)

BANK_MARKETING = TabularSet(
    name="bank_marketing",
    source=DataSource(
        "Bank marketing",
        "https://archive.ics.uci.edu/dataset/222/bank+marketing",
        ("bank_marketing/bank-additional-full.csv",),
        "the publisher offers it inside an archive on its page",
    ),
    places=(
        "bank_marketing/bank-additional-full.csv",
        "bank-additional/bank-additional-full.csv",
        "bank_marketing/bank_marketing.parquet",
        "tabular/bank_additional_full.parquet",
    ),
    fields=(*CLIENT, *CAMPAIGN),
    words=(
        *("job", "marital", "education", "default", "housing", "loan"),
        *("contact", "month", "day_of_week", "poutcome"),
    ),
    indicators=(),
    label=("y",),
    classes=("no", "yes"),
    default_split=ColumnsByName((("client", CLIENT), ("campaign", CAMPAIGN))),
    style=TextStyle(delimiter=";"),
    note=", duration left out since it is known only after the call",
)


TERRAIN = (
    *("Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology"),
    *("Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm"),
    "Horizontal_Distance_To_Fire_Points",
)
LAND = (*(f"Wilderness_Area{k}" for k in range(1, 5)), *(f"Soil_Type{k}" for k in range(1, 41)))
_LABEL = "Cover_Type"


def _libsvm(file: Path) -> Iterator[Any]:
    x, labels = read_libsvm(file, len(TERRAIN) + len(LAND))
    columns = {name: x[:, k].astype(np.float64) for k, name in enumerate((*TERRAIN, *LAND))}
    yield pa.table({**columns, _LABEL: labels.astype(np.int64)})


COVTYPE = TabularSet(
    name="covtype",
    source=DataSource(
        "Forest cover type",
        "https://archive.ics.uci.edu/dataset/31/covertype",
        ("covtype/covtype.data.gz",),
        "the publisher offers it inside an archive on its page",
    ),
    places=(
        "covtype/covtype.data.gz",
        "covtype/covtype.data",
        "covtype/covtype.bz2",
        "covtype/covtype",
        "covtype/covtype.libsvm",
        "covtype/covtype.parquet",
        "tabular/covtype.parquet",
    ),
    fields=(*TERRAIN, *LAND),
    words=(),
    indicators=LAND,
    label=(_LABEL,),
    classes=tuple("1234567"),
    default_split=ColumnsByName((("terrain", TERRAIN), ("land", LAND))),
    style=TextStyle(header=(*TERRAIN, *LAND, _LABEL)),
    other=(("", ".bz2", ".libsvm"), _libsvm),
    note=", soil and wilderness columns as 0 or 1",
)


PERSON = (
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),
)
BILLS = (*(f"BILL_AMT{k}" for k in range(1, 7)), *(f"PAY_AMT{k}" for k in range(1, 7)))

CREDIT_CARD = TabularSet(
    name="credit_card",
    source=DataSource(
        "Default of credit card clients",
        "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients",
        ("credit_card/UCI_Credit_Card.csv",),
        "the publisher offers a spreadsheet, which has to be saved as CSV with the line of column names first",
    ),
    places=(
        "credit_card/UCI_Credit_Card.csv",
        "credit_card/credit_card.csv",
        "credit_card/credit_card.parquet",
        "tabular/uci_credit_card.parquet",
    ),
    fields=(*PERSON, *BILLS),
    words=(),
    indicators=(),
    label=("default.payment.next.month", "default payment next month"),
    classes=("0", "1"),
    default_split=ColumnsByName((("person", PERSON), ("bills", BILLS))),
)
