"""How two parties find out which ids they share; everything around it is the same for all ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from thinwire.align.conversation import Conversation
from thinwire.align.ids import Ids, RowNumbers
from thinwire.types import PartyName

__all__ = ["Backend", "Progress"]

Progress: TypeAlias = Callable[[int, int, str], None]  # ids done, of so many, and what is being done


class Backend(Protocol):
    """Matches the label party's ids with those of each feature party.

    In any protocol of this sort the feature party sends one value for each id of its own, in an order that it alone
    knows: points here, values of an oblivious function in RR22. So the two ends need to say no more than this: which
    place in that list each of the label party's ids has, and which row stands behind each place. A backend on, say,
    RR22 runs its rounds over `talk.send` and `talk.receive` (or takes the peers' addresses in its constructor and
    talks by itself), has a name that both ends compare, and is passed where `RistrettoBackend` is by default.
    """

    @property
    def name(self) -> str:
        """Protocol and parameters, in ASCII; both ends must have the same."""

    def match_as_label(
        self, talk: Conversation, ids: Ids, peer_ids: Mapping[PartyName, int], on_progress: Progress
    ) -> dict[PartyName, RowNumbers]:
        """For each feature party: the place of each of our rows in that party's list, -1 where it is not there."""

    def match_as_feature(self, talk: Conversation, ids: Ids, peer_ids: int, on_progress: Progress) -> RowNumbers:
        """The row of ours that stands at each place of the list that the label party saw."""
