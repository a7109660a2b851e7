"""The files of PhysioNet 2012: one text file a stay as published, or all stays in one NPZ file."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.data.files import require_file
from thinwire.data.npz import read_npz, read_words
from thinwire.data.sets.series import HOURS
from thinwire.errors import BadInput

__all__ = ["STATIC", "Stays", "compact_stays", "official_stays"]

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


def compact_stays(file: Path) -> Stays:
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


def official_stays(folder: Path) -> Stays:
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
