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
from thinwire.job.row_selection import OutsideAlignment, UnknownId


class QuestionFailed(ThinwireError):
    """A question to a feature party has no answer; `party` is its name."""

    kind = "failed"

    def __init__(self, party: PartyName, message: str) -> None:
        self.party = party
        super().__init__(message)


class PartyAway(QuestionFailed):
    """The party is not connected, or was lost before it answered."""

    kind = "party_missing"

    def __init__(self, party: PartyName, message: str | None = None) -> None:
        super().__init__(party, message or f"{party!r} is not connected; its half of the model is needed")


class NoAnswer(QuestionFailed):
    """The answer did not come in time."""

    kind = "deadline"

    def __init__(self, party: PartyName, seconds: float) -> None:
        super().__init__(party, f"{party!r} has not answered within {seconds:.3g} s")


class ModelMismatch(QuestionFailed):
    """The party does not hold the model that was asked for."""

    kind = "model_mismatch"


class BudgetSpent(QuestionFailed):
    """The party's privacy budget allows no further use of a row."""

    kind = "budget_spent"


class PartyFailed(QuestionFailed):
    """The party could not answer, for a reason of its own."""

    kind = "party_failed"


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


def find_status(error: Exception) -> int:
    return _found(error)[0]


def format_error(error: Exception) -> dict[str, Any]:
    """As the body of an answer; nothing of the inside where it is not one of ours."""
    name = _found(error)[1]
    message = str(error) if isinstance(error, ThinwireError) else "something went wrong; the server's log says what"
    told: dict[str, Any] = {"type": name, "message": message}
    if isinstance(error, QuestionFailed):
        told["parties"] = [error.party]
    elif isinstance(error, Late):
        told["parties"] = error.parties
    return {"error": told}
