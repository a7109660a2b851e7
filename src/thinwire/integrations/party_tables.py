"""Each party's columns of one table, or its own table, as its own preparation makes features of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadColumn, BadInput, BadTable
from thinwire.base.format import did_you_mean, quote_names
from thinwire.base.types import PartyName
from thinwire.data.prepare import Preparation, Settings
from thinwire.job.messages import at

Table = dict[str, Any]  # columns by name


def prepare(preparations: Mapping[PartyName, Preparation], tables: Mapping[PartyName, Table]) -> dict[str, Tensor]:
    """Each party's table by its own preparation, fitted on its own rows."""
    found = {}
    for name, preparation in preparations.items():
        with at(f"party {name!r}"):
            found[name] = preparation.apply(tables[name])
    return found


def fit_preparation(party: PartyName, table: Table, settings: Mapping[str, Any]) -> Preparation:
    """Columns of numbers are numbers, however few different ones there are; text and dates are guessed."""
    numbers = [name for name, values in table.items() if getattr(values.dtype, "kind", "O") in "iuf"]
    with at(f"party {party!r}"):
        return Preparation.fit(table, Settings(types=dict.fromkeys(numbers, "number"), **settings))


def select_rows(table: Table, rows: NDArray[np.int64]) -> Table:
    return {name: values[rows] for name, values in table.items()}


def check_party_names(parties: Any, label_party: PartyName) -> None:
    """The label party is one of the parties, or one more; a name that is almost one of theirs is a slip."""
    if not isinstance(parties, Mapping) or not parties:
        raise BadInput(
            'parties must map each party to its columns, as {"bank": ["age", "income"], "shop": ["visits"]}'
        )
    near = [name for name in parties if _is_misspelt(str(label_party), str(name))]
    if label_party not in parties and near:
        raise BadInput(
            f"label_party {label_party!r} is not one of the parties {quote_names(list(parties))}; did you mean "
            f"{near[0]!r}? To add a party without columns, choose a more distinct name"
        )


def _is_misspelt(name: str, known: str) -> bool:
    """Almost the same word; `bank_b` and `shop2` beside `bank_a` and `shop1` are others, counted on."""
    words, others = (re.findall(r"[a-z]+|\d+", text.lower()) for text in (name, known))
    return len(words) == len(others) and all(map(_is_near, words, others))


def _is_near(word: str, other: str) -> bool:
    if word == other or sorted(word) == sorted(other):
        return True
    counted_on = word[:-1] == other[:-1] or not word.isalpha()
    return not counted_on and SequenceMatcher(None, word, other).ratio() > 0.8


def count_columns(columns: Any) -> str:
    """In a few words, for people."""
    if columns is None or isinstance(columns, (str, int, slice)):
        return repr(columns)
    return repr(columns) if len(columns) <= 3 else f"{len(columns)} columns"


# Columns ----------------------------------------------------------------------------------------------------------


def refuse_sparse(X: Any) -> None:
    """Before anything else is asked of X: one kind of sparse matrix is a mapping too."""
    if hasattr(X, "toarray"):
        raise BadTable(
            "X is sparse, and sparse data is not supported; give X.toarray(), or a transformer's sparse_output=False "
            "(of a ColumnTransformer, sparse_threshold=0)"
        )


def check_table(X: Any) -> Any:
    """A data frame as it is, or anything else as an array [rows, columns]."""
    refuse_sparse(X)
    if is_frame(X):
        return X
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise BadTable(f"X is not a table: {error}") from None
    if array.ndim != 2:
        raise BadTable(
            f"X has shape {array.shape}, expected [rows, columns]. Reshape your data: X.reshape(-1, 1) for one "
            "column, X.reshape(1, -1) for one row"
        )
    if array.dtype.kind == "c":
        raise BadTable("Complex data not supported: X must hold numbers, text or dates")
    if not array.shape[1]:
        raise BadTable(f"X has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    return array


def is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "__getitem__")


def split(parties: Mapping[PartyName, Any], X: Any) -> dict[PartyName, Table]:
    """Each party's columns of X: a data frame, an array with columns by number, or a table for each party."""
    if isinstance(X, Mapping):
        _check_tables_of(parties, X)
    elif any(columns is None for columns in parties.values()):
        raise BadInput(
            "columns may be None only if X is given per party; if X is one table, list each party's columns"
        )
    tables = {
        name: _read_table(name, check_table(X[name]) if isinstance(X, Mapping) else X, columns)
        for name, columns in parties.items()
    }
    counts = {name: len(next(iter(table.values()))) for name, table in tables.items()}
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise BadTable(f"all parties must hold the same rows in the same order: {said}")
    if not all(counts.values()):
        raise BadTable("X has no rows")
    return tables


def _check_tables_of(parties: Mapping[PartyName, Any], X: Mapping[PartyName, Any]) -> None:
    if set(X) != set(parties):
        theirs, ours = (", ".join(map(str, names)) for names in (X, parties))
        other = next((name for name in X if name not in parties), "")
        near = did_you_mean(str(other), map(str, parties))
        raise BadInput(f"X has tables of {theirs}, and the parties are {ours}{near}")


def _read_table(party: PartyName, X: Any, given: Sequence[str | int] | str | int | slice | None) -> Table:
    columns = [given] if isinstance(given, (str, int)) else given
    columns = columns if columns is None or isinstance(columns, slice) else list(columns)
    table = _read_frame(party, X, columns) if is_frame(X) else _read_array(party, X, columns)
    if not table:
        raise BadColumn(f"party {party!r} has no columns")
    return table


def _read_array(party: PartyName, array: NDArray[Any], columns: Sequence[str | int] | slice | None) -> Table:
    numbers: Any = np.arange(array.shape[1])
    try:
        chosen = numbers if columns is None else numbers[columns]
    except (IndexError, TypeError):
        raise BadColumn(
            f"party {party!r}: X is an array of {array.shape[1]} columns, so columns are numbers from 0 to "
            f"{array.shape[1] - 1}; got {columns!r}"
        ) from None
    return {f"column {number}": array[:, number] for number in chosen}


def _read_frame(party: PartyName, X: Any, columns: Sequence[str | int] | slice | None) -> Table:
    there = list(X.columns)
    wanted = there[columns or slice(None)] if columns is None or isinstance(columns, slice) else list(columns)
    missing = [column for column in wanted if column not in there]
    if missing:
        near = did_you_mean(str(missing[0]), map(str, there))
        raise BadColumn(
            f"party {party!r}: X has no column {missing[0]!r}; the columns are {quote_names(there)}{near}"
        )
    twice = [column for column in wanted if there.count(column) > 1]
    if twice:
        raise BadColumn(f"party {party!r}: X has {there.count(twice[0])} columns named {twice[0]!r}; rename them")
    return {str(column): _read_column(X[column]) for column in wanted}


def _read_column(column: Any) -> Any:
    """Of pandas its own array, which knows dates, categories and missing values; of others a numpy array."""
    return column.array if hasattr(column, "array") else np.asarray(column)
