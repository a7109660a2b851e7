"""The virtual clock, by hand."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import pytest

from thinwire.base.errors import BadParameter, BadState
from thinwire.engine.channel.link import Link, LinkClock

NAMES = ("bank", "shop", "post")


def clock_of(link: Link) -> LinkClock:
    return LinkClock(link, "bank", NAMES)


def test_four_mib_at_300_mbit_take_0_1118_seconds_and_the_latency() -> None:
    assert clock_of(Link(bandwidth_mbit=300)).send("shop", "bank", 4 << 20) == pytest.approx(0.111848, abs=1e-6)
    clock = clock_of(Link(bandwidth_mbit=300, latency_ms=10))
    assert clock.send("shop", "bank", 4 << 20) == pytest.approx(0.121848, abs=1e-6)


def test_an_ideal_link_takes_no_time() -> None:
    clock = clock_of(Link())
    clock.compute("shop", 2.0)
    assert clock.send("shop", "bank", 10**9) == 2.0


def test_a_pipe_carries_one_frame_after_the_other_and_latency_overlaps() -> None:
    clock = clock_of(Link(bandwidth_mbit=8, latency_ms=500))  # a million bytes a second
    assert clock.send("shop", "bank", 1_000_000) == 1.5
    assert clock.send("shop", "bank", 1_000_000) == 2.5
    assert clock.now("shop") == 0.0  # sending does not block
    clock.compute("shop", 5.0)
    assert clock.send("shop", "bank", 1_000_000) == 6.5


def test_receivers_share_the_label_partys_pipe_and_feature_parties_have_their_own() -> None:
    clock = clock_of(Link(bandwidth_mbit=8))
    assert clock.send("bank", "shop", 1_000_000) == 1.0
    assert clock.send("bank", "post", 1_000_000) == 2.0
    assert clock.send("shop", "bank", 1_000_000) == 1.0
    assert clock.send("post", "bank", 1_000_000) == 1.0
    assert clock.send("post", "shop", 1_000_000) == 2.0  # the sender's uplink


def test_a_receiver_waits_only_for_what_is_still_under_way() -> None:
    clock = clock_of(Link())
    clock.receive("bank", 3.0)
    clock.receive("bank", 1.0)
    assert clock.now("bank") == 3.0
    clock.compute("bank", 0.5)
    assert (clock.now("bank"), clock.now("shop"), clock.latest()) == (3.5, 0.0, 3.5)


def test_the_downlink_may_differ() -> None:
    clock = clock_of(Link(bandwidth_mbit=8, latency_ms=100, down_bandwidth_mbit=80, down_latency_ms=0, compute_ms=1))
    assert clock.send("shop", "bank", 1_000_000) == pytest.approx(1.1)
    assert clock.send("bank", "shop", 1_000_000) == pytest.approx(0.1)


def test_single_parties_have_links_of_their_own() -> None:
    slow = Link(bandwidth_mbit=1, down_latency_ms=1000)
    clock = clock_of(Link(bandwidth_mbit=8, latency_ms=1, compute_ms=10, parties={"post": slow}))
    assert clock.send("shop", "bank", 1_000_000) == 1.001
    assert clock.send("post", "bank", 1_000_000) == 8.0
    assert clock.send("bank", "post", 1_000_000) == 9.0
    assert clock.send("bank", "shop", 1_000_000) == 9.001  # the pipe was busy with post's slow link
    assert clock.step_seconds("post") == 0.01  # not given there, so from the outer link


def test_the_cost_of_a_step() -> None:
    clock = clock_of(Link(compute_ms=10, parties={"post": Link(compute_ms=30)}))
    assert [clock.step_seconds(name) for name in NAMES] == [0.01, 0.01, 0.03]
    assert clock_of(Link()).step_seconds("bank") is None


def test_a_loaded_clock_goes_on_as_the_saved_one() -> None:
    link = Link(bandwidth_mbit=3, latency_ms=0.7)
    clock, other = clock_of(link), clock_of(link)
    clock.compute("bank", 0.1)
    clock.receive("shop", clock.send("bank", "shop", 12_345))
    other.load(json.loads(json.dumps(clock.state())))
    assert other.state() == clock.state()
    assert other.send("bank", "post", 77) == clock.send("bank", "post", 77)
    assert other.latest() == clock.latest()


@pytest.mark.parametrize("state", [{}, {"bank": {}, "shop": {}, "post": {}}, {"bank": {"now": 1.0}}])
def test_a_state_that_does_not_fit_changes_nothing(state: dict[str, Any]) -> None:
    clock = clock_of(Link())
    before = clock.state()
    with pytest.raises(BadState, match="link clock"):
        clock.load(state)
    assert clock.state() == before


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bandwidth_mbit", 0),
        ("bandwidth_mbit", -1.0),
        ("bandwidth_mbit", nan),
        ("bandwidth_mbit", "10"),
        ("bandwidth_mbit", True),
        ("latency_ms", -1),
        ("latency_ms", inf),
        ("latency_ms", nan),
        ("latency_ms", None),
        ("down_bandwidth_mbit", 0),
        ("down_latency_ms", -0.1),
        ("compute_ms", -1),
        ("compute_ms", inf),
        ("parties", {"shop": 10}),
        ("parties", {"shop": Link(parties={"post": Link()})}),
    ],
)
def test_bad_links_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(BadParameter, match=f"^Link: {field}"):
        Link(**{field: value})


@pytest.mark.parametrize("name", ["bank", "nobody"])
def test_only_feature_parties_have_links_of_their_own(name: str) -> None:
    with pytest.raises(BadParameter, match=f"'{name}'; the feature parties are shop, post"):
        clock_of(Link(parties={name: Link()}))
