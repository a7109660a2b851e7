"""What can go wrong with a question, below `ThinwireError`; each has a short name that travels and that HTTP shows.

::

    ThinwireError
      QuestionFailed             a question to a feature party has no answer
        PartyAway                  the party is not connected, or was lost before it answered
        NoAnswer                   its answer did not come in time
        ModelMismatch              it does not hold the model that was asked for
        BudgetSpent                its privacy budget allows no further use of a row
        PartyFailed                it could not answer, for a reason of its own
"""

from __future__ import annotations

from typing import Any

from thinwire.base.errors import BadInput, ThinwireError
from thinwire.base.types import PartyName
from thinwire.job.id_table import OutsideAlignment, UnknownId


class QuestionFailed(ThinwireError):
    """A question to a feature party has no answer; `party` is its name."""

    kind = "party_failed"  # also on the way from a party
    status = 502  # over HTTP

    def __init__(self, party: PartyName, message: str) -> None:
        self.party = party
        super().__init__(message)


class PartyAway(QuestionFailed):
    """The party is not connected, or was lost before it answered."""

    kind, status = "party_missing", 503

    def __init__(self, party: PartyName, message: str | None = None) -> None:
        super().__init__(party, message or f"{party!r} is not connected; its half of the model is needed")


class NoAnswer(QuestionFailed):
    """The answer did not come in time."""

    kind, status = "deadline", 504

    def __init__(self, party: PartyName, seconds: float) -> None:
        super().__init__(party, f"{party!r} has not answered within {seconds:.3g} s")


class ModelMismatch(QuestionFailed):
    """The party does not hold the model that was asked for."""

    kind, status = "model_mismatch", 503


class BudgetSpent(QuestionFailed):
    """The party's privacy budget allows no further use of a row."""

    kind, status = "budget_spent", 403


class PartyFailed(QuestionFailed):
    """The party could not answer, for a reason of its own."""


_KINDS = {one.kind: one for one in (ModelMismatch, BudgetSpent, PartyFailed)}


def make_refusal(kind: str, party: PartyName, message: str) -> QuestionFailed:
    """A peer's refusal as one of ours; what it says is not believed beyond its kind."""
    return _KINDS.get(kind, PartyFailed)(party, message)


class BadRequest(BadInput):
    """A request that is wrong in itself."""

    def __init__(self, kind: str, message: str, status: int = 400) -> None:
        self.kind = kind
        self.status = status
        super().__init__(message)


class Busy(ThinwireError):
    """More requests wait than can be answered."""

    kind, status = "busy", 429


class Late(ThinwireError):
    """The deadline came before an answer; `parties` had not answered."""

    kind, status = "deadline", 504

    def __init__(self, seconds: float, parties: list[str]) -> None:
        self.parties = parties
        whom = f"waiting for {', '.join(map(repr, parties))}" if parties else "waiting for its turn"
        super().__init__(f"no answer within {1000 * seconds:.0f} ms: {whom}; try again, or state a longer deadline")


_OTHERS: list[tuple[type[Exception], int, str]] = [
    (UnknownId, 404, "unknown_id"),
    (OutsideAlignment, 404, "outside_alignment"),
    (BadInput, 400, "bad_input"),
    (Exception, 500, "internal"),
]


def describe_error(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the body of an answer; nothing of the inside where it is not one of ours."""
    if isinstance(error, QuestionFailed | BadRequest | Busy | Late):
        status, name = error.status, error.kind
    else:
        status, name = next((status, name) for kind, status, name in _OTHERS if isinstance(error, kind))
    message = str(error) if isinstance(error, ThinwireError) else "internal error; see the server log"
    told: dict[str, Any] = {"type": name, "message": message}
    if isinstance(error, QuestionFailed | Late):
        told["parties"] = [error.party] if isinstance(error, QuestionFailed) else error.parties
    return status, {"error": told}
