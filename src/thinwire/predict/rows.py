"""Rows to score that a user names: in other files with the same columns, or by numbers such as 0-99,250,300-."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.align import Ids
from thinwire.base.errors import BadInput
from thinwire.data.prepare import Preparation
from thinwire.data.readers.cells import read_cells
from thinwire.data.readers.features import Values, read_features
from thinwire.job.messages import within
from thinwire.job.row_selection import RowSet, read_ids
from thinwire.job.schema import PartyEntry, Source
from thinwire.storage import layout
from thinwire.storage.encryption_key import open_folder


def resolve_row_set(which: RowSet | None, tests: int) -> RowSet:
    """Test rows where there are any, unless told otherwise."""
    if which is RowSet.TEST and not tests:
        raise BadInput("--table test: the job has no test rows; give --table training")
    if not tests:
        return RowSet.TRAINING
    return which or RowSet.TEST


def join_tables(which: RowSet, training: Any, test: Any) -> Tensor:
    """These rows of a party's tables, training rows first."""
    parts = {RowSet.TRAINING: [training], RowSet.TEST: [test], RowSet.ALL: [training, test]}[which]
    return torch.cat([torch.as_tensor(part) for part in parts])


def read_new_features(section: PartyEntry, path: str, folder: Path, file: Path, run: Path) -> Any:
    """The columns that the section names, of another file of the same kind; refuses other columns or shapes.

    Where the section prepares its table, they are prepared as in `run`, the folder of the trained model.
    """
    if section.features is None:
        raise BadInput(f"{path} has no features; it takes part without them")
    if section.prepare is not None:
        return _prepared(section, section.features, file, run)
    trained = _read(f"{path}.features", section.features, folder / section.features.file)
    new = _read(f"--features {section.name}", section.features, file)
    if new.columns is not None and trained.columns is not None and new.columns != trained.columns:
        missing = [name for name in trained.columns if name not in new.columns]
        extra = [name for name in new.columns if name not in trained.columns]
        what = f"lacks {missing}" if missing else f"has {extra} too" if extra else "has them in another order"
        raise BadInput(f"--features {section.name}: {file} {what}; the model was trained on {list(trained.columns)}")
    if new.array.shape[1:] != trained.array.shape[1:]:
        raise BadInput(
            f"--features {section.name}: {file} has rows of shape {list(new.array.shape[1:])}, the model was "
            f"trained on {list(trained.array.shape[1:])}"
        )
    return new.array


def _prepared(section: PartyEntry, source: Source, file: Path, run: Path) -> Tensor:
    kept = layout.metadata_file(run, section.name, "preparation")
    if not kept.exists():
        raise BadInput(f"{run} does not hold how {section.name!r} prepared its table: {kept.name} is missing")
    preparation = Preparation.from_json(open_folder(run).read(kept))
    with within(f"--features {section.name}"):
        return preparation.apply(read_cells(file, list(preparation.sources), (), source.delimiter or ","))


def read_new_ids(section: PartyEntry, features: Path | None, ids: Path | None) -> Ids | None:
    """Their ids: of `ids`, or of the features' file where the section keeps both in one; None where it has none."""
    if section.ids is None:
        return None
    together = section.features is not None and section.ids.file == section.features.file
    file = ids or (features if together else None)
    if file is None:
        raise BadInput(f"--ids {section.name}: say which file holds the ids of the new rows")
    with within(f"--ids {section.name}"):
        return read_ids(file, section.ids)


def _read(where: str, source: Source, file: Path) -> Values:
    with within(where):
        return read_features(file, source.key, source.columns, source.all_but or (), source.delimiter or ",")


RowNumbers = npt.NDArray[np.int64]


def parse_row_numbers(text: str, count: int) -> RowNumbers:
    """The rows of "3,10-19,90-" of a table of `count` rows, in that order; each once."""
    found: list[RowNumbers] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (last and not last.isdecimal()) or len(first) > 18 or len(last) > 18:
            raise BadInput(f"--rows {part.strip()!r}: write row numbers from 0 and ranges, such as 3,10-19,90-")
        begin = int(first)
        end = (int(last) if last else count - 1) if dash else begin
        if begin >= count or end >= count:
            raise BadInput(f"--rows {part.strip()!r}: there are {count} rows, numbered from 0 to {count - 1}")
        if end < begin:
            raise BadInput(f"--rows {part.strip()!r}: a range goes from the lower number to the higher")
        found.append(np.arange(begin, end + 1))
    rows = np.concatenate(found)
    if len(np.unique(rows)) != len(rows):
        raise BadInput(f"--rows {text!r} names a row twice")
    return rows
