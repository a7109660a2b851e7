"""What stands in a party's files: types, gaps, the ids that name its rows, and what is public about its columns."""

from __future__ import annotations

import csv
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from thinwire.base.errors import BadColumn, BadFile, BadIds, BadInput
from thinwire.base.format import quote_names
from thinwire.data.prepare import Preparation, Settings, parsing
from thinwire.data.prepare.columns import BooleanColumn, CategoryColumn, DateColumn, HashedColumn, LeftOutColumn
from thinwire.data.prepare.parsing import parse_words
from thinwire.data.readers.files import require_file
from thinwire.data.readers.tables import Cells, read_cells, select_columns

_GAPS = ("?", "-", ".")  # what else people write for "nothing"
_DELIMITERS = ",;\t|"


@dataclass(frozen=True)
class InspectedTable:
    """A CSV or Parquet file."""

    file: Path
    delimiter: str
    cells: Cells

    @property
    def rows(self) -> int:
        return len(self.cells)

    def prepare(self, without: tuple[str, ...], settings: Settings) -> tuple[Preparation, Settings]:
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
            raise BadFile(f"{self.file}: no array of features [rows, ...]; it holds {self.names_text}")
        return training, self.test_of(training)

    def test_of(self, key: str) -> str | None:
        """The array of test rows that belongs to one of training rows: y_test or test_y, x_test for x_train."""
        stem = key.lower().replace("_train", "").replace("train_", "").replace("train", "")
        near = [one for one in self.shapes if "test" in one.lower() and (stem in one.lower() or not stem)]
        return next((one for one in near if self.shapes[one][1:] == self.shapes[key][1:]), None)

    def locate(self, key: str, folder: Path) -> dict[str, str]:
        """An array, as a job file in `folder` names it."""
        if key not in self.shapes:
            raise BadColumn(f"{self.file}: there is no array {key!r}, it holds {self.names_text}")
        return {"file": relative(self.file, folder), "key": key}

    @property
    def names_text(self) -> str:
        return ", ".join(f"{key} {list(shape)}" for key, shape in self.shapes.items()) or "nothing"


def relative(file: Path, folder: Path) -> str:
    """As a job file in `folder` names it."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()


def inspect_file(file: Path) -> InspectedTable | Arrays:
    require_file(file)
    match file.suffix.lower():
        case ".npz":
            return Arrays(file, _shapes(file))
        case ".csv" | ".parquet":
            delimiter = _delimiter(file) if file.suffix.lower() == ".csv" else ","
            return InspectedTable(file, delimiter, read_cells(file, delimiter=delimiter))
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


_TELLING = ("id", "customer", "client", "patient", "user", "key", "number", "account")


class SharedIds:
    """The id column of each party, and how many ids all of them hold."""

    def __init__(self, tables: Mapping[str, InspectedTable], columns: Mapping[str, str]) -> None:
        self.columns = dict(columns)
        held = {party: parse_words(tables[party].cells, column).to_pylist() for party, column in columns.items()}
        self.common = len(set.intersection(*(set(ids) for ids in held.values())))
        every = list(held.values())
        self.in_order = all(ids == every[0] for ids in every)


def match_ids(tables: Mapping[str, InspectedTable], columns: Mapping[str, str]) -> SharedIds:
    """Of columns that were named; refuses ids that nobody shares."""
    for party, column in columns.items():
        if column not in tables[party].cells.names:
            select_columns(tables[party].file, tables[party].cells.names, [column])
    found = SharedIds(tables, columns)
    if not found.common:
        shown = ", ".join(f"{column!r} of {tables[party].file.name}" for party, column in columns.items())
        raise BadIds(f"not one id is in all of {shown}; are they written alike? Say which column it is by --id")
    return found


def guess_ids(tables: Mapping[str, InspectedTable]) -> SharedIds:
    """By overlap, then by name."""
    candidates = {party: _different(table) for party, table in tables.items()}
    first, *others = tables
    best: tuple[tuple[float, int, int], dict[str, str]] | None = None
    for column, values in candidates[first].items():
        chosen, share = {first: column}, 1.0
        for party in others:
            found = max(candidates[party].items(), key=lambda one: (len(values & one[1]), one[0] == column))
            chosen[party] = found[0]
            share = min(share, len(values & found[1]) / min(len(values), len(found[1])))
        same = len(set(chosen.values())) == 1
        rank = (round(share, 2), int(same), int(_is_telling(column)))
        if best is None or rank > best[0]:
            best = (rank, chosen)
    if best is None or best[0][0] == 0:
        raise BadIds("no column of different values is shared by all files; say which names the rows by --id COLUMN")
    return SharedIds(tables, best[1])


def guess_own_id(table: InspectedTable, label: str | None) -> str:
    """Of one table alone: by its name, else the first that could be; nobody else's ids are here to compare."""
    candidates = [column for column in _different(table) if column != label]
    return next(filter(_is_telling, candidates), candidates[0]) if candidates else _none(table)


def _is_telling(column: str) -> bool:
    return any(word in column.lower() for word in _TELLING)


def _different(table: InspectedTable) -> dict[str, set[str]]:
    """Columns with a different value in every row, one at least; no fractions, which are measurements."""
    found = {}
    for name in table.cells.names:
        cells = parse_words(table.cells, name)
        if cells.null_count:
            continue
        values = set(cells.to_pylist())
        if len(values) == len(cells) and not all("." in value for value in values):
            found[name] = values
    return found or _none(table)


def _none(table: InspectedTable) -> NoReturn:
    raise BadColumn(
        f"{table.file}: no column has a different value in every row, so none can name the rows; it has "
        f"{quote_names(table.cells.names)}. Say which it is by --id COLUMN"
    )


def propose_public(
    table: InspectedTable, preparation: Preparation, settings: Settings
) -> tuple[Settings, tuple[str, ...]]:
    """Settings under which no column is fitted, and the columns that are better left out."""
    known: dict[str, Any] = {}
    types: dict[str, Any] = {}
    left_out: list[str] = []
    for column in preparation.columns:
        match column:
            case LeftOutColumn():
                left_out.append(column.name)
            case BooleanColumn():
                types[column.name] = "boolean"
            case CategoryColumn():
                known[column.name] = list(column.words) or settings.buckets
            case HashedColumn():
                known[column.name] = column.buckets
            case DateColumn():
                days = parsing.parse_days(table.cells, column.name)
                years = [int(1970 + np.floor(day / 365.2425)) for day in (np.nanmin(days), np.nanmax(days))]
                known[column.name] = [column.today.replace(year=years[0], month=1, day=1)]
                known[column.name].append(column.today.replace(year=years[1] + 1, month=1, day=1))
            case _:
                x = parsing.parse_numbers(table.cells, column.name)
                known[column.name] = _outwards(float(np.nanmin(x)), float(np.nanmax(x)))
    return settings.model_copy(update={"known": known, "types": types}), tuple(left_out)


def _outwards(low: float, high: float) -> list[float]:
    """A round range around a range."""
    step = 10.0 ** floor(log10(high - low))
    return [floor(low / step) * step, ceil(high / step) * step]
