"""The rows that can be asked for, in the order that all parties agreed on, and their ids where they are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.align import Ids
from thinwire.align.ids import id_text
from thinwire.errors import BadInput
from thinwire.job.aligned import RowsOf, ids_of
from thinwire.job.fates import split_rows
from thinwire.job.schema import PartyEntry, SplitSection

__all__ = ["IdTable", "OutsideAlignment", "UnknownId", "Which", "ids_in_order"]

_SHOWN = 5  # ids named in one message


class Which(StrEnum):
    """Which of a job's rows."""

    TEST = "test"
    TRAINING = "training"
    ALL = "all"  # training rows, then test rows


class UnknownId(BadInput):
    """An id that no row of this party has."""


class OutsideAlignment(BadInput):
    """An id that this party has, but not all others."""


@dataclass(frozen=True)
class IdTable:
    """Ids of rows in the agreed order; `outside` are those that this party holds and some other does not."""

    ids: Sequence[str]
    outside: frozenset[str] = field(default=frozenset(), repr=False)

    @cached_property
    def _places(self) -> Mapping[str, int]:
        return {text: row for row, text in enumerate(self.ids)}

    def rows(self, asked: Iterable[Any]) -> npt.NDArray[np.int64]:
        """The rows of these ids; refuses those that are not there, by id."""
        texts = [(id_text(one, place, "ids") or b"").decode() for place, one in enumerate(asked, 1)]
        places = self._places
        missing = [text for text in texts if text not in places]
        if missing:
            outside = [text for text in missing if text in self.outside]
            if outside:
                raise OutsideAlignment(f"{_shown(outside)}: not all parties hold a row of this id; align them first")
            raise UnknownId(f"{_shown(missing)}: no row has this id")
        return np.fromiter((places[text] for text in texts), np.int64, len(texts))


def ids_in_order(
    section: PartyEntry, path: str, folder: Path, which: Which, split: SplitSection | None = None
) -> IdTable | None:
    """A party's ids of these rows as its section names them; None where it names none."""
    if split is not None:
        return _divided(section, path, folder, which, split)
    kinds = {Which.TRAINING: [RowsOf.training], Which.TEST: [RowsOf.test], Which.ALL: [RowsOf.training, RowsOf.test]}
    parts = [_one(kind(path, section), folder) for kind in kinds[which]]
    if any(part is None for part in parts):
        return None
    ids = [text for part in parts if part is not None for text in part.ids]
    if len(set(ids)) != len(ids):
        return None  # the same id among training and test rows: a row number says which is meant
    outside = frozenset().union(*(part.outside for part in parts if part is not None))
    return IdTable(ids, outside - set(ids))


def _divided(section: PartyEntry, path: str, folder: Path, which: Which, split: SplitSection) -> IdTable:
    """Training and test rows of one table; those that are neither have no score."""
    every = _all_texts(ids_of(RowsOf.training(path, section), folder))
    found = split_rows(path, section, folder, split)
    tests = [] if found.test is None else found.test.tolist()
    rows = {Which.TRAINING: found.training.tolist(), Which.TEST: tests}.get(which, found.training.tolist() + tests)
    ids = [every[row] for row in rows]
    return IdTable(ids, frozenset(every) - set(ids))


def _one(rows: RowsOf, folder: Path) -> IdTable | None:
    if rows.ids is None:
        return None
    every = _all_texts(ids_of(rows, folder))
    alignment = rows.read(folder)
    if alignment is None:
        return IdTable(every)
    shared = [every[row] for row in alignment.rows.tolist()]
    return IdTable(shared, frozenset(every) - set(shared))


def _all_texts(ids: Ids) -> list[str]:
    return [text.decode() for text in ids.texts(np.arange(len(ids)))]


def _shown(ids: Sequence[str]) -> str:
    few = ", ".join(repr(text[:80]) for text in ids[:_SHOWN])
    return few if len(ids) <= _SHOWN else f"{few} and {len(ids) - _SHOWN} more"
