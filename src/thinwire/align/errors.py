"""What can go wrong in an alignment, below `ThinwireError`.

::

    ThinwireError
      NoOverlap                the parties have no id in common
      TooLittleOverlap         fewer ids in common than a party asks for
      AlignmentsDiffer         the parties ended with different rows
      WorkersFailed            the processes that compute have ended
"""

from __future__ import annotations

from collections.abc import Sequence

from thinwire.errors import ThinwireError
from thinwire.types import PartyName

__all__ = ["AlignmentsDiffer", "NoOverlap", "TooLittleOverlap", "WorkersFailed"]


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
