"""What stands in a party's files: types, gaps, the ids that name its rows, and what is public about its columns."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, floor, log10
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thinwire.base.errors import BadColumn, BadFile, BadIds, BadInput
from thinwire.base.format import quote_names
from thinwire.base.types import Progress, follow, name_stages
from thinwire.data.prepare import Preparation, Settings, parsing
from thinwire.data.prepare.columns import BooleanColumn, CategoryColumn, DateColumn, HashedColumn, LeftOutColumn
from thinwire.data.prepare.parsing import parse_words
from thinwire.data.readers.files import require_file
from thinwire.data.readers.tables import Cells, read_cells, select_columns
from thinwire.data.readers.text_format import PLAIN, TextFormat, guess_delimiter, guess_numbers
from thinwire.job.wizard.answers import FormatAnswers, JobAnswers

_GAPS = ("?", "-", ".")  # what else people write for "nothing"


@dataclass(frozen=True)
class InspectedTable:
    """A CSV or Parquet file."""

    file: Path
    form: TextFormat
    cells: Cells
    on_progress: Progress | None = None  # of its columns

    @property
    def rows(self) -> int:
        return len(self.cells)

    def prepare(self, without: tuple[str, ...], settings: Settings) -> tuple[Preparation, Settings]:
        """What the other columns would become, if all rows were training rows; with the gaps that had to be named."""
        some = self.cells.without(without)
        if not some.names:
            raise BadColumn(f"{self.file}: no column is left besides {', '.join(without)}")
        try:
            return Preparation.fit(some, settings, self.on_progress), settings
        except BadColumn:
            with_gaps = settings.model_copy(update={"missing_words": list(_GAPS)})
            return Preparation.fit(some, with_gaps, self.on_progress), with_gaps


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
            raise BadColumn(f"{self.file}: there is no array {key!r}; the file holds {self.names_text}")
        return {"file": relative(self.file, folder), "key": key}

    @property
    def names_text(self) -> str:
        return ", ".join(f"{key} {list(shape)}" for key, shape in self.shapes.items()) or "nothing"


def relative(file: Path, folder: Path) -> str:
    """As a job file in `folder` names it."""
    return Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix()


def inspect_file(file: Path, said: FormatAnswers, on_progress: Progress | None = None) -> InspectedTable | Arrays:
    require_file(file)
    on_progress = name_stages(on_progress, file.name)
    match file.suffix.lower():
        case ".npz":
            return Arrays(file, _shapes(file))
        case ".parquet":
            return InspectedTable(file, PLAIN, read_cells(file), on_progress)
        case ".csv":
            return _inspect_csv(file, said, on_progress)
    raise BadFile(f"{file}: cannot read {file.suffix or 'a file without a suffix'!r}; use .csv, .parquet or .npz")


def _inspect_csv(file: Path, said: FormatAnswers, on_progress: Progress | None) -> InspectedTable:
    """How it writes its cells is found in it, where it was not said."""
    encoding = said.encoding or PLAIN.encoding
    text = TextFormat(said.delimiter or guess_delimiter(file, encoding), encoding)
    cells = read_cells(file, form=text)
    form = guess_numbers(_list_words(cells, on_progress), text, said.decimal, said.thousands)
    return InspectedTable(file, form, replace(cells, form=form), on_progress)


def _list_words(cells: Cells, on_progress: Progress | None) -> Iterator[Any]:
    """The different texts of each column, without those that stand for nothing."""
    for name in follow(cells.names, on_progress, "columns"):
        words = pc.drop_null(parse_words(cells, name).unique())
        yield words.filter(pc.invert(pc.is_in(words, value_set=pa.array(_GAPS))))


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
        raise BadInput(f"{file}: not an NPZ file: {error}; save it with numpy.savez") from None
    return found


_TELLING = ("id", "customer", "client", "patient", "user", "key", "number", "account")
_ID_NAME = re.compile(rf"^id$|({'|'.join(_TELLING[1:])})(id|nr|no)?$")  # of the last word of a name
_MOSTLY_DIFFERENT = 0.9
_REPAIR = "correct or drop one of these rows, or name the id column with --id"


class SharedIds:
    """The id column of each party, and how many ids all of them hold."""

    def __init__(self, tables: Mapping[str, InspectedTable], columns: Mapping[str, str]) -> None:
        self.columns = dict(columns)
        held = {party: parse_words(tables[party].cells, column).to_pylist() for party, column in columns.items()}
        self.common = len(set.intersection(*(set(ids) for ids in held.values())))
        every = list(held.values())
        self.in_order = all(ids == every[0] for ids in every)


def match_ids(tables: Mapping[str, InspectedTable], asked: JobAnswers) -> SharedIds:
    """Of columns that were named, for one party at least; refuses ids that nobody shares, and ids that repeat."""
    columns = _complete_ids(tables, asked)
    found = SharedIds(tables, columns)
    if not found.common:
        shown = ", ".join(f"{column!r} of {tables[party].file.name}" for party, column in columns.items())
        raise BadIds(
            f"no id appears in all of {shown}; are they formatted the same way? Name the id column with --id"
        )
    for party, column in columns.items():
        require_unique(tables[party], column)
    return found


def _complete_ids(tables: Mapping[str, InspectedTable], asked: JobAnswers) -> dict[str, str]:
    """Where a party's column was not named: one of the same name, or the only one that could be."""
    found = dict(asked.ids or {})
    for party, column in found.items():
        select_columns(tables[party].file, tables[party].cells.names, [column])
    names = [*found.values(), *([] if asked.id is None else [asked.id])]
    others = {party: table for party, table in tables.items() if party not in found}
    if not found and not any(asked.id in table.cells.names for table in others.values()):
        select_columns(next(iter(tables.values())).file, next(iter(tables.values())).cells.names, names)
    for party, table in others.items():
        same = next((name for name in names if name in table.cells.names), None)
        found[party] = same or _find_only_id(party, table, asked.label)
    return {party: found[party] for party in tables}


def _find_only_id(party: str, table: InspectedTable, label: tuple[str, str]) -> str:
    columns = [column for column in _different(table) if (party, column) != label]
    if len(columns) != 1:
        could = f"{quote_names(columns)} could; say" if columns else "Say"
        raise BadInput(f"--id: which column identifies the rows of {party!r}? {could} --id {party}:COLUMN as well")
    return columns[0]


def require_unique(table: InspectedTable, column: str) -> None:
    """Refuses a column that cannot name rows, with the rows."""
    flaw = _find_flaw(table, column)
    if flaw is not None:
        raise BadIds(f"{table.file}: column {column!r} cannot identify the rows: {flaw}; {_REPAIR}")


def list_suspects(table: InspectedTable) -> dict[str, str]:
    """Columns that look like an id and are none, each with what is wrong: a value that repeats, or a gap."""
    found = {name: _find_flaw(table, name) for name in table.cells.names if _looks_like_id(table, name)}
    return {name: flaw for name, flaw in found.items() if flaw is not None}


def _refuse_suspects(table: InspectedTable, chosen: str) -> None:
    """A guess is worth little where a column of a telling name would name the rows but for some of them."""
    suspects = list_suspects(table)
    if suspects and not _is_telling(chosen):
        raise BadIds(f"{table.file}: {describe_suspect(*next(iter(suspects.items())))}; {_REPAIR}")


def describe_suspect(column: str, flaw: str) -> str:
    return f"column {column!r} looks like an id, but {flaw}"


def _find_flaw(table: InspectedTable, column: str) -> str | None:
    """The first row without an id, or the first two with the same."""
    places: dict[str, int] = {}
    for row, text in enumerate(parse_words(table.cells, column).to_pylist()):
        if text is None:
            return f"{table.cells.where(row)} has none"
        if text in places:
            return f"{text[:40]!r} appears in {table.cells.where(places[text])} and {table.cells.where(row)}"
        places[text] = row
    return None


def _looks_like_id(table: InspectedTable, column: str) -> bool:
    """By its name, and by a different value in almost every row; no fractions, which are measurements."""
    if not _ID_NAME.search(re.split(r"[^a-z]+", column.lower())[-1]):
        return False
    words = parse_words(table.cells, column)
    values = pc.drop_null(words.unique()).to_pylist()
    return len(values) >= _MOSTLY_DIFFERENT * len(words) and not _are_fractions(table, values)


def _are_fractions(table: InspectedTable, values: Collection[str]) -> bool:
    return all(table.form.decimal in value for value in values)


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
        for table in tables.values():
            _refuse_suspects(table, "")
        raise BadIds("the files share no column with unique values; name the id column with --id COLUMN")
    for party, column in best[1].items():
        _refuse_suspects(tables[party], column)
    return SharedIds(tables, best[1])


def guess_own_id(table: InspectedTable, label: str | None) -> str:
    """Of one table alone: by its name, else the first that could be; nobody else's ids are here to compare."""
    candidates = [column for column in _different(table) if column != label]
    if not candidates:
        _none(table)
    chosen = next(filter(_is_telling, candidates), candidates[0])
    _refuse_suspects(table, chosen)
    return chosen


def _is_telling(column: str) -> bool:
    return any(word in column.lower() for word in _TELLING)


def _different(table: InspectedTable) -> dict[str, set[str]]:
    """Columns with a different value in every row, at least one; no fractions, which are measurements."""
    found = {}
    for name in follow(table.cells.names, table.on_progress, "columns"):
        cells = parse_words(table.cells, name)
        if cells.null_count:
            continue
        values = set(cells.to_pylist())
        if len(values) == len(cells) and not _are_fractions(table, values):
            found[name] = values
    return found or _none(table)


def _none(table: InspectedTable) -> NoReturn:
    _refuse_suspects(table, "")
    raise BadColumn(
        f"{table.file}: no column has a unique value in every row, so none can identify the rows; the columns are "
        f"{quote_names(table.cells.names)}. Name the id column with --id COLUMN"
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
