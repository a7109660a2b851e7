"""On which terms a party aligns, and what can go wrong, below `ThinwireError`.

::

    ThinwireError
      NoOverlap                the parties have no id in common
      TooLittleOverlap         fewer ids in common than a party asks for
      AlignmentsDiffer         the parties ended with different rows
      WorkersFailed            the processes that compute have ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from thinwire.base.errors import BadParameter, ThinwireError
from thinwire.base.types import PartyName


class NoOverlap(ThinwireError):
    """Not one id is held by all parties."""


class TooLittleOverlap(ThinwireError):
    """Fewer ids are in common than some party asks for; nobody was told which."""

    def __init__(self, what: str, refusing: Sequence[PartyName], needed: int) -> None:
        self.refusing = tuple(refusing)
        self.needed = needed  # rows, by this party's own min_overlap
        super().__init__(
            f"{what}, too few for {', '.join(map(repr, refusing))} (min_overlap; this party asks for {needed}), so "
            "nobody was told which rows they are. Bring more rows, or agree on a lower min_overlap"
        )


class AlignmentsDiffer(ThinwireError):
    """The rows of these parties do not fit the label party's; none may be used."""

    def __init__(self, parties: Sequence[PartyName]) -> None:
        self.parties = tuple(parties)
        super().__init__(
            f"the rows of {', '.join(map(repr, parties))} are not those of the label party; align again, with the "
            "same version of thinwire and of Python at all parties"
        )


class WorkersFailed(ThinwireError):
    """A worker process could not start, or was ended by the system."""


_MOST_IDS = 1 << 31  # rounds of messages have 32 bits, and a party's tags must fit into memory


@dataclass(frozen=True, slots=True)
class Terms:
    """`min_overlap`: so many rows at least (a whole number), or this fraction of this party's rows (a float).

    It decides whether rows are told, not what the label party learns: that one has seen every pairwise overlap by
    then. Where the set sizes alone show that it cannot be met, nobody sends a single point.
    """

    min_overlap: int | float = 1
    max_peer_ids: int = 100_000_000

    def __post_init__(self) -> None:
        rows = self.min_overlap
        fits = isinstance(rows, int) and rows >= 1 and not isinstance(rows, bool)
        if not fits and not (isinstance(rows, float) and 0 < rows <= 1):
            raise BadParameter(
                f"min_overlap must be a whole number of rows, 1 at least, or a fraction of this party's rows above "
                f"0.0 and up to 1.0, got {rows!r}"
            )
        most = self.max_peer_ids
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= _MOST_IDS:
            raise BadParameter(f"max_peer_ids must be a whole number from 1 to {_MOST_IDS}, got {most!r}")

    def minimum_rows(self, own: int) -> int:
        """Of a party that has so many rows of its own."""
        if isinstance(self.min_overlap, int):
            return self.min_overlap
        return ceil(Fraction(str(self.min_overlap)) * own)  # 0.1 is a tenth, as it is written


ANY_OVERLAP = Terms()
