"""48 hours in intensive care; did the patient die in hospital? PhysioNet's challenge of 2012, and MIMIC-III.

PhysioNet/Computing in Cardiology Challenge 2012: 37 measurements and 5 facts of admission. It stands in for
MIMIC-III, which needs a signed agreement: four parties as C-VFL cuts that, or bedside and laboratory
(`VITALS_AND_LABS`). The files are one text file a stay as published, or all stays in one NPZ file.

MIMIC-III (Johnson et al., 2016), in-hospital mortality as prepared by Harutyunyan et al. (2019): 17 measurements,
made into 76 columns: 12 numbers, 47 indicators of the five that are words, and 17 masks. C-VFL gives four parties 19
columns each.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_npz, read_words, require_file
from thinwire.lab.datasets.dataset_files import DataSource, find_or_fetch, read_catalogue
from thinwire.lab.datasets.sampling import choose_rows, standardize
from thinwire.lab.datasets.vertical import (
    ColumnsByCount,
    ColumnsByName,
    Field,
    Request,
    Split,
    VerticalData,
    split_fields,
)

HOURS = 48

Floats: TypeAlias = NDArray[np.float32]


def fill_forward(x: Floats) -> Floats:
    """[N, T, F]: each NaN becomes the last value before it; what comes before the first value stays NaN."""
    hours = np.arange(x.shape[1])[None, :, None]
    last = np.maximum.accumulate(np.where(np.isnan(x), 0, hours), axis=1)
    filled: Floats = np.take_along_axis(x, last, axis=1)
    return filled


def _rows(file: Path, columns: Sequence[str], only: str = "") -> Iterator[tuple[int, dict[str, str]]]:
    """Each line's number and its cells by column; no other columns may be there if `only` names them."""
    require_file(file)
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        reader = csv.reader(opened)
        header = next(reader, [])
        if only and set(header) != set(columns):
            raise BadInput(f"{file}: its first line does not name {only}")
        for name in columns:
            if name not in header:
                raise BadInput(f"{file}: there is no column {name!r} in its first line; expected {','.join(columns)}")
        for row in filter(None, reader):
            if len(row) != len(header):
                raise BadInput(
                    f"{file}: line {reader.line_num} has {len(row)} columns, expected {len(header)}; is it cut off?"
                )
            yield reader.line_num, dict(zip(header, row, strict=True))


# PhysioNet 2012 ---------------------------------------------------------------------------------------------------


VITALS, LABS = (read_catalogue(tuple[str, ...], "physionet2012", key) for key in ("vitals", "labs"))
CHANNELS = tuple(sorted((*VITALS, *LABS)))
STATIC = ("Age", "Gender", "Height", "ICUType", "Weight0")  # Weight0 is the weight at admission
VITALS_AND_LABS = ColumnsByName((("bedside", VITALS), ("laboratory", (*LABS, *STATIC))))

_PLACES = {name: place for place, name in enumerate(CHANNELS)}
_STATIC_PLACES = {name.removesuffix("0"): place for place, name in enumerate(STATIC)}
_UNKNOWN = -1.0  # how a fact of admission says that it is not known


@dataclass(frozen=True, eq=False)
class Stays:
    """Stays in intensive care, as they were written down."""

    x: Floats  # [N, 48, 37], NaN where not measured in that hour
    static: Floats  # [N, 5], NaN where not known
    died: NDArray[np.int64]
    test: NDArray[np.bool_]  # whether it is of set b


def read_compact_stays(file: Path) -> Stays:
    x = read_npz(file, "x")
    channels, static = read_words(file, "params"), read_words(file, "static_names")
    if channels != CHANNELS or static != STATIC:
        raise BadInput(f"{file}: its measurements are not the challenge's 37 and 5, in the order of their names")
    return Stays(
        x,
        read_npz(file, "static"),
        read_npz(file, "y").astype(np.int64),
        np.array([part != "a" for part in read_words(file, "subset")]),
    )


def read_official_stays(folder: Path) -> Stays:
    """set-a and set-b: text files of Time,Parameter,Value; the last value of an hour counts."""
    x, static, died, test = [], [], [], []
    for part in "ab":
        for stay, outcome in _outcomes(folder / f"Outcomes-{part}.txt"):
            series, facts = _stay(folder / f"set-{part}" / f"{stay}.txt")
            x.append(series)
            static.append(facts)
            died.append(outcome)
            test.append(part == "b")
    return Stays(np.stack(x), np.stack(static), np.array(died, dtype=np.int64), np.array(test))


def _outcomes(file: Path) -> Iterator[tuple[str, int]]:
    for number, row in _rows(file, ("RecordID", "In-hospital_death")):
        if row["In-hospital_death"] not in ("0", "1") or not row["RecordID"].isdigit():
            raise BadInput(f"{file}: line {number}: not a RecordID and an In-hospital_death of 0 or 1")
        yield row["RecordID"], int(row["In-hospital_death"])


def _stay(file: Path) -> tuple[Floats, Floats]:
    series = np.full((HOURS, len(CHANNELS)), np.nan, dtype=np.float32)
    facts = np.full(len(STATIC), np.nan, dtype=np.float32)
    for number, row in _rows(file, ("Time", "Parameter", "Value")):
        hours, _, minutes = row["Time"].partition(":")
        try:
            hour, value = int(hours) + int(minutes) // 60, float(row["Value"])
        except ValueError:
            raise BadInput(
                f"{file}: line {number}: {row['Time']!r}, {row['Value']!r} is not a time and a value"
            ) from None
        if not (0 <= hour <= HOURS and math.isfinite(value)):
            raise BadInput(
                f"{file}: line {number}: {row['Time']!r}, {row['Value']!r} is outside the 48 hours or no number"
            )
        name = row["Parameter"]
        if row["Time"] == "00:00" and name in _STATIC_PLACES and np.isnan(facts[_STATIC_PLACES[name]]):
            facts[_STATIC_PLACES[name]] = np.nan if value == _UNKNOWN else value
        if name in _PLACES and value != _UNKNOWN:
            series[min(hour, HOURS - 1), _PLACES[name]] = value
    return series, facts


_RARE = (0.1, 99.9)  # percentiles: beyond them are slips of the pen, such as a pH of 735


@dataclass(frozen=True)
class PhysioNet2012:
    """physionet2012/set-a and set-b with Outcomes-a.txt and Outcomes-b.txt, or the compact NPZ file."""

    masks: bool = False  # a second column for each measurement: 1 where it was measured in that hour
    name: str = "physionet2012"
    default_split: Split = ColumnsByCount((11, 11, 10, 10))
    source: DataSource = read_catalogue(DataSource, "physionet2012", "source")

    def load(self, split: Split, request: Request) -> VerticalData:
        found = find_or_fetch(self.source, request.folder)
        stays = read_compact_stays(found) if found.suffix == ".npz" else read_official_stays(found.parent)
        subset = request.subset
        a, b = np.flatnonzero(~stays.test), np.flatnonzero(stays.test)
        train = a[choose_rows(stays.died[a], subset.rows, subset.seed)]
        test = b[choose_rows(stays.died[b], subset.test_rows, subset.seed, "test_rows")]
        fields = [*self._measured(stays, train, test), *_static(stays, train, test)]
        about = (
            "PhysioNet 2012, set-a for training and set-b for testing, missing values filled from the previous hour"
            f"{', with masks' if self.masks else ''}, standardised by the training rows, clipped at their "
            f"percentiles {_RARE[0]} and {_RARE[1]}, 0 where never measured"
        )
        return split_fields(self.name, fields, (stays.died[train], stays.died[test]), split, about)

    def _measured(self, stays: Stays, train: NDArray[np.int64], test: NDArray[np.int64]) -> list[Field]:
        fields = []
        for k, name in enumerate(CHANNELS):
            raw, raw_test = stays.x[train, :, k : k + 1], stays.x[test, :, k : k + 1]
            if name == "MechVent":  # written down only while it is on: the gaps say something
                values, values_test = (np.nan_to_num(fill_forward(part)) for part in (raw, raw_test))
            else:
                values, values_test = _scaled(raw, raw_test)
            if self.masks:
                values, values_test = (
                    np.concatenate([filled, (~np.isnan(part)).astype(np.float32)], axis=2)
                    for filled, part in ((values, raw), (values_test, raw_test))
                )
            fields.append(Field(name, values, values_test))
        return fields


def _scaled(raw: Floats, raw_test: Floats) -> tuple[Floats, Floats]:
    """Fitted on what was measured, then filled: a long gap does not count many times."""
    there = raw[~np.isnan(raw)]
    low, high = np.percentile(there, _RARE).astype(np.float32) if there.size else (np.float32(0), np.float32(0))
    scaled = standardize(np.clip(raw, low, high), np.clip(raw_test, low, high))
    train, test = (np.nan_to_num(fill_forward(part)) for part in scaled)
    return train, test


def _static(stays: Stays, train: NDArray[np.int64], test: NDArray[np.int64]) -> list[Field]:
    """The facts of admission, the same in every hour."""
    fields = []
    for k, name in enumerate(STATIC):
        own, own_test = _scaled(stays.static[train, None, k : k + 1], stays.static[test, None, k : k + 1])
        fields.append(Field(name, np.repeat(own, HOURS, axis=1), np.repeat(own_test, HOURS, axis=1)))
    return fields


# MIMIC-III --------------------------------------------------------------------------------------------------------


NORMAL = read_catalogue(dict[str, str], "mimic3", "normal")  # what stands where nothing was measured yet
WORDS = read_catalogue(dict[str, tuple[str, ...]], "mimic3", "words")
BENCHMARK_CHANNELS = tuple(NORMAL)
COLUMNS = (
    *(f"{name} = {word}" if word else name for name in BENCHMARK_CHANNELS for word in WORDS.get(name, ("",))),
    *(f"{name} measured" for name in BENCHMARK_CHANNELS),
)
# Where each measurement's columns start, and after the last one, where the masks do.
_FIRST = (0, *accumulate(len(WORDS.get(name, "1")) for name in BENCHMARK_CHANNELS))
_SLACK_HOURS = 1e-6  # a value on the hour belongs to the hour before, as in the benchmark


@dataclass(frozen=True)
class Mimic3:
    """in-hospital-mortality/{train,test} with listfile.csv and one CSV file a stay."""

    name: str = "mimic3"
    default_split: Split = ColumnsByCount((19, 19, 19, 19))
    source: DataSource = read_catalogue(DataSource, "mimic3", "source")

    def load(self, split: Split, request: Request) -> VerticalData:
        subset = request.subset
        folder = find_or_fetch(self.source, request.folder).parents[1]
        x, y = _read_part(folder / "train", subset.rows, subset.seed, "rows")
        xt, yt = _read_part(folder / "test", subset.test_rows, subset.seed, "test_rows")
        fields = []
        for k, name in enumerate(COLUMNS):
            column, test_column = x[:, :, k : k + 1], xt[:, :, k : k + 1]
            if name in BENCHMARK_CHANNELS:
                column, test_column = standardize(column, test_column)
            fields.append(Field(name, column, test_column))
        about = (
            "MIMIC-III in-hospital mortality, the benchmark's training and test stays, 48 hours, the last value "
            "of an hour, missing values filled from the previous hour or with the benchmark's normal value, "
            "numbers standardised by the training rows"
        )
        return split_fields(self.name, fields, (y, yt), split, about)


def _read_part(folder: Path, rows: int | None, seed: int, name: str) -> tuple[Floats, NDArray[np.int64]]:
    listed = list(_listed(folder / "listfile.csv"))
    died = np.array([label for _, label in listed], dtype=np.int64)
    taken = choose_rows(died, rows, seed, name)
    return np.stack([_read_stay(folder / listed[row][0]) for row in taken]), died[taken]


def _listed(file: Path) -> Iterator[tuple[str, int]]:
    for number, row in _rows(file, ("stay", "y_true")):
        if row["y_true"] not in ("0", "1") or Path(row["stay"]).name != row["stay"]:
            raise BadInput(f"{file}: line {number}: {list(row.values())} is not the name of a stay's file and 0 or 1")
        yield row["stay"], int(row["y_true"])


def _read_stay(file: Path) -> Floats:
    """[48, 76] of one stay."""
    latest = {name: _coded(file, 0, name, NORMAL[name]) for name in BENCHMARK_CHANNELS}
    measured: list[dict[str, Floats]] = [{} for _ in range(HOURS)]
    columns = ("Hours", *BENCHMARK_CHANNELS)
    for number, given in _rows(file, columns, only="Hours and the benchmark's 17 measurements"):
        hour = _hour(file, number, given.pop("Hours"))
        if hour < HOURS:
            measured[hour].update({name: _coded(file, number, name, text) for name, text in given.items() if text})
    x = np.zeros((HOURS, len(COLUMNS)), dtype=np.float32)
    for hour, there in enumerate(measured):
        latest.update(there)
        for k, name in enumerate(BENCHMARK_CHANNELS):
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


def _coded(file: Path, number: int, name: str, text: str) -> Floats:
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
