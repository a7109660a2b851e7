"""Links as people write them."""

from __future__ import annotations

import pytest

from thinwire.base.errors import BadInput
from thinwire.engine.channel.link import Link
from thinwire.lab.tune import parse_link
from thinwire.lab.tune.outcome import format_link


@pytest.mark.parametrize(
    ("text", "mbit", "round_trip_ms"),
    [
        ("100mbit,40ms", 100, 40),
        ("1gbit,2ms", 1000, 2),
        ("512kbit,0.3s", 0.512, 300),
        ("2.5 Gbit/s, 500us", 2500, 0.5),
        ("10Mbps,0ms", 10, 0),
    ],
)
def test_a_rate_and_a_round_trip(text: str, mbit: float, round_trip_ms: float) -> None:
    link = parse_link(text)
    assert link.bandwidth_mbit == pytest.approx(mbit)
    assert 2 * link.latency_ms == pytest.approx(round_trip_ms)  # the link's latency is one way
    assert link == Link(bandwidth_mbit=link.bandwidth_mbit, latency_ms=link.latency_ms)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100mbit",
        "100mbit,",
        ",40ms",
        "40ms,100mbit",
        "100,40",
        "0mbit,40ms",
        "100MB,40ms",
        "-1mbit,4ms",
        "1mbit,4ms,5",
    ],
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"--link: write RATE,RTT.*100mbit,40ms"):
        parse_link(text)


def test_a_link_in_words() -> None:
    assert format_link(parse_link("100mbit,40ms")) == "100 Mbit/s, round trip 40 ms"
    uneven = Link(
        bandwidth_mbit=10, latency_ms=5, down_bandwidth_mbit=50, down_latency_ms=7, parties={"bank": Link()}
    )
    assert format_link(uneven) == "10 Mbit/s up, 50 down, round trip 12 ms, other links for bank"
