"""Who sees what, in words, and what a party agrees to: it follows from the recipe and from who takes part.

Every command that asks for consent, every report and the threat model page take their sentences from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.engine.compress import Identity
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.privacy.accounting import Budget
from thinwire.engine.privacy.accounting.exposure import Frozen, TrainedOnRawRows
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.privacy.dp_bottom import Training
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import ErrorFeedback
from thinwire.job.checks import is_noisy

_SHORTEST = 12  # hex digits of a digest


@dataclass(frozen=True)
class Participants:
    """Who takes part; as far as the reader knows, over the network."""

    label_party: PartyName
    feature_parties: tuple[PartyName, ...]  # in the job's order
    label_party_has_features: bool = False
    has_test_rows: bool = False


def describe_training(recipe: Recipe, participants: Participants) -> dict[PartyName, list[str]]:
    """For each party, the label party first, what it is sent and what follows from it."""
    sees = {participants.label_party: _label_party_sees(recipe, participants)}
    for party in participants.feature_parties:
        sees[party] = _feature_party_sees(recipe, participants)
    return sees


def describe_budget(recipe: Recipe, training: Training, limit: Budget | None) -> str:
    """What stands between the parties' rows and what is seen, in one sentence."""
    if not is_noisy(recipe):
        return "no privacy budget: this recipe adds no noise; what is listed is seen exactly as said"
    bare = "labels and derivatives are not protected at all"
    if isinstance(training, TrainedOnRawRows):
        return (
            "no privacy budget is kept: every party adds noise to its embeddings before they are summed, but the "
            f"bottom models learn from exact rows, so that epsilon from end to end is infinite; {bare}"
        )
    how = "are frozen" if isinstance(training, Frozen) else f"learn by {training}"
    if limit is None:
        return f"no privacy budget is set: every use of a row costs, and is counted; the bottom models {how}; {bare}"
    return (
        f"no row of a feature party loses more than epsilon {limit.epsilon:g} (delta {limit.delta:g}) from end to "
        f"end to {limit.observer.display_name}; the bottom models {how}; {bare}"
    )


@dataclass(frozen=True)
class Consent:
    """What a party agrees to before any of its data is read."""

    me: PartyName
    recipe: Recipe
    participants: Participants
    protection: str  # the budget, in one sentence
    approved: str | None = None  # the digest of the recipe that the party's own section approves, or its first digits

    @property
    def digest(self) -> str:
        return self.recipe.digest()

    def describe_training(self) -> str:
        """For people to read and approve."""
        everyone = (*self.participants.feature_parties, self.participants.label_party)
        others = ", ".join(party for party in everyone if party != self.me)
        lines = [
            f"{self.me!r} is asked to take part in {self.recipe.name!r} with {others}",
            f"  recipe digest {self.digest}",
            *(f"  {line}" for line in self.list_disclosures()),
            f"  {self.protection}",
        ]
        if not self.recipe.repeatable:
            lines.append("  not repeatable to the bit: local steps follow the clock")
        return "\n".join(lines)

    def describe_scoring(self, allowances: Sequence[str] = ()) -> str:
        """The same before rows are scored; `allowances` are what this party's section allows beyond that."""
        seen = _embeddings_of("row it asks for", self.recipe)
        lines = [f"{self.participants.label_party} sees {seen}, and all scores", self.protection, *allowances]
        return "\n  ".join([f"{self.me!r} is asked to predict with {self.recipe.name!r}", *lines])

    def list_disclosures(self) -> list[str]:
        """A sentence for each party."""
        seen = describe_training(self.recipe, self.participants)
        return [f"{party} sees {'; '.join(what)}" for party, what in seen.items()]

    def is_approved(self) -> bool:
        """Does the party's own section approve this recipe? Another digest there is an error, not a question."""
        if self.approved is None:
            return False
        if len(self.approved) < _SHORTEST or not self.digest.startswith(self.approved.lower()):
            raise BadInput(
                f"{self.me!r} has approved the recipe {self.approved}, but the job's is {self.digest}; look at "
                "`thinwire check`, then change `approved` or the recipe"
            )
        return True


def describe_alignment(me: PartyName, label_party: PartyName, feature_parties: Sequence[PartyName]) -> str:
    """What everybody learns when ids are aligned."""
    lines = [
        f"{me!r} is asked to align its ids with the others'; no other id is shown",
        f"{label_party} learns how many ids {', '.join(feature_parties)} bring, and which of its own ids each of "
        "them has",
        *(
            f"{party} learns how many ids {label_party} brings, and which of its own ids all parties have"
            for party in feature_parties
        ),
    ]
    return "\n  ".join(lines)


def _label_party_sees(recipe: Recipe, participants: Participants) -> list[str]:
    how = _whose(recipe)
    sees = [f"its labels, {how} embeddings of every training row, {_sent(recipe)} {recipe.uplink.compressor}"]
    if participants.has_test_rows:
        sees.append(f"{_embeddings_of('test row', recipe)}, at every evaluation")
    return sees


def _embeddings_of(row: str, recipe: Recipe) -> str:
    """Of rows that are only scored: in an evaluation, in a prediction and in serving they travel alike."""
    exact = "exactly" if isinstance(recipe.scoring, Identity) else f"rounded by {recipe.scoring}"
    as_sent = "by the same mechanism" if isinstance(recipe.aggregation, SecureSum) else exact
    return f"{_whose(recipe)} embeddings of every {row}, {as_sent}"


def _whose(recipe: Recipe) -> str:
    return "the sum of all parties'" if isinstance(recipe.aggregation, SecureSum) else "every party's"


def _feature_party_sees(recipe: Recipe, participants: Participants) -> list[str]:
    if recipe.labels is Labels.SHARED and isinstance(recipe.aggregation, SecureSum):
        theirs = [f"{participants.label_party}'s embeddings"] if participants.label_party_has_features else []
        return ["all labels", "the top model", f"the sum of all parties' embeddings, {_sent(recipe)} them", *theirs]
    if recipe.labels is Labels.SHARED:
        own = f", {participants.label_party}'s own among them" if participants.label_party_has_features else ""
        return ["all labels", "the top model", f"every party's embeddings{own}, {_sent(recipe)} the others"]
    summed = isinstance(recipe.aggregation, SecureSum)
    one = "the derivative of the sum" if summed else "its own derivative"
    if isinstance(recipe.defence, NoDefence):
        return [f"{one} for every training row, from which labels can often be guessed"]
    return [f"{one} for every training row, after {recipe.defence}; `thinwire audit` measures what still leaks"]


def _sent(recipe: Recipe) -> str:
    return "as changes of surrogates by" if isinstance(recipe.uplink, ErrorFeedback) else "as sent by"
