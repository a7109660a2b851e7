"""Who sees what, in words, and what all parties agree on: it follows from the recipe and from who takes part.

Every command that asks for consent, every report and the threat model page take their sentences from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.engine.compress import Codebook, Identity
from thinwire.engine.models import MODELS
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.privacy.accounting import Budget
from thinwire.engine.privacy.accounting.ledger import Frozen, TrainedOnRawRows
from thinwire.engine.privacy.defences import NoDefence
from thinwire.engine.privacy.dp_bottom import Training
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import OneWay
from thinwire.engine.streams import ErrorFeedback
from thinwire.job.own_code import find_modules
from thinwire.job.registry import fill_defaults
from thinwire.job.schema import JobSection, LabelEntry, PartyEntry


@dataclass(frozen=True)
class Participants:
    """Who takes part; as far as the reader knows, over the network."""

    label_party: PartyName
    feature_parties: tuple[PartyName, ...]  # in the job's order
    label_party_has_features: bool = False
    has_test_rows: bool = False
    has_validation_rows: bool = False
    measures_columns: bool = False  # how much the score hangs on each of a feature party's columns
    is_regression: bool = False  # exact, over directions of the parties' columns
    points_to_double_odds: Any = None  # of a scorecard
    has_products: bool = False  # the top model multiplies outputs of different parties
    tree_curvature: float | str | None = None  # of the loss, where a party with trees reads it from the label party's
    grouped: Mapping[PartyName, str] = field(default_factory=dict)  # parties of owners of rows; by which ids


def describe_training(recipe: Recipe, participants: Participants) -> dict[PartyName, list[str]]:
    """For each party, the label party first, what it is sent and what follows from it."""
    sees = {participants.label_party: _label_party_sees(recipe, participants)}
    for party in participants.feature_parties:
        sees[party] = _feature_party_sees(recipe, participants, party in participants.grouped)
    return sees


def describe_budget(recipe: Recipe, training: Training, limit: Budget | None) -> str:
    """What stands between the parties' rows and what is seen, in one sentence."""
    if not recipe.is_noisy:
        return "no privacy budget: this recipe adds no noise to what is sent"
    if recipe.uplink.compressor.protects_alone:
        return _describe_own_noise(recipe, training, limit)
    bare = "labels and derivatives are not protected at all"
    if isinstance(training, TrainedOnRawRows):
        return (
            "no privacy budget is kept: every party adds noise to its embeddings before they are summed, but the "
            f"bottom models are trained on exact rows, so epsilon end to end is infinite; {bare}"
        )
    how = "are frozen" if isinstance(training, Frozen) else f"are trained with {training}"
    if limit is None:
        return (
            "no privacy budget is set: every use of a row costs privacy and is counted; the bottom models "
            f"{how}; {bare}"
        )
    return (
        f"no row of a feature party loses more than epsilon {limit.epsilon:g} (delta {limit.delta:g}) end to end, "
        f"against {limit.observer.display_name}; the bottom models {how}; {bare}"
    )


def _describe_own_noise(recipe: Recipe, training: Training, limit: Budget | None) -> str:
    chance = f"every release of a row's codes is by {recipe.uplink.compressor}, and costs its epsilon"
    if not isinstance(training, Frozen):
        return (
            f"no privacy budget is kept: {chance} given the bins; but the bins depend on all of a party's rows, so "
            "epsilon end to end is infinite"
        )
    if limit is None:
        return f"no privacy budget is set: {chance}; the edges of the bins are public"
    return (
        f"no row of a feature party loses more than epsilon {limit.epsilon:g} end to end: {chance}; the edges of "
        "the bins are public"
    )


@dataclass(frozen=True)
class Consent:
    """What a party agrees to before any of its data is read: all of it in words, and a digest of these words."""

    section: PartyEntry  # the party's own
    recipe: Recipe
    participants: Participants
    protection: str  # the budget, in one sentence
    agreement: Mapping[str, str]  # what all parties read alike, field by field

    @property
    def me(self) -> PartyName:
        return self.section.name

    @property
    def digest(self) -> str:
        """Of every term; `approved` in the party's own section is this, or its first digits."""
        # Whether the label party has features is not known to whoever has a file of its own, or a run's.
        known = replace(self.participants, label_party_has_features=False)
        return sha256("\n".join(replace(self, participants=known).list_terms()).encode()).hexdigest()

    def describe_training(self) -> str:
        """For people to read and approve."""
        first, *terms = self.list_terms()
        return "\n  ".join([first, f"agreement digest {self.digest}", *terms])

    def describe_scoring(self) -> str:
        """The same before rows are scored."""
        first = f"{self.me!r} is asked to predict with {self.recipe.name!r}"
        terms = [self._say_scoring(), self.protection, *self._list_code(), *self._list_allowances()]
        return "\n  ".join([first, f"agreement digest {self.digest}", *terms])

    def list_terms(self) -> list[str]:
        """The whole agreement."""
        everyone = (*self.participants.feature_parties, self.participants.label_party)
        others = ", ".join(party for party in everyone if party != self.me)
        # What trees follow from is the label party's matter, and a run's own file does not say it.
        unsaid = ("recipe", "trees.")
        shared = {field: value for field, value in self.agreement.items() if not field.startswith(unsaid)}
        own = self.section.model_dump(mode="json", include={"prepare", "model", "top"}, exclude_none=True)
        return [
            f"{self.me!r} is asked to take part in {self.recipe.name!r} with {others}",
            f"recipe digest {self.recipe.digest()}",
            *self.list_disclosures(),
            *self._list_inference(),
            self.protection,
            *([] if self.recipe.repeatable else ["not reproducible bit for bit: local steps depend on timing"]),
            f"for all parties: {', '.join(f'{field} = {value}' for field, value in shared.items())}",
            *(f"for {self.me} alone: {field} = {_text(value)}" for field, value in own.items()),
            *self._list_code(),
            f"when rows are scored: {self._say_scoring()}",
            *self._list_allowances(),
        ]

    def list_disclosures(self) -> list[str]:
        """A sentence for each party."""
        seen = describe_training(self.recipe, self.participants)
        return [f"{party} sees {'; '.join(what)}" for party, what in seen.items()]

    def _say_scoring(self) -> str:
        seen = _embeddings_of("row it asks for", self.recipe)
        return f"{self.participants.label_party} sees {seen}, and all scores"

    def _list_code(self) -> list[str]:
        found = find_modules(self.section.path, self.section.model_dump())
        return [f"{place} runs this party's own code: {module}" for place, module in found.items()]

    def _list_inference(self) -> list[str]:
        """What standard errors cost a feature party."""
        label_party, model = self.participants.label_party, self.section.model or {}
        if not model.get("inference") or self.me == label_party:
            return []
        left = f"the directions that are left of {self.me}'s columns"
        return [f"inference: at the end {label_party} is sent {left}; it then holds all of them up to a rotation"]

    def _list_allowances(self) -> list[str]:
        """What a feature party's section allows on-line beyond its answers."""
        label_party, terms = self.participants.label_party, self.section.serve
        if terms is None or self.me == label_party:
            return []
        lines = []
        if terms.cache_rows is not None:
            lines.append(f"{label_party} may keep {terms.cache_rows} of its embeddings for {terms.cache_seconds:g} s")
        if terms.when_missing == "mean":
            lines.append(f"{label_party} gets the mean of its training rows' embeddings")
        return lines

    def is_approved(self) -> bool:
        """Does the party's own section approve this agreement? Another digest there is an error, not a question."""
        approved = self.section.approved
        if approved is None or self.digest.startswith(approved):
            return approved is not None
        if self.recipe.digest().startswith(approved):
            raise BadInput(
                f"{self.me!r} has approved only the recipe {approved}, as in earlier versions; an approval now "
                f'covers the whole agreement. Read it, then set approved = "{self.digest[:16]}"'
            )
        raise BadInput(
            f"{self.me!r} has approved the agreement {approved}, but the job's is {self.digest}; read it "
            "(`thinwire doctor` shows it), then change `approved` or the job"
        )


def describe_alignment(
    me: PartyName, label_party: PartyName, feature_parties: Sequence[PartyName], grouped: Mapping[PartyName, str]
) -> str:
    """What everybody learns when ids are aligned; `grouped` parties hold owners of rows."""
    lines = [
        f"{me!r} is asked to align its ids with the others'; no other id is shown",
        f"{label_party} learns how many ids {', '.join(feature_parties)} bring, and which of its own ids each of "
        "them has",
        *(
            f"{party} learns how many ids {label_party} brings, and which of its own ids all parties have"
            for party in feature_parties
            if party not in grouped
        ),
        *(
            f"{party} learns how many different ids {label_party} has in {column!r}, and to which of its own ids "
            "every common row belongs, and therefore how many rows each of them has"
            for party, column in grouped.items()
        ),
        "where a party brings more than a million ids, all learn the number of buckets, a power of two that follows "
        "from the largest set; how many ids a bucket has is hidden",
    ]
    return "\n  ".join(lines)


def _label_party_sees(recipe: Recipe, participants: Participants) -> list[str]:
    how = _whose(recipe)
    sees = [f"its labels, {how} embeddings of every training row, {_sent(recipe)} {recipe.uplink.compressor}"]
    if _sends_leaves(recipe):
        sees.append("which training rows share a leaf of a party's trees, in every exchange")
    if recipe.uplink.compressor.protects_alone:
        sees.append("randomised codes only: each party replaces some of its codes at random")
    elif _is_one_way(recipe):
        sees.append(
            "these hold a coarse, permanent copy of what each party encodes; `thinwire audit` measures how coarse"
        )
    if participants.grouped:
        holders = ", ".join(participants.grouped)
        sees.append(f"which rows have an owner of {holders} in common: it holds the owners' ids itself")
    if participants.has_validation_rows:
        often = "once" if _is_one_way(recipe) else "at every evaluation"
        sees.append(f"{_validation_embeddings(recipe)}, {often}")
    if participants.has_test_rows:
        once = participants.has_validation_rows or _is_one_way(recipe)
        when = "once, at the end" if once else "at every evaluation"
        sees.append(f"{_embeddings_of('test row', recipe)}, {when}")
    if participants.measures_columns:
        permuted = _embeddings_of("test row with one of its owner's columns permuted", recipe)
        sees.append(f"{permuted}, for each column without its name; the score lost by each")
    if participants.points_to_double_odds is not None:
        return [*sees, _DIRECTIONS_OF_BINS]
    return [*sees, _DIRECTIONS] if participants.is_regression else sees


_DIRECTIONS = (
    "with every exchange one more direction of each party's columns: after as many exchanges as a party has columns, "
    "all of them up to a rotation, which independent component analysis can often undo"
)


_PRODUCTS = (
    "approximately, for every training row, the sum of the other parties' outputs that its own are multiplied "
    "with: a quotient of derivatives"
)


_DIRECTIONS_OF_BINS = (
    "with every exchange one more direction of each party's weight of evidence, a number for every bin: after as "
    "many exchanges as a party has columns, all of them up to a rotation, which is easily undone where columns have "
    "few bins"
)


def _describe_index(participants: Participants) -> str:
    """What a party that holds owners of rows knows of them."""
    index = "which of its own rows every row of the run belongs to, and therefore how many rows each of them has"
    if len(participants.grouped) == 1:
        return index
    return f"{index}; parties that combine these ({', '.join(participants.grouped)}) know which owners share rows"


def _is_one_way(recipe: Recipe) -> bool:
    return isinstance(recipe.schedule, OneWay)


def _sends_leaves(recipe: Recipe) -> bool:
    return isinstance(recipe.uplink.compressor, Codebook)


def _embeddings_of(row: str, recipe: Recipe) -> str:
    """Of rows that are only scored: of test rows, in a prediction and in serving they travel alike."""
    exact = "exactly" if isinstance(recipe.scoring, Identity) else f"rounded by {recipe.scoring}"
    as_sent = "by the same mechanism" if recipe.is_charged else exact
    return f"{_whose(recipe)} embeddings of every {row}, {as_sent}"


def _validation_embeddings(recipe: Recipe) -> str:
    if recipe.evaluation_step is None:
        return _embeddings_of("validation row", recipe)
    return f"every party's embeddings of every validation row, rounded to {recipe.evaluation_step:g} deviations"


def _whose(recipe: Recipe) -> str:
    return "the sum of all parties'" if isinstance(recipe.aggregation, SecureSum) else "every party's"


def _feature_party_sees(recipe: Recipe, participants: Participants, is_grouped: bool = False) -> list[str]:
    verdict = "one bit per evaluation: whether the validation score is the best so far"
    losses = "for each of its own columns, the score on the test rows that is lost when it is permuted"
    is_card = participants.points_to_double_odds is not None
    return [
        *_answers_seen(recipe, participants, "owner of training rows" if is_grouped else "training row"),
        *([_describe_index(participants)] if is_grouped else []),
        *(["its own coefficients"] if participants.is_regression else []),
        *([_PRODUCTS] if participants.has_products else []),
        *(["how many rows of each class are in every bin of its columns"] if is_card else []),
        *([verdict] if participants.has_validation_rows else []),
        *([losses] if participants.measures_columns else []),
    ]


def _answers_seen(recipe: Recipe, participants: Participants, row: str) -> list[str]:
    if recipe.labels is Labels.SHARED and isinstance(recipe.aggregation, SecureSum):
        theirs = [f"{participants.label_party}'s embeddings"] if participants.label_party_has_features else []
        return ["all labels", "the top model", f"the sum of all parties' embeddings, {_sent(recipe)} them", *theirs]
    if recipe.labels is Labels.SHARED:
        own = f", {participants.label_party}'s own among them" if participants.label_party_has_features else ""
        return ["all labels", "the top model", f"every party's embeddings{own}, {_sent(recipe)} the others"]
    if _is_one_way(recipe):
        return ["no labels and no derivatives; after every block of rows, whether more are needed"]
    summed = isinstance(recipe.aggregation, SecureSum)
    one = "the derivative of the sum" if summed else "its own derivative"
    if isinstance(recipe.defence, NoDefence) and _sends_leaves(recipe):
        return [f"{one} for every {row}, whose sign is the label where the top model only adds a bias"]
    if isinstance(recipe.defence, NoDefence):
        return [f"{one} for every {row}, from which labels can often be guessed"]
    return [f"{one} for every {row}, after {recipe.defence}; `thinwire audit` measures what still leaks"]


def _sent(recipe: Recipe) -> str:
    return "as changes of surrogates by" if isinstance(recipe.uplink, ErrorFeedback) else "as sent by"


# What all parties of a job must read alike, field by field --------------------------------------------------------


# Targets, budgets and metrics are the label party's to judge, devices and diagnostics everyone's own matter.
_SETTINGS = ("epochs", "batch_size", "batches", "seed", "eval_every", "effort", "training", "budget", "split")


def describe_agreement(
    recipe: Recipe, settings: JobSection, roster: Participants, top: LabelEntry | None
) -> dict[str, str]:
    """Every shared field by its dotted path; `top` under shared labels, where every party builds the top model.

    "recipe" is the recipe's digest; the fields below it only serve to name a difference.
    """
    found = {"recipe": recipe.digest()}
    found |= _leaves("recipe", {key: part for key, part in recipe.describe().items() if key != "is"})
    given = settings.model_dump()
    for name in _SETTINGS:
        found[f"job.{name}"] = _text(given[name])
    if settings.column_importance:  # approvals are older than it
        found["job.column_importance"] = _text(True)
    found |= {f"party.{name}.group": column for name, column in roster.grouped.items()}
    found["parties"] = ", ".join(roster.feature_parties)
    found["label_party"] = roster.label_party
    if roster.is_regression:
        points = roster.points_to_double_odds
        found["model"] = "regression" if points is None else f"scorecard, {_text(points)} points to double the odds"
    if roster.tree_curvature is not None:
        whose = "of the label party's top, fusion, loss and class_weights"
        found[f"trees.curvature ({whose})"] = _text(roster.tree_curvature)
    if top is not None:
        found["label_party.fusion"] = top.fusion
        found["label_party.loss"] = top.loss
        found["label_party.class_weights"] = _text(top.class_weights)
        found |= _leaves("label_party.top", fill_defaults(top.top or {}, "name", MODELS))
    return found


def _leaves(path: str, value: Any) -> dict[str, str]:
    """The kind of a part stands under the part's own path."""
    if not isinstance(value, Mapping):
        return {path: _text(value)}
    found: dict[str, str] = {}
    for key, part in value.items():
        found |= _leaves(path if key == "is" else f"{path}.{key}", part)
    return found


def _text(value: Any) -> str:
    """Canonical: 2 and 2.0 epochs are as many."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value, sort_keys=True)
