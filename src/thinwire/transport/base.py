"""What a program needs from whatever carries its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from thinwire.transport.stopwatch import Stopwatch
from thinwire.types import Kind, PartyName, Round

__all__ = ["NO_TIMEOUT", "Channel", "Message", "TimedChannel", "Timeout"]


@dataclass(frozen=True, slots=True)
class Message:
    """One body from one party to another; (sender, receiver, kind, round) names it."""

    sender: PartyName
    receiver: PartyName
    kind: Kind
    round: Round
    body: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long to wait for a message; None: what the channel deems right."""

    seconds: float | None = None


NO_TIMEOUT = Timeout()


class Channel(Protocol):
    """One party's end of its links: blocking, counts bytes, knows no tensors."""

    def send(self, message: Message) -> None:
        """Hands the message over; does not wait until it is read."""

    def receive(self, sender: PartyName, kind: Kind, round: Round, timeout: Timeout = NO_TIMEOUT) -> Message:
        """The message with exactly this sender, kind and round; waits for it."""

    def ready(self, sender: PartyName, kind: Kind, round: Round) -> bool:
        """Whether `receive` would return at once."""

    def away(self, awaited: Sequence[tuple[PartyName, Kind, Round]]) -> bool:
        """Waits for these messages; True, at once, where a party is away and so one of them may be long in coming."""

    def untimed(self) -> AbstractContextManager[None]:
        """What is done in this block costs no time on the link's clock; for evaluations."""

    def worked(self, steps: int) -> None:
        """This party took `steps` update steps since the last call; for channels that keep a clock."""


class TimedChannel(Channel, Protocol):
    """One that notes what its party's time goes to."""

    @property
    def stopwatch(self) -> Stopwatch: ...
