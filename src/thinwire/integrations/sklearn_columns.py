"""Whose columns are whose: rows in one table, or by party, as one prepared table for each party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from thinwire.base.errors import BadColumn, BadInput, BadTable
from thinwire.base.format import did_you_mean, quote_names
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation, Settings

Table = dict[str, Any]  # columns by name


@dataclass(frozen=True)
class PreparedColumns:
    """Each party's table by its own preparation, fitted on its own rows."""

    preparations: dict[PartyName, Preparation]

    @classmethod
    def fit(cls, tables: Mapping[PartyName, Table]) -> PreparedColumns:
        return cls({name: _fit(name, table) for name, table in tables.items()})

    def apply(self, tables: Mapping[PartyName, Table]) -> dict[PartyName, Tensor]:
        found = {}
        for name, preparation in self.preparations.items():
            try:
                found[name] = preparation.apply(tables[name])
            except BadInput as error:
                raise error.at(f"party {name!r}") from None
        return found


def split(parties: Mapping[PartyName, Any], X: Any) -> dict[PartyName, Table]:
    """Each party's columns of X: a data frame, an array with columns by number, or a table for each party."""
    if not isinstance(parties, Mapping) or not parties:
        raise BadInput('parties must say whose columns are whose, as {"bank": ["age", "income"], "shop": ["visits"]}')
    if isinstance(X, Mapping):
        if set(X) != set(parties):
            raise BadInput(f"X has tables of {_list_names(X)}, and the parties are {_list_names(parties)}")
        tables = {name: _table(name, X[name], columns) for name, columns in parties.items()}
    else:
        if any(columns is None for columns in parties.values()):
            raise BadInput("columns of None are for X by party; where X is one table, say each party's columns")
        tables = {name: _table(name, X, columns) for name, columns in parties.items()}
    counts = {name: len(next(iter(table.values()))) for name, table in tables.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise BadTable(f"all parties must hold the same rows in the same order: {said}")
    if not all(counts.values()):
        raise BadTable("X has no rows")
    return tables


def _table(party: PartyName, X: Any, given: Sequence[str | int] | str | int | slice | None) -> Table:
    columns = given if given is None or isinstance(given, slice) else _several(given)
    if hasattr(X, "columns") and hasattr(X, "iloc"):
        return _of_frame(party, X, columns)
    array = np.asarray(X)
    if array.ndim != 2:
        raise BadTable(f"party {party!r}: X has shape {array.shape}, expected [rows, columns]")
    numbers: Any = np.arange(array.shape[1])
    try:
        chosen = numbers if columns is None else numbers[columns]
    except (IndexError, TypeError):
        raise BadColumn(
            f"party {party!r}: X is an array of {array.shape[1]} columns, so columns are numbers from 0 to "
            f"{array.shape[1] - 1}; got {columns!r}"
        ) from None
    return _require_names(party, {f"column {number}": array[:, number] for number in chosen})


def _several(columns: Sequence[str | int] | str | int) -> list[str | int]:
    return [columns] if isinstance(columns, (str, int)) else list(columns)


def _of_frame(party: PartyName, X: Any, columns: Sequence[str | int] | slice | None) -> Table:
    there = list(X.columns)
    wanted = there[columns or slice(None)] if columns is None or isinstance(columns, slice) else list(columns)
    missing = [column for column in wanted if column not in there]
    if missing:
        near = did_you_mean(str(missing[0]), map(str, there))
        raise BadColumn(f"party {party!r}: X has no column {missing[0]!r}, it has {quote_names(there)}{near}")
    return _require_names(party, {str(column): X[column].array for column in wanted})


def _require_names(party: PartyName, table: Table) -> Table:
    if not table:
        raise BadColumn(f"party {party!r} has no columns")
    return table


def _fit(party: PartyName, table: Table) -> Preparation:
    """Columns of numbers are numbers, however few different ones there are; text and dates are guessed."""
    numbers = [name for name, values in table.items() if getattr(values.dtype, "kind", "O") in "iuf"]
    try:
        return Preparation.fit(table, Settings(types=dict.fromkeys(numbers, "number")))
    except BadInput as error:
        raise error.at(f"party {party!r}") from None


def _list_names(names: Any) -> str:
    return ", ".join(map(str, names))
