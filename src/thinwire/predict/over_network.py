"""Scoring many rows over the network: the label party asks block by block, and waits for whoever is away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from time import monotonic

from torch import Tensor

from thinwire.predict.asking import AskingParty
from thinwire.predict.errors import NoAnswer, PartyAway
from thinwire.predict.run import ASKED_AT_ONCE
from thinwire.transport.network_channel import PartyMissing

__all__ = ["asked_for"]

_LOOK_SECONDS = 0.2


def asked_for(
    party: AskingParty, rows: Tensor, patience_seconds: float, interrupted: Callable[[], None]
) -> Iterator[Tensor]:
    """Outputs of these rows, a question at a time, all of one model; a lost party is waited for and asked again."""
    run = party.gather(patience_seconds, interrupted).run
    for start in range(0, len(rows), ASKED_AT_ONCE):
        asked = rows[start : start + ASKED_AT_ONCE]
        began = monotonic()
        while True:
            ready = party.gather(patience_seconds, interrupted)
            if ready.run != run:
                raise PartyMissing(party.own.me, "another model has come into use; begin anew with it", 0)
            try:
                yield _answered(party, asked, patience_seconds, interrupted)
                break
            except PartyAway:
                if monotonic() - began > patience_seconds:
                    raise


def _answered(party: AskingParty, rows: Tensor, seconds: float, interrupted: Callable[[], None]) -> Tensor:
    ready = party.gather(seconds, interrupted)
    answers = party.ask(ready, dict.fromkeys(party.own.feature_parties, rows))
    try:
        began = monotonic()
        while wait(answers.waiting.values(), _LOOK_SECONDS).not_done:
            interrupted()
            if monotonic() - began > seconds:
                raise NoAnswer(answers.missing()[0], seconds)
        half = ready.half
        symbols = {name: half.decoded(one.result(), name, len(rows)) for name, one in answers.waiting.items()}
        return half.scored(half.embeddings(symbols, rows, answers.number), rows)
    finally:
        party.forget(answers)
