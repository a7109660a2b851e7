"""Who takes part in an alignment, what carries its messages, and what matches ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from thinwire.align.ids import Ids, RowNumbers
from thinwire.base.errors import BadParameter, Malformed
from thinwire.base.types import Kind, PartyName, Progress
from thinwire.engine.channel.base import Channel, Message

_NUMBERS = 1 << 32  # that messages of a kind may have


@dataclass(frozen=True, slots=True)
class Conversation:
    """Who this party is, who else takes part, and what carries the messages.

    Args:
        me: this party.
        label_party: its name.
        feature_parties: their names.
        channel: carries the messages.
        grouped: feature parties that hold owners of rows; all parties must agree on them.
        first: number of the backend's first message.
        buckets: number of buckets, of which the backend matches one.

    Raises:
        BadParameter: fewer than two parties, a name twice, or `me` is not among them.

    Examples:
        >>> tw.align.Conversation("bank", "shop", ["bank"], channel=None).parties
        ('bank', 'shop')
    """

    me: PartyName
    label_party: PartyName
    feature_parties: Sequence[PartyName]
    channel: Channel
    grouped: Sequence[PartyName] = ()  # feature parties that hold owners of rows; all parties know which
    first: int = 0  # the number of a backend's first message
    buckets: int = 1  # of which the backend matches one

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_parties", tuple(self.feature_parties))
        object.__setattr__(self, "grouped", tuple(party for party in self.feature_parties if party in self.grouped))
        parties = self.parties
        if len(parties) < 2 or len(set(parties)) != len(parties) or self.me not in parties:
            raise BadParameter(f"an alignment needs distinct parties that include {self.me!r}, got {parties}")

    @property
    def parties(self) -> tuple[PartyName, ...]:
        """In the job's order, the label party last."""
        return (*self.feature_parties, self.label_party)

    def name_backend(self, backend: str) -> str:
        """What both ends compare."""
        return f"{backend}, owners at {', '.join(self.grouped)}" if self.grouped else backend

    def for_bucket(self, number: int, buckets: int) -> Conversation:
        """What a backend says of one bucket of so many: its messages have numbers that no other bucket's have."""
        return replace(self, first=number * (_NUMBERS // buckets), buckets=buckets)

    def send(self, receiver: PartyName, kind: Kind, number: int, body: bytes) -> None:
        self.channel.send(Message(self.me, receiver, kind, self.first + number, body))

    def receive(self, sender: PartyName, kind: Kind, number: int) -> bytes:
        return bytes(self.channel.receive(sender, kind, self.first + number).body)

    def receive_exactly(self, sender: PartyName, kind: Kind, number: int, size: int) -> bytes:
        """A body of exactly this size."""
        body = self.receive(sender, kind, number)
        if len(body) != size:
            raise self.build_error(sender, f"{kind.name} {number} of {len(body)} bytes, expected {size}")
        return body

    def build_error(self, sender: PartyName, what: str) -> Malformed:
        return Malformed(f"alignment: {sender!r} sent {what}")


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
