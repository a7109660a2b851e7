"""A link as people write it: `100mbit,40ms` is a rate and a round trip."""

from __future__ import annotations

import re

from thinwire.base.errors import BadInput
from thinwire.engine.channel.link import Link

_MBIT = {"k": 1e-3, "m": 1.0, "g": 1e3}
_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_RATE = re.compile(r"(\d+(?:\.\d+)?) ?([kmg])(?:bit|bit/s|bits/s|bps)", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(us|ms|s)", re.IGNORECASE)


def parsed_link(text: str) -> Link:
    """RATE,RTT: bits a second both ways, and the round trip, of which the link's latency is half."""
    rate_text, _, time_text = (part.strip() for part in text.partition(","))
    rate, time = _RATE.fullmatch(rate_text), _TIME.fullmatch(time_text)
    if rate is None or time is None or not float(rate[1]):
        raise BadInput(
            f"--link: write RATE,RTT, bits a second in kbit, mbit or gbit and the round trip in us, ms or s, as in "
            f"--link 100mbit,40ms; got {text!r}"
        )
    round_trip_ms = float(time[1]) * _MS[time[2].lower()]
    return Link(bandwidth_mbit=float(rate[1]) * _MBIT[rate[2].lower()], latency_ms=round_trip_ms / 2)


def link_said(link: Link) -> str:
    """In words, with both directions where they differ."""
    down = (
        link.bandwidth_mbit if link.down_bandwidth_mbit is None else link.down_bandwidth_mbit,
        link.latency_ms if link.down_latency_ms is None else link.down_latency_ms,
    )
    rate = f"{link.bandwidth_mbit:g} Mbit/s" + ("" if down[0] == link.bandwidth_mbit else f" up, {down[0]:g} down")
    others = f", other links for {', '.join(link.parties)}" if link.parties else ""
    return f"{rate}, round trip {link.latency_ms + down[1]:g} ms{others}"
