"""Which rows train, and which are kept back: a keyed hash of each row's id decides, the same at every party."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.align.ids import RowNumbers
from thinwire.errors import BadInput
from thinwire.job.aligned import RowsOf, ids_of
from thinwire.job.row_ids import RowIds
from thinwire.job.schema import PartyEntry, SplitSection

__all__ = ["SplitRows", "fates", "split_rows"]

TRAINING, VALIDATION, TEST = 0, 1, 2
_TESTS = ("test_features", "test_labels", "test_ids", "test_alignment")


def fates(ids: Sequence[bytes], split: SplitSection) -> NDArray[np.int8]:
    """0 for training, 1 for validation, 2 for test. HMAC-SHA256 of the id as it is compared: NFC, trimmed, UTF-8."""
    key = split.key.encode()
    shares = np.array([int.from_bytes(hmac.digest(key, one, hashlib.sha256)[:8], "big") for one in ids], np.float64)
    shares /= 2.0**64
    found = np.full(len(ids), TRAINING, dtype=np.int8)
    found[shares < split.test + split.validation] = VALIDATION
    found[shares < split.test] = TEST
    return found


@dataclass(frozen=True, eq=False)
class SplitRows:
    """Rows of one table: those that train, and those that a run is judged by."""

    training: RowNumbers
    test: RowNumbers | None
    of: int  # rows of the table
    digest: str  # of all common rows, in their order, and of the split

    def row_ids(self) -> RowIds:
        return RowIds(self.digest, len(self.training))

    def test_row_ids(self) -> RowIds | None:
        return None if self.test is None else RowIds(self.digest, len(self.test))


def split_rows(path: str, section: PartyEntry, folder: Path, split: SplitSection) -> SplitRows:
    """Refuses test rows that come from elsewhere, and a split that leaves nothing on one side."""
    _require_one_source(path, section, split)
    source = RowsOf.training(path, section)
    ids = ids_of(source, folder)
    alignment = source.read(folder)
    rows = np.arange(len(ids)) if alignment is None else alignment.rows
    found = fates(ids.texts(rows), split)
    training, test = rows[found == TRAINING], rows[found == (TEST if split.evaluate == "test" else VALIDATION)]
    judged = bool(getattr(split, split.evaluate))
    if not len(training) or (judged and not len(test)):
        raise BadInput(
            f"job.split: of {len(rows)} rows {len(training)} are left for training and {len(test)} for "
            f"{split.evaluate}; use more rows, or other shares"
        )
    common = ids.digest() if alignment is None else alignment.digest
    told = f"{common} {split.test!r} {split.validation!r} {split.key} {split.evaluate}"
    return SplitRows(training, test if judged else None, len(ids), hashlib.sha256(told.encode()).hexdigest())


def _require_one_source(path: str, section: PartyEntry, split: SplitSection) -> None:
    given = next((field for field in _TESTS if getattr(section, field, None) is not None), None)
    if given is not None:
        raise BadInput(f"{path}.{given}: job.split takes the test rows from the same table; leave one of the two out")
    if split.test + split.validation >= 1:
        raise BadInput("job.split: test and validation together must leave some rows for training")
    if split.evaluate == "validation" and not split.validation:
        raise BadInput("job.split.evaluate is 'validation', but job.split.validation is 0")
