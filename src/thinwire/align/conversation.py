"""A party's place in an alignment, and how its messages are taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.errors import BadParameter, Malformed
from thinwire.transport.base import Channel, Message
from thinwire.types import Kind, PartyName

__all__ = ["Conversation"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Who this party is, who else takes part, and what carries the messages. Messages of a kind are numbered."""

    me: PartyName
    label_party: PartyName
    feature_parties: Sequence[PartyName]
    channel: Channel

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature_parties", tuple(self.feature_parties))
        parties = self.parties
        if len(parties) < 2 or len(set(parties)) != len(parties) or self.me not in parties:
            raise BadParameter(f"an alignment needs different parties, {self.me!r} among them, got {parties}")

    @property
    def parties(self) -> tuple[PartyName, ...]:
        """In the job's order, the label party last."""
        return (*self.feature_parties, self.label_party)

    def send(self, receiver: PartyName, kind: Kind, number: int, body: bytes) -> None:
        self.channel.send(Message(self.me, receiver, kind, number, body))

    def receive(self, sender: PartyName, kind: Kind, number: int) -> bytes:
        return bytes(self.channel.receive(sender, kind, number).body)

    def receive_sized(self, sender: PartyName, kind: Kind, number: int, size: int) -> bytes:
        """A body of exactly this size."""
        body = self.receive(sender, kind, number)
        if len(body) != size:
            raise self.malformed(sender, f"{kind.name} {number} of {len(body)} bytes, expected {size}")
        return body

    def malformed(self, sender: PartyName, what: str) -> Malformed:
        return Malformed(f"alignment: {sender!r} sent {what}")
