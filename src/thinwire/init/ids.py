"""Which column names the rows: the one whose values are all different, and that the parties share most of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from thinwire.data.naming import listed, wanted
from thinwire.errors import BadColumn, BadIds
from thinwire.init.looking import Table
from thinwire.prepare.reading import words

__all__ = ["SharedIds", "guessed_ids", "own_id", "shared_ids"]

_TELLING = ("id", "customer", "client", "patient", "user", "key", "number", "account")


class SharedIds:
    """The id column of each party, and how many ids all of them hold."""

    def __init__(self, tables: Mapping[str, Table], columns: Mapping[str, str]) -> None:
        self.columns = dict(columns)
        held = {party: words(tables[party].cells, column).to_pylist() for party, column in columns.items()}
        self.common = len(set.intersection(*(set(ids) for ids in held.values())))
        every = list(held.values())
        self.in_order = all(ids == every[0] for ids in every)


def shared_ids(tables: Mapping[str, Table], columns: Mapping[str, str]) -> SharedIds:
    """Of columns that were named; refuses ids that nobody shares."""
    for party, column in columns.items():
        if column not in tables[party].cells.names:
            wanted(tables[party].file, tables[party].cells.names, [column])
    found = SharedIds(tables, columns)
    if not found.common:
        shown = ", ".join(f"{column!r} of {tables[party].file.name}" for party, column in columns.items())
        raise BadIds(f"not one id is in all of {shown}; are they written alike? Say which column it is by --id")
    return found


def guessed_ids(tables: Mapping[str, Table]) -> SharedIds:
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


def own_id(table: Table, label: str | None) -> str:
    """Of one table alone: by its name, else the first that could be; nobody else's ids are here to compare."""
    candidates = [column for column in _different(table) if column != label]
    return next(filter(_is_telling, candidates), candidates[0]) if candidates else _none(table)


def _is_telling(column: str) -> bool:
    return any(word in column.lower() for word in _TELLING)


def _different(table: Table) -> dict[str, set[str]]:
    """Columns with a different value in every row, one at least; no fractions, which are measurements."""
    found = {}
    for name in table.cells.names:
        cells = words(table.cells, name)
        if cells.null_count:
            continue
        values = set(cells.to_pylist())
        if len(values) == len(cells) and not all("." in value for value in values):
            found[name] = values
    return found or _none(table)


def _none(table: Table) -> NoReturn:
    raise BadColumn(
        f"{table.file}: no column has a different value in every row, so none can name the rows; it has "
        f"{listed(table.cells.names)}. Say which it is by --id COLUMN"
    )
