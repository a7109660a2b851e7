"""A virtual clock: how long a run would take over a slow link, without waiting for it.

    arrival = max(sent, pipe free) + bits / bandwidth + latency

Every sender owns one outgoing pipe, so what the label party sends to many parties queues up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from numbers import Real
from typing import Any, NamedTuple

from thinwire.base.errors import BadParameter, BadState
from thinwire.base.types import PartyName


@dataclass(frozen=True)
class Link:
    """The link between a feature party and the label party: up is towards the label party.

    Latency is one way: a round trip of 20 ms is `latency_ms=10`. The downlink equals the uplink unless
    given. `compute_ms` is what one update step costs; None charges the time that programs really ran.
    `parties` holds whole links for single feature parties; only a missing `compute_ms` comes from here.

    Args:
        bandwidth_mbit: of the uplink, in Mbit/s.
        latency_ms: of the uplink, one way, in milliseconds.
        down_bandwidth_mbit: of the downlink; the uplink's unless given.
        down_latency_ms: of the downlink; the uplink's unless given.
        compute_ms: charged for each update step; None charges the time that was really taken.
        parties: links of single feature parties, by name.

    Raises:
        BadParameter: a rate is not positive, a time negative, or a party's link has parties of its own.

    Examples:
        >>> tw.Link(bandwidth_mbit=100, latency_ms=10, parties={"bank": tw.Link(bandwidth_mbit=10)}).latency_ms
        10
    """

    bandwidth_mbit: float = inf
    latency_ms: float = 0.0
    down_bandwidth_mbit: float | None = None
    down_latency_ms: float | None = None
    compute_ms: float | None = None
    parties: Mapping[PartyName, Link] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check("bandwidth_mbit", self.bandwidth_mbit, rate=True)
        _check("latency_ms", self.latency_ms)
        if self.down_bandwidth_mbit is not None:
            _check("down_bandwidth_mbit", self.down_bandwidth_mbit, rate=True)
        for name in ("down_latency_ms", "compute_ms"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name))
        object.__setattr__(self, "parties", dict(self.parties))
        for party, link in self.parties.items():
            if not isinstance(link, Link):
                raise BadParameter(f"Link: parties[{party!r}] must be a Link, got {link!r}")
            if link.parties:
                raise BadParameter(f"Link: parties[{party!r}] must not have parties of its own")


class _Path(NamedTuple):
    bits_per_second: float
    latency: float  # seconds


class LinkClock:
    """One virtual clock per party, in seconds since the start of the run."""

    def __init__(self, link: Link, label_party: PartyName, names: Sequence[PartyName]) -> None:
        features = [name for name in names if name != label_party]
        for name in link.parties:
            if name not in features:
                raise BadParameter(f"Link: parties names {name!r}; the feature parties are {', '.join(features)}")
        self._label_party = label_party
        links = {name: link.parties.get(name, link) for name in names}
        self._up = {name: _up(links[name]) for name in features}
        self._down = {name: _down(links[name]) for name in features}
        self._compute_ms = {
            name: link.compute_ms if of.compute_ms is None else of.compute_ms for name, of in links.items()
        }
        self._now = dict.fromkeys(names, 0.0)
        self._pipe_free = dict.fromkeys(names, 0.0)

    def send(self, sender: PartyName, receiver: PartyName, size: int) -> float:
        """When a frame of `size` bytes arrives that the sender gives to its pipe now."""
        # Between two feature parties, the sender's uplink is taken as the narrow part.
        path = self._down[receiver] if sender == self._label_party else self._up[sender]
        self._pipe_free[sender] = self.pipe_free(sender) + size * 8 / path.bits_per_second
        return self._pipe_free[sender] + path.latency

    def pipe_free(self, sender: PartyName) -> float:
        """From when on the sender's pipe takes another frame."""
        return max(self._now[sender], self._pipe_free[sender])

    def receive(self, receiver: PartyName, arrival: float) -> None:
        """The receiver waited for a frame that arrived then."""
        self._now[receiver] = max(self._now[receiver], arrival)

    def compute(self, party: PartyName, seconds: float) -> None:
        """The party computed that long."""
        self._now[party] += seconds

    def step_seconds(self, party: PartyName) -> float | None:
        """What one update step costs; None: what it really takes."""
        compute_ms = self._compute_ms[party]
        return None if compute_ms is None else compute_ms / 1e3

    def now(self, party: PartyName) -> float:
        return self._now[party]

    def latest(self) -> float:
        """How long the run has taken so far: the clock of the party that is furthest."""
        return max(self._now.values())

    def state(self) -> dict[str, Any]:
        """Plain data for `load`, by party; each part changes only while that party runs."""
        return {name: {"now": self._now[name], "pipe_free": self._pipe_free[name]} for name in sorted(self._now)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken, with the same parties."""
        if state.keys() != self._now.keys():
            raise BadState(
                f"link clock: the saved parties are {', '.join(sorted(state))}; "
                f"these are {', '.join(sorted(self._now))}"
            )
        try:
            now = {name: float(state[name]["now"]) for name in self._now}
            pipe_free = {name: float(state[name]["pipe_free"]) for name in self._now}
        except (KeyError, TypeError, ValueError) as error:
            raise BadState(f"link clock: the saved state does not fit ({error!r})") from None
        self._now, self._pipe_free = now, pipe_free


def _up(link: Link) -> _Path:
    return _Path(link.bandwidth_mbit * 1e6, link.latency_ms / 1e3)


def _down(link: Link) -> _Path:
    bandwidth_mbit = link.bandwidth_mbit if link.down_bandwidth_mbit is None else link.down_bandwidth_mbit
    latency_ms = link.latency_ms if link.down_latency_ms is None else link.down_latency_ms
    return _Path(bandwidth_mbit * 1e6, latency_ms / 1e3)


def _check(name: str, value: object, rate: bool = False) -> None:
    """A rate is above 0 and may be infinite; a time is finite and at least 0."""
    wanted = "a number above 0" if rate else "a finite number, at least 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadParameter(f"Link: {name} must be {wanted}, got {value!r}")
    number = float(value)
    if not (number > 0 if rate else isfinite(number) and number >= 0):
        raise BadParameter(f"Link: {name} must be {wanted}, got {value!r}")
