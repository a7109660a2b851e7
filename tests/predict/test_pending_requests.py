"""Questions under way: each has a number of its own, and whoever gives up one leaves the others alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import torch

from thinwire.engine.channel.ledger import Ledger
from thinwire.net.links.peer_end import LinkEnds
from thinwire.net.links.question_line import QuestionLine
from thinwire.predict.errors import PartyAway
from thinwire.predict.party_models import ReadyModel
from thinwire.predict.pending_requests import PendingRequests, answer_body

ROWS = dict.fromkeys(("bank", "shop"), torch.arange(3))


class Line:
    """A party that notes what it is asked and told."""

    def __init__(self) -> None:
        self.is_connected = True
        self.asked: list[int] = []
        self.told: list[dict[str, Any]] = []

    def send(self, number: int, body: bytes) -> None:
        self.asked.append(number)

    def tell(self, news: dict[str, Any]) -> None:
        self.told.append(news)


def summing() -> ReadyModel:
    pins = SimpleNamespace(note_answer=lambda *_: None)
    context = SimpleNamespace(recipe=SimpleNamespace(is_charged=True))
    scorer, model = SimpleNamespace(uses_secure_sum=True, context=context), SimpleNamespace(pins=pins)
    made = SimpleNamespace(run="run", hashes=dict.fromkeys(ROWS, "hash"), scorer=scorer, model=model)
    return cast(ReadyModel, made)


def test_a_question_that_failed_under_a_secure_sum_leaves_the_next_one_alone() -> None:
    lines = {name: Line() for name in ROWS}
    pending = PendingRequests(cast(dict[str, QuestionLine], lines), PartyAway)
    ready = summing()
    lines["shop"].is_connected = False
    failed = pending.ask(ready, ROWS)
    assert lines["bank"].asked == []  # it would have spent on a sum that cannot be opened
    assert isinstance(failed.futures["bank"].exception(0), PartyAway)
    lines["shop"].is_connected = True
    asked = pending.ask(ready, ROWS)
    pending.cancel(failed)
    assert [line.told for line in lines.values()] == [[], []]
    for name in lines:
        pending.receive_answer(name, asked.number, answer_body(b"embeddings"))
    assert [bytes(one.result(0)) for one in asked.futures.values()] == [b"embeddings"] * 2


def test_a_party_that_is_hung_up_on_while_it_is_told_something_fails_what_it_was_asked() -> None:
    events: list[str] = []

    def hear(event: str, peer: str, **_: Any) -> None:
        events.append(event)
        if event == "disconnected":
            pending.fail_party(peer)

    ends = LinkEnds(1, "clinic", "bank", ("bank", "clinic"))
    line = QuestionLine(ends, Ledger(), hear, lambda *_: None)
    pending = PendingRequests({"bank": line}, PartyAway)
    line.attach(lambda: None, 0, 0)
    asked = pending.ask(summing(), {"bank": ROWS["bank"]})
    for number in range(5000):  # and it takes none of them
        pending.tell({"bank": {"withdrawn": number}})
    assert isinstance(asked.futures["bank"].exception(0), PartyAway)
    assert events == ["connected", "disconnected"]
