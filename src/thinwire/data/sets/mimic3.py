"""MIMIC-III (Johnson et al., 2016), in-hospital mortality as prepared by Harutyunyan et al. (2019).

17 measurements over 48 hours, made into 76 columns: 12 numbers, 47 indicators of the five that are words, and
17 masks. C-VFL gives four parties 19 columns each.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.data.files import require_file
from thinwire.data.finding import Source, find, missing
from thinwire.data.sampling import chosen
from thinwire.data.sets.fields import Field, Labels, divided_fields
from thinwire.data.sets.mimic3_channels import CHANNELS, COLUMNS, NORMAL, WORDS, first_columns
from thinwire.data.sets.request import Request
from thinwire.data.sets.series import HOURS
from thinwire.data.splits import ColumnsByCount, Split
from thinwire.data.standardising import standardised
from thinwire.data.vertical import VerticalData
from thinwire.errors import BadInput

__all__ = ["Mimic3"]

_FIRST = first_columns()
_SLACK_HOURS = 1e-6  # a value on the hour belongs to the hour before, as in the benchmark


@dataclass(frozen=True)
class Mimic3:
    """in-hospital-mortality/{train,test} with listfile.csv and one CSV file a stay."""

    name: str = "mimic3"
    default_split: Split = ColumnsByCount((19, 19, 19, 19))
    source: Source = Source(
        "MIMIC-III in-hospital mortality",
        "https://physionet.org/content/mimiciii/1.4/",
        tuple(
            f"in-hospital-mortality/{part}/{name}"
            for part in ("train", "test")
            for name in ("listfile.csv", "<stay>.csv")
        ),
        "it needs a signed data use agreement; prepare it with github.com/YerevaNN/mimic3-benchmarks",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        subset = request.subset
        places = ["in-hospital-mortality", "mimic3/in-hospital-mortality"]
        folder = find(request.folder, places)
        if folder is None:
            raise missing(self.source, request.folder, [f"{place}/train/listfile.csv" for place in places])
        x, y = _part(folder / "train", subset.rows, subset.seed, "rows")
        xt, yt = _part(folder / "test", subset.test_rows, subset.seed, "test_rows")
        fields = []
        for k, name in enumerate(COLUMNS):
            column, test_column = x[:, :, k : k + 1], xt[:, :, k : k + 1]
            if name in CHANNELS:
                column, test_column = standardised(column, test_column)
            fields.append(Field(name, column, test_column))
        about = (
            "MIMIC-III in-hospital mortality, the benchmark's training and test stays, 48 hours, the last value "
            "of an hour, gaps filled from the hour before or with the benchmark's normal value, numbers standardised "
            "by the training rows"
        )
        return divided_fields(self.name, fields, Labels(y, yt), split, about)


def _part(folder: Path, rows: int | None, seed: int, name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    listed = list(_listed(folder / "listfile.csv"))
    died = np.array([label for _, label in listed], dtype=np.int64)
    taken = chosen(died, rows, seed, name)
    return np.stack([_stay(folder / listed[row][0]) for row in taken]), died[taken]


def _listed(file: Path) -> Iterator[tuple[str, int]]:
    for number, row in _lines(file):
        if number == 1:
            if row[:2] != ["stay", "y_true"]:
                raise BadInput(f"{file}: starts with {row}, expected stay,y_true")
            continue
        if len(row) < 2 or row[1] not in ("0", "1") or Path(row[0]).name != row[0]:
            raise BadInput(f"{file}: line {number}: {row} is not the name of a stay's file and 0 or 1")
        yield row[0], int(row[1])


def _stay(file: Path) -> NDArray[np.float32]:
    """[48, 76] of one stay."""
    latest: dict[str, NDArray[np.float32]] = {name: _coded(file, 0, name, NORMAL[name]) for name in CHANNELS}
    measured: list[dict[str, NDArray[np.float32]]] = [{} for _ in range(HOURS)]
    header: list[str] = []
    for number, row in _lines(file):
        if number == 1:
            header = row
            if set(header) != {"Hours", *CHANNELS}:
                raise BadInput(f"{file}: its first line does not name Hours and the benchmark's 17 measurements")
            continue
        if len(row) != len(header):
            raise BadInput(f"{file}: line {number} has {len(row)} columns, expected {len(header)}; is it cut off?")
        given = dict(zip(header, row, strict=True))
        hour = _hour(file, number, given.pop("Hours"))
        if hour < HOURS:
            measured[hour].update({name: _coded(file, number, name, text) for name, text in given.items() if text})
    x = np.zeros((HOURS, len(COLUMNS)), dtype=np.float32)
    for hour, there in enumerate(measured):
        latest.update(there)
        for k, name in enumerate(CHANNELS):
            x[hour, _FIRST[k] : _FIRST[k + 1]] = latest[name]
            x[hour, _FIRST[-1] + k] = name in there
    return x


def _hour(file: Path, number: int, text: str) -> int:
    try:
        hours = float(text)
    except ValueError:
        raise BadInput(f"{file}: line {number}: Hours is {text!r}, not a number") from None
    if not hours >= 0:
        raise BadInput(f"{file}: line {number}: Hours is {text!r}, before the stay")
    return HOURS if hours > HOURS + _SLACK_HOURS else max(0, int(hours - _SLACK_HOURS))


def _coded(file: Path, number: int, name: str, text: str) -> NDArray[np.float32]:
    """A number as it is, a word as its indicator among the words of its measurement."""
    words = WORDS.get(name)
    if words is not None and text in words:
        return np.array([word == text for word in words], dtype=np.float32)
    try:
        value = float(text) if words is None else float("nan")
    except ValueError:
        value = float("nan")
    if not np.isfinite(value):
        raise BadInput(f"{file}: line {number}: {name!r} is {text!r}, which the benchmark does not know")
    return np.array([value], dtype=np.float32)


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    require_file(file)
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        yield from enumerate(csv.reader(opened), 1)
