"""An experiment's data: which set, cut how, how many rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.job.registry import call, look_up
from thinwire.lab.datasets import DATA_SETS, load_split
from thinwire.lab.datasets.vertical import (
    ColumnsByCount,
    ColumnsByName,
    ColumnsByPattern,
    Halves,
    Quadrants,
    Split,
    VerticalData,
    Views,
)
from thinwire.lab.papers.experiment import Experiment

_SPLITS: dict[str, Callable[..., Split]] = {
    "quadrants": Quadrants,
    "halves": Halves,
    "views": Views,
    "columns_by_count": ColumnsByCount,
    "columns_by_name": ColumnsByName,
    "columns_by_pattern": ColumnsByPattern,
}


def loaded(experiment: Experiment, folder: str | None) -> VerticalData:
    """The rows of this size, the same for every seed; a missing file is said with where to get it."""
    if experiment.about.data not in DATA_SETS:
        raise BadInput(
            f"{experiment.name}: there is no reader for its data set, {experiment.about.data}, so that the file only "
            "states the settings; docs/data.md says how a reader is added"
        )
    return load_split(
        experiment.about.data,
        split_of(experiment.about.split),
        None if folder is None else Path(folder),
        rows=experiment.rows,
        test_rows=experiment.test_rows,
    )


def is_here(name: str, folder: str | None) -> bool:
    """Are the data set's files in the folder? A few rows are read to see."""
    try:
        load_split(name, None, None if folder is None else Path(folder), rows=20, test_rows=20)
    except BadInput:
        return False
    return True


def split_of(given: str | Mapping[str, Any] | None) -> Split | None:
    """A split by its name, or a table of the name and its arguments; None is the data set's usual one."""
    if given is None:
        return None
    table = {"name": given} if isinstance(given, str) else given
    name, arguments = look_up("experiment.split", table, "name", _SPLITS)
    return call("experiment.split", _SPLITS[name], name, arguments)
