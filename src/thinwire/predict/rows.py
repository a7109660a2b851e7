"""Rows to score that a user names: in other files with the same columns, or by numbers such as 0-99,250,300-."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire.align import Ids
from thinwire.base.errors import BadInput
from thinwire.base.format import quote_names
from thinwire.data.prepare import Preparation
from thinwire.data.readers.features import Values, compare_columns, read_features
from thinwire.data.readers.tables import read_cells
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


def digest_parts(*parts: str | Tensor) -> str:
    """SHA-256 over texts and tables, one behind the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part.contiguous().numpy().data)
    return digest.hexdigest()


def read_new_features(section: PartyEntry, folder: Path, file: Path, run: Path) -> Any:
    """The columns that the section names, of another file of the same kind; refuses other columns or shapes.

    Where the section prepares its table, they are prepared as in `run`, the folder of the trained model.
    """
    if section.features is None:
        raise BadInput(f"{section.path} has no features; it takes part without them")
    if section.prepare is not None:
        return _prepared(section, section.features, file, run)
    trained = _read(f"{section.path}.features", section.features, folder / section.features.file)
    new = _read(f"--features {section.name}", section.features, file)
    what, known = compare_columns(trained.names, new.names), quote_names(trained.names or ())
    if what is None and new.shape != trained.shape:
        what, known = f"has rows of shape {new.shape}", str(trained.shape)
    if what is not None:
        raise BadInput(f"--features {section.name}: {file} {what}; the model was trained on {known}")
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
    rows = np.concatenate([np.arange(some.start, some.stop) for some in read_row_ranges(text, count)])
    if len(np.unique(rows)) != len(rows):
        raise BadInput(f"--rows {text!r} names a row twice")
    return rows


def read_row_ranges(text: str, count: int | None) -> list[range]:
    """In that order; where nobody knows how many rows there are, a range has both its ends."""
    found = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        is_open = bool(dash) and not last
        if not first.isdecimal() or not (last or "0").isdecimal() or max(len(first), len(last)) > 18:
            raise BadInput(f"--rows {part.strip()!r}: write row numbers from 0 and ranges, such as 3,10-19,90-")
        if is_open and count is None:
            raise BadInput(f"--rows {part.strip()!r}: write the last row of the range too, such as 10-19")
        rows = range(int(first), (count or 0) if is_open else int(last or first) + 1)
        if count is not None and max(rows.start, rows.stop - 1) >= count:
            raise BadInput(f"--rows {part.strip()!r}: there are {count} rows, numbered from 0 to {count - 1}")
        if not rows:
            raise BadInput(f"--rows {part.strip()!r}: a range goes from the lower number to the higher")
        found.append(rows)
    return found
