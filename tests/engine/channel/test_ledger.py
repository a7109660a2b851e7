"""Bytes are added up by sender, receiver and kind."""

from __future__ import annotations

import json

import pytest

from thinwire.base.errors import BadState
from thinwire.base.types import Kind
from thinwire.engine.channel.ledger import Count, Ledger, Traffic


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger()
    ledger.add("shop", "bank", Kind.EMBEDDING, 100)
    ledger.add("shop", "bank", Kind.EMBEDDING, 50)
    ledger.add("bank", "shop", Kind.DERIVATIVE, 7)
    ledger.add("bank", "shop", Kind.CONTROL, 1)
    ledger.add("shop", "post", Kind.CONTROL, 1000)
    ledger.add("post", "bank", Kind.EVALUATION, 10_000)
    ledger.add("bank", "post", Kind.EVALUATION, 20_000)
    ledger.add("shop", "bank", Kind.EMBEDDING, 50, again=True)
    return ledger


def test_entries_are_sorted_and_leave_out_what_was_sent_again(ledger: Ledger) -> None:
    rows = [tuple(row.values()) for row in ledger.entries()]
    assert list(ledger.entries()[0]) == ["sender", "receiver", "kind", "bytes", "messages"]
    assert rows == [
        ("bank", "post", "EVALUATION", 20_000, 1),
        ("bank", "shop", "DERIVATIVE", 7, 1),
        ("bank", "shop", "CONTROL", 1, 1),
        ("post", "bank", "EVALUATION", 10_000, 1),
        ("shop", "bank", "EMBEDDING", 150, 2),
        ("shop", "post", "CONTROL", 1000, 1),
    ]


def test_traffic_counts_evaluation_and_retransmission_apart(ledger: Ledger) -> None:
    assert ledger.traffic("bank") == Traffic(
        up=150, down=8, total=1158, evaluation=30_000, retransmitted=50, messages=5
    )
    assert Ledger().traffic("bank") == Traffic(0, 0, 0, 0, 0, 0)


def test_totals_by_sender_receiver_and_kind(ledger: Ledger) -> None:
    assert ledger.total() == Count(31_158, 7, 50)
    assert ledger.total(senders={"shop", "post"}).bytes == 11_150
    assert ledger.total(receivers={"shop"}) == Count(8, 2)
    assert ledger.total(senders={"shop"}, receivers={"bank"}, kinds={Kind.EMBEDDING}) == Count(150, 2, 50)
    assert ledger.total(senders={"nobody"}) == Count()


def test_a_total_is_a_copy(ledger: Ledger) -> None:
    total = ledger.total(senders={"bank"}, kinds={Kind.DERIVATIVE})
    total += Count(1, 1)
    assert ledger.total(senders={"bank"}, kinds={Kind.DERIVATIVE}) == Count(7, 1)


def test_a_loaded_ledger_goes_on_as_the_saved_one(ledger: Ledger) -> None:
    other = Ledger()
    other.add("left", "over", Kind.ROWS, 1)
    other.load(json.loads(json.dumps(ledger.state())))
    assert other.state() == ledger.state()
    for one in (ledger, other):
        one.add("shop", "bank", Kind.EMBEDDING, 3)
    assert other.entries() == ledger.entries()
    assert other.traffic("bank") == ledger.traffic("bank")


def test_the_states_of_single_senders_load_as_one(ledger: Ledger) -> None:
    other = Ledger()
    other.load([row for name in ("post", "shop", "bank") for row in ledger.state(name)])
    assert other.state() == ledger.state()


@pytest.mark.parametrize("field", ["sender", "kind", "bytes", "retransmitted"])
def test_a_damaged_state_changes_nothing(ledger: Ledger, field: str) -> None:
    before = ledger.state()
    state = ledger.state()
    del state[-1][field]
    with pytest.raises(BadState, match=field):
        ledger.load(state)
    with pytest.raises(BadState, match="NONSENSE"):
        ledger.load([{**before[0], "kind": "NONSENSE"}])
    assert ledger.state() == before
