"""What a listener or a dialler needs of whatever talks over its connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from thinwire.errors import ThinwireError

__all__ = ["Attachment", "Connection", "Line"]


class Connection(Protocol):
    """One attachment of a line to something that carries records; over for good once ended."""

    def end(self, why: str) -> None: ...


class Attachment(Protocol):
    """A line while it is connected: records out, records in."""

    def end(self, why: str) -> None: ...

    def outgoing(self) -> Iterator[bytes]:
        """Records to send, until the connection ends; for the thread that writes."""

    def incoming(self, record: bytes) -> None:
        """One record from the peer. Raises WireError on anything that cannot be; then the connection must end."""

    def silent_seconds(self) -> float: ...


class Line(Protocol):
    """This party's end of what it has to say to one peer; outlives connections."""

    def standing(self) -> dict[str, int]:
        """What to say when connecting."""

    def attach(self, connection: Connection, received: int, kept: int) -> Attachment: ...

    def fail(self, error: ThinwireError) -> None:
        """Nothing more will come."""
