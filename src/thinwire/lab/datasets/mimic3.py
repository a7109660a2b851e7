"""MIMIC-III (Johnson et al., 2016), in-hospital mortality as prepared by Harutyunyan et al. (2019).

17 measurements over 48 hours, made into 76 columns: 12 numbers, 47 indicators of the five that are words, and
17 masks. C-VFL gives four parties 19 columns each.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import require_file
from thinwire.lab.datasets.dataset_files import DataSource, find, missing_file
from thinwire.lab.datasets.fields import HOURS, Field, split_fields
from thinwire.lab.datasets.sampling import choose_rows, standardize
from thinwire.lab.datasets.vertical import ColumnsByCount, Request, Split, VerticalData

# What stands where nothing was measured yet.
NORMAL = {
    "Capillary refill rate": "0.0",
    "Diastolic blood pressure": "59.0",
    "Fraction inspired oxygen": "0.21",
    "Glascow coma scale eye opening": "4 Spontaneously",
    "Glascow coma scale motor response": "6 Obeys Commands",
    "Glascow coma scale total": "15",
    "Glascow coma scale verbal response": "5 Oriented",
    "Glucose": "128.0",
    "Heart Rate": "86",
    "Height": "170.0",
    "Mean blood pressure": "77.0",
    "Oxygen saturation": "98.0",
    "Respiratory rate": "19",
    "Systolic blood pressure": "118.0",
    "Temperature": "36.6",
    "Weight": "81.0",
    "pH": "7.4",
}
CHANNELS = tuple(NORMAL)

# Two charting systems wrote the same findings differently; the benchmark keeps both spellings.
WORDS = {
    "Capillary refill rate": ("0.0", "1.0"),
    "Glascow coma scale eye opening": (
        *("To Pain", "3 To speech", "1 No Response", "4 Spontaneously", "None", "To Speech", "Spontaneously"),
        "2 To pain",
    ),
    "Glascow coma scale motor response": (
        *("1 No Response", "3 Abnorm flexion", "Abnormal extension", "No response", "4 Flex-withdraws"),
        *("Localizes Pain", "Flex-withdraws", "Obeys Commands", "Abnormal Flexion", "6 Obeys Commands"),
        *("5 Localizes Pain", "2 Abnorm extensn"),
    ),
    "Glascow coma scale total": ("11", "10", "13", "12", "15", "14", "3", "5", "4", "7", "6", "9", "8"),
    "Glascow coma scale verbal response": (
        *("1 No Response", "No Response", "Confused", "Inappropriate Words", "Oriented", "No Response-ETT"),
        *(
            "5 Oriented",
            "Incomprehensible sounds",
            "1.0 ET/Trach",
            "4 Confused",
            "2 Incomp sounds",
            "3 Inapprop words",
        ),
    ),
}


def first_columns() -> tuple[int, ...]:
    """Where each measurement's columns start, and after the last one, where the masks do."""
    return (0, *accumulate(len(WORDS.get(name, "1")) for name in CHANNELS))


COLUMNS = (
    *(f"{name} = {word}" if word else name for name in CHANNELS for word in WORDS.get(name, ("",))),
    *(f"{name} measured" for name in CHANNELS),
)


_FIRST = first_columns()
_SLACK_HOURS = 1e-6  # a value on the hour belongs to the hour before, as in the benchmark


@dataclass(frozen=True)
class Mimic3:
    """in-hospital-mortality/{train,test} with listfile.csv and one CSV file a stay."""

    name: str = "mimic3"
    default_split: Split = ColumnsByCount((19, 19, 19, 19))
    source: DataSource = DataSource(
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
            raise missing_file(self.source, request.folder, [f"{place}/train/listfile.csv" for place in places])
        x, y = _part(folder / "train", subset.rows, subset.seed, "rows")
        xt, yt = _part(folder / "test", subset.test_rows, subset.seed, "test_rows")
        fields = []
        for k, name in enumerate(COLUMNS):
            column, test_column = x[:, :, k : k + 1], xt[:, :, k : k + 1]
            if name in CHANNELS:
                column, test_column = standardize(column, test_column)
            fields.append(Field(name, column, test_column))
        about = (
            "MIMIC-III in-hospital mortality, the benchmark's training and test stays, 48 hours, the last value "
            "of an hour, gaps filled from the hour before or with the benchmark's normal value, numbers standardised "
            "by the training rows"
        )
        return split_fields(self.name, fields, (y, yt), split, about)


def _part(folder: Path, rows: int | None, seed: int, name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    listed = list(_listed(folder / "listfile.csv"))
    died = np.array([label for _, label in listed], dtype=np.int64)
    taken = choose_rows(died, rows, seed, name)
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
