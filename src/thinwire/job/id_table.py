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
from numpy.typing import NDArray

from thinwire.align import Alignment, Ids
from thinwire.align.ids import RowNumbers, id_text
from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName

_MOST = 5  # ids named in one message
_COMPARED = 1 << 18  # ids of a party that are compared at a time
_FEW = 1 << 18  # ids that a dictionary may hold


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
    """Finds ids: few by a dictionary; many by a hash, at 16 bytes a row, and then the texts themselves decide."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    @cached_property
    def _places(self) -> Mapping[str, int] | None:
        few = len(self._texts) <= _FEW
        return {text: place for place, text in enumerate(self._texts)} if few else None

    @cached_property
    def _sorted(self) -> tuple[NDArray[np.uint64], RowNumbers]:
        """All hashes in order, and whose they are."""
        hashes = _hash(self._texts)
        order = np.argsort(hashes, kind="stable")
        return hashes[order], order

    def find(self, texts: Sequence[str]) -> RowNumbers:
        """The place of each; -1 for one that is not there."""
        if self._places is not None:
            return np.fromiter((self._places.get(text, -1) for text in texts), np.int64, len(texts))
        every, order = self._sorted
        hashes, found = _hash(texts), np.full(len(texts), -1, np.int64)
        at, asked = np.searchsorted(every, hashes), np.arange(len(texts))
        while len(asked):  # again only for those whose hash is another text's too
            asked = asked[at[asked] < len(every)]
            asked = asked[every[at[asked]] == hashes[asked]]
            places = order[at[asked]]
            pairs = zip(asked.tolist(), _take(self._texts, places), strict=True)
            same = np.array([texts[place] == text for place, text in pairs], bool)
            found[asked[same]] = places[same]
            asked = asked[~same]
            at[asked] += 1
        return found

    def has_repeats(self) -> bool:
        """Is a text there twice?"""
        hashes, order = self._sorted
        same = hashes[1:] == hashes[:-1]
        suspects = order[np.append(same, False) | np.append(False, same)] if len(same) else []
        return len({self._texts[row] for row in suspects}) != len(suspects)


def _hash(texts: Sequence[str]) -> NDArray[np.uint64]:
    return np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in texts), np.uint64, len(texts))


def _take(texts: Sequence[str], places: RowNumbers) -> list[str]:
    return texts.take(places) if isinstance(texts, IdTexts) else [texts[place] for place in places.tolist()]


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

    def find(self, texts: Sequence[str]) -> RowNumbers:
        """The row of each id; -1 where none of these rows has it."""
        return self._index.find(texts)

    def find_outside(self, texts: Sequence[str]) -> list[str]:
        """Those that this party holds, but none of these rows has."""
        held = np.array([text in self.others for text in texts], bool)
        for index in self._outside:
            held |= index.find(texts) >= 0
        return [texts[place] for place in np.flatnonzero(held & (self.find(texts) < 0)).tolist()]

    def texts(self, rows: RowNumbers) -> list[str]:
        """The ids of these rows."""
        return _take(self.ids, rows)

    def rows(self, asked: Iterable[Any]) -> RowNumbers:
        """The rows of these ids; refuses those that are not there, by id."""
        texts = [(id_text(one, place, "ids") or b"").decode() for place, one in enumerate(asked, 1)]
        found = self.find(texts)
        missing = [texts[place] for place in np.flatnonzero(found < 0)]
        if missing:
            outside = self.find_outside(missing)
            if outside:
                raise OutsideAlignment(
                    f"{_quote_few(outside)}: not all parties hold a row with this id; align them first"
                )
            raise UnknownId(f"{_quote_few(missing)}: no row has this id")
        return found


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
