"""What carries the bytes between parties. Knows no tensors and never imports torch."""

from thinwire.transport.base import (
    NO_TIMEOUT,
    Channel,
    Deadlock,
    Message,
    Stopped,
    TimedOut,
    Timeout,
    TransportError,
    Wait,
)
from thinwire.transport.ledger import Count, Ledger, Traffic
from thinwire.transport.link import Link, LinkClock
from thinwire.transport.simulated import SimulatedChannel, Simulation

__all__ = [
    "NO_TIMEOUT",
    "Channel",
    "Count",
    "Deadlock",
    "Ledger",
    "Link",
    "LinkClock",
    "Message",
    "SimulatedChannel",
    "Simulation",
    "Stopped",
    "TimedOut",
    "Timeout",
    "Traffic",
    "TransportError",
    "Wait",
]
