"""What a party agrees to before any of its data is read."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.errors import BadInput
from thinwire.job.party_view import PartyView

__all__ = ["Terms"]

_SHORTEST = 12  # hex digits of a digest


@dataclass(frozen=True)
class Terms:
    """A recipe, its digest, who will see what, and the budget."""

    own: PartyView

    @property
    def digest(self) -> str:
        return self.own.recipe.digest()

    def text(self) -> str:
        """For people to read and approve."""
        own = self.own
        lines = [
            f"{own.me!r} is asked to take part in {own.recipe.name!r} with {', '.join(self._others())}",
            f"  recipe digest {self.digest}",
            *(f"  {party} sees {'; '.join(seen)}" for party, seen in own.who_sees().items()),
            f"  {own.budget()}",
        ]
        if not own.recipe.repeatable:
            lines.append("  not repeatable to the bit: local steps follow the clock")
        return "\n".join(lines)

    def _others(self) -> list[str]:
        return [party for party in (*self.own.feature_parties, self.own.label_party) if party != self.own.me]

    def are_approved(self) -> bool:
        """Does the party's own section approve this recipe? Another digest there is an error, not a question."""
        approved = self.own.approved
        if approved is None:
            return False
        if len(approved) < _SHORTEST or not self.digest.startswith(approved.lower()):
            raise BadInput(
                f"{self.own.me!r} has approved the recipe {approved}, but the job's is {self.digest}; look at "
                "`thinwire check`, then change `approved` or the recipe"
            )
        return True
