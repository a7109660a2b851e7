"""A line for questions: what waits for a peer that takes nothing is bounded, and whoever waits for it hears so."""

from __future__ import annotations

from typing import Any

import pytest

from thinwire.engine.channel.base import TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.net.links.peer_end import LinkEnds
from thinwire.net.links.question_line import NotConnected, QuestionLine

MOST = 4096  # records
ENDS = LinkEnds(1, "clinic", "bank", ("bank", "clinic"))


def open_line() -> tuple[QuestionLine, list[tuple[str, dict[str, Any]]]]:
    events: list[tuple[str, dict[str, Any]]] = []
    line = QuestionLine(ENDS, Ledger(), lambda event, _, **facts: events.append((event, facts)), lambda *_: None)
    return line, events


def test_questions_to_a_peer_that_takes_nothing_are_refused() -> None:
    line, _ = open_line()
    with pytest.raises(NotConnected, match="'bank'"):
        line.send(0, b"rows")
    attached = line.attach(lambda: None, 0, 0)
    for number in range(MOST):
        line.send(number, b"rows")
    with pytest.raises(TransportError, match="'bank' takes nothing: 4096 records wait for it"):
        line.send(MOST, b"rows")
    assert len(attached.records) == MOST


def test_a_peer_that_takes_no_news_is_hung_up_on() -> None:
    line, events = open_line()
    line.tell({"serving": "run"})  # nobody is there: it hears when it connects
    hung_up: list[bool] = []
    attached = line.attach(lambda: hung_up.append(True), 0, 0)
    for number in range(3 * MOST):
        line.tell({"withdrawn": number})
    assert len(attached.records) == MOST
    assert hung_up == [True]
    assert not line.is_connected
    (_, (event, facts)) = events
    assert event == "disconnected"
    assert "'bank' takes nothing: 4096 records wait for it" in facts["why"]
    with pytest.raises(NotConnected):
        line.send(0, b"rows")
