"""What can go wrong between parties, below `ThinwireError`.

::

    ThinwireError
      TransportError           a message that cannot be sent or received as asked
        Deadlock                 every party waits for another one
        TimedOut                 a peer's message did not come in time
        Stopped                  this program was stopped because of another one, or of Ctrl-C
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from thinwire.errors import ThinwireError
from thinwire.types import Kind, PartyName, Round

__all__ = ["Deadlock", "Stopped", "TimedOut", "TransportError", "Wait"]


class Wait(NamedTuple):
    """A party that waits for a message."""

    party: PartyName
    sender: PartyName
    kind: Kind
    round: Round


class TransportError(ThinwireError):
    """A message cannot be sent or received as asked."""


class Deadlock(TransportError):
    """Nobody can move; `waits` holds who waits for what."""

    def __init__(self, waits: Sequence[Wait], ended: Collection[PartyName] = ()) -> None:
        self.waits = tuple(waits)
        told = (
            f"{wait.party!r} waits for {wait.kind.name} of round {wait.round} from {wait.sender!r}"
            + (", which has ended" if wait.sender in ended else "")
            for wait in waits
        )
        super().__init__("nobody can move: " + "; ".join(told))


class TimedOut(TransportError):
    """The peer's message did not come in time."""

    def __init__(self, peer: PartyName, kind: Kind, round: Round, seconds: float) -> None:
        self.peer = peer
        self.kind = kind
        self.round = round
        self.seconds = seconds
        super().__init__(
            f"{peer!r} sent no {kind.name} of round {round} within {seconds:g} s; it may be down, stalled "
            "or behind a slow link"
        )


class Stopped(TransportError):
    """This program was stopped from outside; it did nothing wrong itself."""
