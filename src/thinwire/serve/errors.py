"""What a request can come to, each with a name and an HTTP status; the same over gRPC, where the name counts."""

from __future__ import annotations

from typing import Any

from thinwire.errors import BadInput, ThinwireError
from thinwire.job.row_selection import OutsideAlignment, UnknownId
from thinwire.predict.errors import BudgetSpent, ModelMismatch, NoAnswer, PartyAway, QuestionFailed

__all__ = ["BadRequest", "Busy", "Late", "described", "status_of"]


class BadRequest(BadInput):
    """A request that is wrong in itself."""

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        self.kind = kind
        self.status = status
        super().__init__(message)


class Busy(ThinwireError):
    """More requests wait than can be answered."""


class Late(ThinwireError):
    """The deadline came before an answer; `parties` had not answered."""

    def __init__(self, seconds: float, parties: list[str]) -> None:
        self.parties = parties
        whom = f"waiting for {', '.join(map(repr, parties))}" if parties else "waiting for its turn"
        super().__init__(f"no answer within {1000 * seconds:.0f} ms: {whom}; try again, or state a longer deadline")


_STATUS: list[tuple[type[ThinwireError], int, str]] = [
    (UnknownId, 404, "unknown_id"),
    (OutsideAlignment, 404, "outside_alignment"),
    (BudgetSpent, 403, "budget_spent"),
    (ModelMismatch, 503, "model_mismatch"),
    (PartyAway, 503, "party_missing"),
    (NoAnswer, 504, "deadline"),
    (Late, 504, "deadline"),
    (Busy, 429, "busy"),
    (QuestionFailed, 502, "party_failed"),
    (BadInput, 400, "bad_input"),
]


def _found(error: Exception) -> tuple[int, str]:
    if isinstance(error, BadRequest):
        return error.status, error.kind
    return next(((status, name) for kind, status, name in _STATUS if isinstance(error, kind)), (500, "internal"))


def status_of(error: Exception) -> int:
    return _found(error)[0]


def described(error: Exception) -> dict[str, Any]:
    """As the body of an answer; nothing of the inside where it is not one of ours."""
    name = _found(error)[1]
    message = str(error) if isinstance(error, ThinwireError) else "something went wrong; the server's log says what"
    told: dict[str, Any] = {"type": name, "message": message}
    if isinstance(error, QuestionFailed):
        told["parties"] = [error.party]
    elif isinstance(error, Late):
        told["parties"] = error.parties
    return {"error": told}
