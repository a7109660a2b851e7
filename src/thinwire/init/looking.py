"""A look at a party's file: what kind of rows it holds, and what its columns would become."""

from __future__ import annotations

import csv
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.data.cells import Cells, read_cells
from thinwire.data.opening import require_file
from thinwire.errors import BadColumn, BadFile, BadInput
from thinwire.prepare import Preparation, Settings

__all__ = ["Arrays", "Look", "Table", "looked_at"]

_GAPS = ("?", "-", ".")  # what else people write for "nothing"
_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class Table:
    """A CSV or Parquet file."""

    file: Path
    delimiter: str
    cells: Cells

    @property
    def rows(self) -> int:
        return len(self.cells)

    def prepared(self, without: tuple[str, ...], settings: Settings) -> tuple[Preparation, Settings]:
        """What the other columns would become, if all rows were training rows; with the gaps that had to be named."""
        some = self.cells.without(without)
        if not some.names:
            raise BadColumn(f"{self.file}: no column is left beside {', '.join(without)}")
        try:
            return Preparation.fit(some, settings), settings
        except BadColumn:
            with_gaps = settings.model_copy(update={"missing_words": list(_GAPS)})
            return Preparation.fit(some, with_gaps), with_gaps


@dataclass(frozen=True)
class Arrays:
    """An NPZ file: the shapes of its arrays, by key."""

    file: Path
    shapes: dict[str, tuple[int, ...]]

    def features(self, label: str | None) -> tuple[str, str | None]:
        """The array of training features, and that of the test rows where there is one."""
        held = {key: shape for key, shape in self.shapes.items() if len(shape) > 1 and key != label}
        training = next((key for key in held if "test" not in key.lower()), None)
        if training is None:
            raise BadFile(f"{self.file}: no array of features [rows, ...]; it holds {self.listed}")
        return training, self.test_of(training)

    def test_of(self, key: str) -> str | None:
        """The array of test rows that belongs to one of training rows: y_test or test_y, x_test for x_train."""
        stem = key.lower().replace("_train", "").replace("train_", "").replace("train", "")
        near = [one for one in self.shapes if "test" in one.lower() and (stem in one.lower() or not stem)]
        return next((one for one in near if self.shapes[one][1:] == self.shapes[key][1:]), None)

    @property
    def listed(self) -> str:
        return ", ".join(f"{key} {list(shape)}" for key, shape in self.shapes.items()) or "nothing"


Look = Table | Arrays


def looked_at(file: Path) -> Look:
    require_file(file)
    match file.suffix.lower():
        case ".npz":
            return Arrays(file, _shapes(file))
        case ".csv" | ".parquet":
            delimiter = _delimiter(file) if file.suffix.lower() == ".csv" else ","
            return Table(file, delimiter, read_cells(file, delimiter=delimiter))
    raise BadFile(f"{file}: cannot read {file.suffix or 'a file without a suffix'!r}; give .csv, .parquet or .npz")


def _delimiter(file: Path) -> str:
    """The sign that cuts the first line into most names."""
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        first = next((line for line in opened if line.strip()), "")
    return max(_DELIMITERS, key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as opened:
                    version = np.lib.format.read_magic(opened)
                    reading: Any = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
                    found[name.removesuffix(".npy")] = reading[version[0]](opened)[0]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{file}: not an NPZ file: {error}; write it with numpy.savez") from None
    return found
