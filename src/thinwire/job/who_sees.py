"""Who sees what, in words: it follows from the recipe and from who takes part, without any data."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.compress import Identity
from thinwire.job.privacy_plan import is_noisy
from thinwire.privacy import Labels, SecureSum
from thinwire.privacy.accounting import Budget
from thinwire.privacy.defences import NoDefence
from thinwire.privacy.dp_bottom import Frozen, TrainedOnRawRows, Training
from thinwire.recipe import Recipe
from thinwire.streams import ErrorFeedback
from thinwire.types import PartyName

__all__ = ["Roster", "budget", "who_sees"]


@dataclass(frozen=True)
class Roster:
    """Who takes part; as far as the reader knows, over the network."""

    label_party: PartyName
    feature_parties: tuple[PartyName, ...]  # in the job's order
    label_party_has_features: bool = False
    has_test_rows: bool = False


def who_sees(recipe: Recipe, roster: Roster) -> dict[PartyName, list[str]]:
    """For each party, the label party first, what it is sent and what follows from it."""
    sees = {roster.label_party: _label_party_sees(recipe, roster)}
    for party in roster.feature_parties:
        sees[party] = _feature_party_sees(recipe, roster)
    return sees


def budget(recipe: Recipe, training: Training, limit: Budget | None) -> str:
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
        f"end to {limit.observer.shown}; the bottom models {how}; {bare}"
    )


def _label_party_sees(recipe: Recipe, roster: Roster) -> list[str]:
    summed = isinstance(recipe.aggregation, SecureSum)
    how = "the sum of all parties'" if summed else "every party's"
    sees = [f"its labels, {how} embeddings of every training row, {_sent(recipe)} {recipe.uplink.compressor}"]
    if roster.has_test_rows:
        exact = "exactly" if isinstance(recipe.scoring, Identity) else f"rounded by {recipe.scoring}"
        as_sent = "by the same mechanism" if summed else exact
        sees.append(f"{how} embeddings of every test row, {as_sent}, at every evaluation")
    return sees


def _feature_party_sees(recipe: Recipe, roster: Roster) -> list[str]:
    if recipe.labels is Labels.SHARED and isinstance(recipe.aggregation, SecureSum):
        theirs = [f"{roster.label_party}'s embeddings"] if roster.label_party_has_features else []
        return ["all labels", "the top model", f"the sum of all parties' embeddings, {_sent(recipe)} them", *theirs]
    if recipe.labels is Labels.SHARED:
        own = f", {roster.label_party}'s own among them" if roster.label_party_has_features else ""
        return ["all labels", "the top model", f"every party's embeddings{own}, {_sent(recipe)} the others"]
    summed = isinstance(recipe.aggregation, SecureSum)
    one = "the derivative of the sum" if summed else "its own derivative"
    if isinstance(recipe.defence, NoDefence):
        return [f"{one} for every training row, from which labels can often be guessed"]
    return [f"{one} for every training row, after {recipe.defence}; `thinwire audit` measures what still leaks"]


def _sent(recipe: Recipe) -> str:
    return "as changes of surrogates by" if isinstance(recipe.uplink, ErrorFeedback) else "as sent by"
