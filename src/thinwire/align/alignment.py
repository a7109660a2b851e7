"""What a party knows after an alignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from thinwire.align.ids import Ids, RowNumbers
from thinwire.errors import BadIds
from thinwire.types import PartyName

__all__ = ["Alignment"]


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """The rows that all parties have, in an order that is the same at all of them."""

    me: PartyName
    label_party: PartyName
    parties: tuple[PartyName, ...]
    rows: RowNumbers  # of this party's table, from 0
    digest: str  # of the common ids in their order; the same at all parties
    sizes: Mapping[PartyName, int]  # ids of this party and of those it talked to
    pairwise: Mapping[PartyName, int] | None  # at the label party: ids in common with each of the others
    ids_digest: str  # of this party's own ids, all of them
    when: datetime  # UTC

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Alignment):
            return NotImplemented
        names = [name for name in self.__slots__ if name != "rows"]
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and np.array_equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.rows)

    def require_same_ids(self, ids: Ids) -> None:
        """Refuses a table whose ids, or their order, are not those that were aligned."""
        if ids.digest() != self.ids_digest:
            raise BadIds(
                f"the ids of {self.me!r} are not those that were aligned on {self.when:%Y-%m-%d %H:%M} UTC "
                f"({self.sizes[self.me]} then, {len(ids)} now); bring that table back, or align again"
            )
