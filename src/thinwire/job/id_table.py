"""Ids of rows by which a user asks for them and scores are named; and which rows have no partner elsewhere.

There may be very many: texts are made when they are asked for, and sets of ids are compared some at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import add
from typing import Any, overload

import numpy as np
import xxhash

from thinwire.align import Alignment, Ids
from thinwire.align.ids import RowNumbers, id_text
from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName

_MOST = 5  # ids named in one message
_COMPARED = 1 << 18  # ids of a party that are compared at a time


@dataclass(frozen=True, eq=False)
class IdTexts(Sequence[str]):
    """Texts of some rows' ids, of one column after the other; as strings they would take five times the memory."""

    _parts: tuple[tuple[Ids, RowNumbers | None], ...]  # a column, and which of its rows; None: all

    @classmethod
    def of(cls, ids: Ids, rows: RowNumbers | None = None) -> IdTexts:
        return cls(((ids, rows),))

    @classmethod
    def join(cls, every: Iterable[IdTexts]) -> IdTexts:
        return cls(tuple(part for texts in every for part in texts._parts))

    @cached_property
    def _ends(self) -> RowNumbers:
        return np.cumsum([len(ids if rows is None else rows) for ids, rows in self._parts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __iter__(self) -> Iterator[str]:
        for ids, rows in self._parts:
            for text in ids.iterate(rows):
                yield text.decode()

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> list[str]: ...

    def __getitem__(self, place: int | slice) -> str | list[str]:
        places = np.arange(len(self))[place] if isinstance(place, slice) else np.array([range(len(self))[place]])
        found = self.take(places)
        return found if isinstance(place, slice) else found[0]

    def take(self, places: RowNumbers) -> list[str]:
        """The texts at these places, in this order."""
        found: list[str] = [""] * len(places)
        which = np.searchsorted(self._ends, places, side="right")
        for number in np.unique(which):
            ids, rows = self._parts[number]
            own = np.flatnonzero(which == number)
            inside = places[own] - (self._ends[number - 1] if number else 0)
            for place, text in zip(own.tolist(), ids.texts(inside if rows is None else rows[inside]), strict=True):
                found[place] = text.decode()
        return found


class IdIndex:
    """Finds ids by a hash, at 16 bytes a row; the texts themselves decide."""

    def __init__(self, texts: Sequence[str]) -> None:
        hashes = np.fromiter((_hash(text) for text in texts), np.uint64, len(texts))
        self._texts, self._order = texts, np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, text: str) -> int | None:
        """Its place; None where it is not there."""
        digest = np.uint64(_hash(text))
        first, last = (int(np.searchsorted(self._hashes, digest, side)) for side in ("left", "right"))
        return next((row for row in self._order[first:last].tolist() if self._texts[row] == text), None)

    def has_repeats(self) -> bool:
        """Is a text there twice?"""
        same = self._hashes[1:] == self._hashes[:-1]
        suspects = self._order[np.append(same, False) | np.append(False, same)] if len(same) else []
        return len({self._texts[row] for row in suspects}) != len(suspects)


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


class UnknownId(BadInput):
    """An id that no row of this party has."""


class OutsideAlignment(BadInput):
    """An id that this party has, but not all others."""


@dataclass(frozen=True)
class IdTable:
    """Ids of rows in the agreed order, of all that this party holds."""

    ids: Sequence[str]
    others: frozenset[str] = field(default=frozenset(), repr=False)
    held: tuple[Ids, ...] = field(default=(), repr=False)  # of whole tables

    @cached_property
    def _index(self) -> IdIndex:
        return IdIndex(self.ids)

    @cached_property
    def _outside(self) -> list[IdIndex]:
        return [IdIndex(IdTexts.of(every)) for every in self.held]

    def find(self, text: str) -> int | None:
        """The row of an id; None where none of these rows has it."""
        return self._index.find(text)

    def is_outside(self, text: str) -> bool:
        """Does this party hold an id that is not among these rows'?"""
        held = text in self.others or any(index.find(text) is not None for index in self._outside)
        return held and self.find(text) is None

    def texts(self, rows: RowNumbers) -> list[str]:
        """The ids of these rows."""
        return self.ids.take(rows) if isinstance(self.ids, IdTexts) else [self.ids[row] for row in rows.tolist()]

    def rows(self, asked: Iterable[Any]) -> RowNumbers:
        """The rows of these ids; refuses those that are not there, by id."""
        texts = [(id_text(one, place, "ids") or b"").decode() for place, one in enumerate(asked, 1)]
        found = [self.find(text) for text in texts]
        missing = [text for text, row in zip(texts, found, strict=True) if row is None]
        if missing:
            outside = [text for text in missing if self.is_outside(text)]
            if outside:
                raise OutsideAlignment(
                    f"{_quote_few(outside)}: not all parties hold a row with this id; align them first"
                )
            raise UnknownId(f"{_quote_few(missing)}: no row has this id")
        return np.array(found, np.int64)


@dataclass(frozen=True)
class UnmatchedRows:
    """Rows of one party that some other party does not hold, so that they get no score.

    An alignment tells a feature party which of its own ids are common, no more, and the label party also how many ids
    it shares with each. Who lacks an id is known beyond that where there is one other party, or where all tables are
    in one process.
    """

    rows: int
    of: int  # rows that the party holds
    missing_at: Mapping[PartyName, int] = field(default_factory=dict)  # ids that a party lacks, where that is known
    only_here: int | None = None  # ids that no other party has, where that is known

    @classmethod
    def outside_alignment(cls, alignment: Alignment) -> UnmatchedRows:
        """As one party knows it of its own rows."""
        of = alignment.sizes[alignment.me]
        rows, others = of - alignment.match_count, [name for name in alignment.parties if name != alignment.me]
        is_known = len(others) == 1 or not rows
        missing = dict.fromkeys(others, rows) if is_known else {}
        if alignment.pairwise is not None:
            missing = {name: of - count for name, count in alignment.pairwise.items()}
        return cls(rows, of, {name: count for name, count in missing.items() if count}, rows if is_known else None)

    def __add__(self, other: UnmatchedRows) -> UnmatchedRows:
        """Of two tables together."""
        missing = Counter(self.missing_at) + Counter(other.missing_at)
        alone = None if self.only_here is None or other.only_here is None else self.only_here + other.only_here
        return UnmatchedRows(self.rows + other.rows, self.of + other.of, dict(missing), alone)

    def describe(self, party: PartyName) -> str:
        """One sentence."""
        known = [f"{count} missing at {name}" for name, count in self.missing_at.items()]
        if self.only_here and len(known) > 1:
            known.append(f"{self.only_here} held only by {party}")
        why = ", ".join(known) or "missing at another party; an alignment does not tell which"
        return (
            f"{party}: {self.rows} of {self.of} rows have no match at the other parties and get no score (ids: {why})"
        )


def compare_ids(held: Mapping[PartyName, Collection[Any]]) -> dict[PartyName, UnmatchedRows]:
    """Of all parties' ids, where they are in one process."""
    every = {name: set(ids) for name, ids in held.items()}
    common: set[Any] = set.intersection(*every.values()) if every else set()
    found = {}
    for name, ids in every.items():
        outside, others = ids - common, [one for one in every if one != name]
        missing = {other: len(outside - every[other]) for other in others}
        alone = len(outside.difference(*(every[other] for other in others))) if others else 0
        known = {other: count for other, count in missing.items() if count}
        found[name] = UnmatchedRows(len(outside), len(ids), known, alone)
    return found


def compare_id_columns(held: Mapping[PartyName, Ids]) -> dict[PartyName, UnmatchedRows]:
    """The same of whole columns, some ids at a time: those whose hashes fall into one part."""
    count = -(-max(map(len, held.values()), default=0) // _COMPARED)
    if count <= 1:
        return compare_ids({name: list(ids.iterate()) for name, ids in held.items()})
    parts = {
        name: np.fromiter((xxhash.xxh3_64_intdigest(text) % count for text in ids.iterate()), np.uint16, len(ids))
        for name, ids in held.items()
    }
    every = [
        compare_ids({name: ids.texts(np.flatnonzero(parts[name] == number)) for name, ids in held.items()})
        for number in range(count)
    ]
    return add_unmatched(every)


def add_unmatched(every: Sequence[Mapping[PartyName, UnmatchedRows]]) -> dict[PartyName, UnmatchedRows]:
    """Of several tables, or parts of them, together."""
    found = {}
    for name in every[0]:
        total = reduce(add, (one[name] for one in every))
        missing = {other: total.missing_at[other] for other in every[0] if other in total.missing_at}
        found[name] = replace(total, missing_at=missing)
    return found


def _quote_few(ids: Sequence[str]) -> str:
    few = ", ".join(repr(text[:80]) for text in ids[:_MOST])
    return few if len(ids) <= _MOST else f"{few} and {len(ids) - _MOST} more"
