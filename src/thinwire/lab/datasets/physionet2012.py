"""PhysioNet/Computing in Cardiology Challenge 2012: 48 hours in intensive care; did the patient die in hospital?

37 measurements and 5 facts of admission. It stands in for MIMIC-III, which needs a signed agreement: four
parties as C-VFL cuts that, or bedside and laboratory (`VITALS_AND_LABS`). The files are one text file a stay as
published, or all stays in one NPZ file.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_npz, read_words, require_file
from thinwire.lab.datasets.dataset_files import DataSource, find, missing_file
from thinwire.lab.datasets.fields import HOURS, Field, fill_forward, split_fields
from thinwire.lab.datasets.sampling import choose_rows, standardize
from thinwire.lab.datasets.vertical import ColumnsByCount, ColumnsByName, Request, Split, VerticalData

CHANNELS = (
    *("ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine", "DiasABP", "FiO2", "GCS"),
    *("Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "NIDiasABP", "NIMAP", "NISysABP"),
    *("Na", "PaCO2", "PaO2", "Platelets", "RespRate", "SaO2", "SysABP", "Temp", "TroponinI", "TroponinT", "Urine"),
    *("WBC", "Weight", "pH"),
)
STATIC = ("Age", "Gender", "Height", "ICUType", "Weight0")  # Weight0 is the weight at admission

_PLACES = {name: place for place, name in enumerate(CHANNELS)}
_STATIC_PLACES = {name.removesuffix("0"): place for place, name in enumerate(STATIC)}
_UNKNOWN = -1.0  # how a fact of admission says that it is not known


@dataclass(frozen=True, eq=False)
class Stays:
    """Stays in intensive care, as they were written down."""

    x: NDArray[np.float32]  # [N, 48, 37], NaN where not measured in that hour
    static: NDArray[np.float32]  # [N, 5], NaN where not known
    died: NDArray[np.int64]
    test: NDArray[np.bool_]  # whether it is of set b
    channels: tuple[str, ...] = CHANNELS


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


def _stay(file: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    series = np.full((HOURS, len(CHANNELS)), np.nan, dtype=np.float32)
    facts = np.full(len(STATIC), np.nan, dtype=np.float32)
    for number, row in _rows(file, ("Time", "Parameter", "Value")):
        hours, _, minutes = row["Time"].partition(":")
        try:
            hour, value = int(hours) + int(minutes) // 60, float(row["Value"])
        except ValueError:
            raise BadInput(f"{file}: line {number}: {row['Time']!r}, {row['Value']!r} is no time and value") from None
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


def _rows(file: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    require_file(file)
    with file.open(encoding="utf-8", errors="replace", newline="") as opened:
        reader = csv.DictReader(opened)
        for name in columns:
            if name not in (reader.fieldnames or ()):
                raise BadInput(f"{file}: there is no column {name!r} in its first line")
        for row in reader:
            if None in row or None in row.values():
                raise BadInput(f"{file}: line {reader.line_num} is cut off, or has too many columns")
            yield reader.line_num, row


VITALS = (
    *("DiasABP", "FiO2", "GCS", "HR", "MAP", "MechVent", "NIDiasABP", "NIMAP", "NISysABP", "RespRate", "SaO2"),
    *("SysABP", "Temp", "Urine", "Weight"),
)
LABS = (
    *("ALP", "ALT", "AST", "Albumin", "BUN", "Bilirubin", "Cholesterol", "Creatinine", "Glucose", "HCO3", "HCT", "K"),
    *("Lactate", "Mg", "Na", "PaCO2", "PaO2", "Platelets", "TroponinI", "TroponinT", "WBC", "pH"),
)
VITALS_AND_LABS = ColumnsByName((("bedside", VITALS), ("laboratory", (*LABS, *STATIC))))

_COMPACT = "icu/physionet2012_48h_ab.npz"
_RARE = (0.1, 99.9)  # percentiles: beyond them are slips of the pen, such as a pH of 735

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class PhysioNet2012:
    """physionet2012/set-a and set-b with Outcomes-a.txt and Outcomes-b.txt, or the compact NPZ file."""

    masks: bool = False  # a second column for each measurement: 1 where it was measured in that hour
    name: str = "physionet2012"
    default_split: Split = ColumnsByCount((11, 11, 10, 10))
    source: DataSource = DataSource(
        "PhysioNet 2012",
        "https://physionet.org/content/challenge-2012/1.0.0/",
        tuple(f"physionet2012/{name}" for name in ("Outcomes-a.txt", "Outcomes-b.txt", "set-a/", "set-b/")),
        "it is patients' data, to be fetched by those who will use it",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        stays = self._stays(request.folder)
        subset = request.subset
        a, b = np.flatnonzero(~stays.test), np.flatnonzero(stays.test)
        train = a[choose_rows(stays.died[a], subset.rows, subset.seed)]
        test = b[choose_rows(stays.died[b], subset.test_rows, subset.seed, "test_rows")]
        fields = [*self._measured(stays, train, test), *_static(stays, train, test)]
        about = (
            "PhysioNet 2012, set-a for training and set-b for testing, gaps filled from the hour before"
            f"{', with masks' if self.masks else ''}, standardised by the training rows, clipped at their "
            f"percentiles {_RARE[0]} and {_RARE[1]}, 0 where never measured"
        )
        return split_fields(self.name, fields, (stays.died[train], stays.died[test]), split, about)

    def _stays(self, folder: Path) -> Stays:
        for root in ("physionet2012", "."):
            if (folder / root / "Outcomes-a.txt").exists():
                return read_official_stays(folder / root)
        found = find(folder, [_COMPACT])
        if found is None:
            raise missing_file(self.source, folder, ["physionet2012/Outcomes-a.txt", _COMPACT])
        return read_compact_stays(found)

    def _measured(self, stays: Stays, train: NDArray[np.int64], test: NDArray[np.int64]) -> list[Field]:
        fields = []
        for k, name in enumerate(stays.channels):
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
