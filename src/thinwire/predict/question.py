"""One question and its answer as bytes: rows of one model asked for, embeddings or a refusal given."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from thinwire.errors import Malformed
from thinwire.predict.errors import PartyFailed, QuestionFailed, refusal
from thinwire.streams import Rows
from thinwire.transport.records import Text, printable
from thinwire.types import PartyName
from thinwire.wire.buffers import pack_bundle, unpack_bundle

__all__ = ["Question", "answer_body", "opened_answer", "refused_body"]

_GIVEN, _REFUSED = 0, 1
_LONGEST = 1500  # characters of a refusal


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
    def parsed(cls, body: bytes | memoryview) -> Question:
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


def refused_body(kind: str, message: str) -> bytes:
    return bytes([_REFUSED]) + json.dumps({"kind": kind, "message": message[:_LONGEST]}).encode()


def opened_answer(party: PartyName, body: bytes | memoryview) -> memoryview:
    """The embeddings as bytes; raises what the party refused with."""
    view = memoryview(body)
    if view and view[0] == _GIVEN:
        return view[1:]
    if not view or view[0] != _REFUSED:
        raise PartyFailed(party, f"{party!r} sent an answer that is none")
    try:
        told = _Refusal.model_validate_json(bytes(view[1:]))
    except ValidationError:
        raise PartyFailed(party, f"{party!r} sent a refusal that is none") from None
    failed: QuestionFailed = refusal(told.kind, party, f"{party!r}: {printable(told.message)[:_LONGEST]}")
    raise failed
