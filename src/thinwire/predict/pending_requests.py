"""Questions to feature parties: their bytes, and those that are not answered yet, each under a number of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from thinwire.base.errors import Malformed, ThinwireError
from thinwire.base.format import printable
from thinwire.base.types import PartyName
from thinwire.engine.channel.base import TransportError
from thinwire.engine.channel.ledger import Ledger
from thinwire.engine.streams import Rows
from thinwire.engine.wire.buffers import pack_bundle, unpack_bundle
from thinwire.job.party_view import PartyView
from thinwire.net.links.peer_end import Events, LinkEnds
from thinwire.net.links.question_line import QuestionLine
from thinwire.net.links.records import Text
from thinwire.predict.errors import PartyAway, PartyFailed, QuestionFailed, make_refusal
from thinwire.predict.party_models import ReadyModel
from thinwire.training.program_factory import derive_run_number

_GIVEN, _REFUSED = 0, 1
_LONGEST = 1500  # characters of a refusal


def open_line(
    own: PartyView, peer: PartyName, ledger: Ledger, events: Events, take: Callable[[int, bytes | memoryview], None]
) -> QuestionLine:
    """Between this party and a peer; one for all models of a job, whatever their seed."""
    number = derive_run_number(own.recipe, 0, own.feature_parties)
    ends = LinkEnds(number, own.me, peer, (*own.feature_parties, own.label_party))
    return QuestionLine(ends, ledger, events, take)


class _Head(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    run: Text
    hash: Text


class _Refusal(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    kind: Text
    message: Text


@dataclass(frozen=True)
class Question:
    """Which rows, of which model of the party that is asked."""

    run: str
    hash: str
    rows: Rows

    def to_bytes(self) -> bytes:
        head = json.dumps({"run": self.run, "hash": self.hash}).encode()
        return pack_bundle({0: head, 1: self.rows.numpy().astype("<i8").tobytes()})

    @classmethod
    def parse(cls, body: bytes | memoryview) -> Question:
        parts = unpack_bundle(body)
        if set(parts) != {0, 1} or len(parts[1]) % 8:
            raise Malformed("a question holds a model and rows")
        try:
            head = _Head.model_validate_json(bytes(parts[0]))
        except ValidationError as error:
            raise Malformed(f"a question's model: {error.errors()[0]['msg']}") from None
        rows = np.frombuffer(parts[1], "<i8").astype(np.int64)
        return cls(head.run, head.hash, torch.from_numpy(rows))


def answer_body(embeddings: bytes) -> bytes:
    return bytes([_GIVEN]) + embeddings


def refuse_body(kind: str, message: str) -> bytes:
    return bytes([_REFUSED]) + json.dumps({"kind": kind, "message": message[:_LONGEST]}).encode()


def open_answer(party: PartyName, body: bytes | memoryview) -> memoryview:
    """The embeddings as bytes; raises what the party refused with."""
    view = memoryview(body)
    if view and view[0] == _GIVEN:
        return view[1:]
    if not view or view[0] != _REFUSED:
        raise PartyFailed(party, f"{party!r} sent an invalid answer")
    try:
        told = _Refusal.model_validate_json(bytes(view[1:]))
    except ValidationError:
        raise PartyFailed(party, f"{party!r} sent an invalid refusal") from None
    failed: QuestionFailed = make_refusal(told.kind, party, f"{party!r}: {printable(told.message)[:_LONGEST]}")
    raise failed


@dataclass
class PendingAnswers:
    """What was asked of whom under one number."""

    number: int
    ready: ReadyModel
    futures: dict[PartyName, Future[memoryview]] = field(default_factory=dict)

    def missing(self) -> list[PartyName]:
        return [party for party, one in self.futures.items() if not one.done()]


class PendingRequests:
    """For any thread."""

    def __init__(
        self, lines: Mapping[PartyName, QuestionLine], why_away: Callable[[PartyName], QuestionFailed]
    ) -> None:
        self._lines = lines
        self._why_away = why_away
        self._lock = RLock()  # a party that is hung up on while it is told something fails what it was asked
        self._number = 0
        self._asked: dict[int, PendingAnswers] = {}

    def skip_to(self, number: int) -> None:
        """Numbers below it were used before."""
        with self._lock:
            self._number = max(self._number, number)

    def ask(self, ready: ReadyModel, rows: Mapping[PartyName, Rows]) -> PendingAnswers:
        """Asks parties for embeddings, each for its rows; one that is not there fails its answer at once."""
        with self._lock:
            answers = PendingAnswers(self._number, ready, {party: Future() for party in rows})
            self._number += 1
            away = [party for party in rows if not self._lines[party].is_connected]
            if away and ready.scorer.uses_secure_sum:
                # A sum without one of them cannot be opened: none of the others may spend on it.
                for waiting in answers.futures.values():
                    waiting.set_exception(self._why_away(away[0]))
                return answers
            if rows:
                self._asked[answers.number] = answers
            # Under the lock: parties see numbers in rising order.
            for party, wanted in rows.items():
                question = Question(ready.run, ready.hashes[party], wanted)
                try:
                    self._lines[party].send(answers.number, question.to_bytes())
                except TransportError:
                    answers.futures[party].set_exception(self._why_away(party))
        return answers

    def tell(self, news: Mapping[PartyName, dict[str, Any]]) -> None:
        """Between two questions: parties that are asked for one sum must have the same keys."""
        with self._lock:
            for party, told in news.items():
                self._lines[party].tell(told)

    def cancel(self, answers: PendingAnswers) -> None:
        """Nobody waits for these any more; whoever has not answered need not."""
        with self._lock:
            held = self._asked.pop(answers.number, None)
        for party in [] if held is None else held.missing():
            self._lines[party].tell({"withdrawn": answers.number})

    def receive_answer(self, party: PartyName, number: int, body: bytes | memoryview) -> None:
        """A party's answer."""
        with self._lock:
            answers = self._asked.get(number)
        waiting = None if answers is None else answers.futures.get(party)
        if answers is None or waiting is None:
            return  # it came too late
        with suppress(InvalidStateError):  # given up in this moment
            try:
                embeddings = open_answer(party, body)
                if answers.ready.scorer.context.recipe.is_charged:
                    answers.ready.model.pins.note_answer(answers.ready.run, party, number)
                waiting.set_result(embeddings)
            except ThinwireError as error:
                waiting.set_exception(error)
        with self._lock:
            if not answers.missing():
                self._asked.pop(number, None)  # all have answered: there is nothing to cancel

    def fail_party(self, party: PartyName) -> None:
        """It will not answer what it was asked."""
        with self._lock:
            lost = [answers.futures[party] for answers in self._asked.values() if party in answers.futures]
        for waiting in lost:
            with suppress(InvalidStateError):
                waiting.set_exception(PartyAway(party, f"{party!r} was lost before it answered"))
