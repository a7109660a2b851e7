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

from thinwire.errors import ThinwireError
from thinwire.types import PartyName

__all__ = ["BudgetSpent", "ModelMismatch", "NoAnswer", "PartyAway", "PartyFailed", "QuestionFailed", "refusal"]


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


def refusal(kind: str, party: PartyName, message: str) -> QuestionFailed:
    """A peer's refusal as one of ours; what it says is not believed beyond its kind."""
    return _KINDS.get(kind, PartyFailed)(party, message)
