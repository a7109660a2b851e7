"""What a score hangs on: permutation importance by party and by column, and the score without a party's data.

All of it follows from the test rows' embeddings as the label party receives them: a simulated run and one over the
network have the same figures. Columns are permuted by their owners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor, nn

from thinwire.base.types import PartyName
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.protocols.evaluation import (
    MOST_COLUMNS,
    ColumnTable,
    HeldOut,
    compress_for_scoring,
    compute_outputs,
    embed_in_chunks,
    permute_rows,
)
from thinwire.engine.recipe import Recipe
from thinwire.job.job import Job
from thinwire.report.record import ColumnGain, ColumnImportance, Importance, PartyImportance
from thinwire.training.baselines import choose_score
from thinwire.training.result import better


@dataclass(frozen=True, eq=False)
class FusedModel:
    """The top model, and how its outputs are scored."""

    top: nn.Module
    fusion: str
    metric: str
    sign: int  # 1 where a higher score is better
    score: Callable[[Tensor], float]  # of outputs, on the rows that are scored

    @classmethod
    def of(cls, label: LabelParty, metrics: Sequence[str]) -> FusedModel:
        """By the first metric, on the test rows."""
        name = next(iter(metrics), "loss")
        score = choose_score(name, label)
        return cls(label.top, label.fusion, name, better(name), lambda outputs: score(outputs, label.test_labels))

    def score_embeddings(self, embeddings: Sequence[Tensor]) -> float:
        return self.score(compute_outputs(self.top, self.fusion, embeddings).cpu())


class Ablation:
    """Changes one party's part, and scores again."""

    def __init__(self, model: FusedModel, embeddings: Mapping[PartyName, Tensor]) -> None:
        """`embeddings` of the test rows, in the order of the fusion."""
        self.model = model
        self._embeddings = embeddings
        self.value = model.score_embeddings([*embeddings.values()])

    def lose(self, party: PartyName, h: Tensor) -> float:
        """What the score loses with another embedding of the party's; more digits would tell more of the labels."""
        return float(f"{self._subtract(self._score_with(party, h)):.3g}")

    def measure(self, columns: Mapping[PartyName, Mapping[str, float]], note: str = "") -> Importance:
        """Every party's; beside it what `columns` are worth, by their owners."""
        parties = tuple(self._measure_party(party, h) for party, h in self._embeddings.items())
        return Importance(
            metric=self.model.metric, value=self.value, parties=parties, columns=rank_columns(columns), note=note
        )

    def _measure_party(self, party: PartyName, h: Tensor) -> PartyImportance:
        permuted = fmean(self._score_with(party, h[rows.to(h.device)]) for rows in permute_rows(len(h)))
        without = self._score_with(party, h.mean(dim=0).expand_as(h))
        return PartyImportance(
            party=party,
            lost=self._subtract(permuted),
            permuted=permuted,
            without=without,
            worth=self._subtract(without),
        )

    def _score_with(self, party: PartyName, h: Tensor) -> float:
        return self.model.score_embeddings([*{**self._embeddings, party: h}.values()])

    def _subtract(self, score: float) -> float:
        return self.model.sign * (self.value - score)


# Columns ----------------------------------------------------------------------------------------------------------


def list_columns(party: FeatureParty | LabelParty) -> Mapping[str, Sequence[int]]:
    """The features of each column, by its name where the table had names; none for pictures and series."""
    if party.preparation is not None:
        return party.preparation.feature_places
    if party.features is None or party.features.dim() != 2:
        return {}
    return {f"column {place}": [place] for place in range(party.features.shape[1])}


def measure_columns(
    party: FeatureParty | LabelParty, ablation: Ablation, recipe: Recipe, device: str
) -> dict[str, float]:
    """Of a party whose model and test rows are here; a feature party's embeddings count as they would travel."""

    def lose(h: Tensor) -> float:
        sent = _receive_test_rows(party, recipe, h) if isinstance(party, FeatureParty) else h
        return ablation.lose(party.name, sent)

    if party.bottom is None:
        return {}
    return ColumnTable(party.test_features.to(device), list_columns(party)).measure(party.bottom, lose)


def rank_columns(lost: Mapping[PartyName, Mapping[str, float]]) -> tuple[ColumnImportance, ...]:
    """The most important first."""
    found = [
        ColumnImportance(party=party, column=name, lost=value)
        for party, columns in lost.items()
        for name, value in columns.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.lost))


def rank_gains(parties: Sequence[FeatureParty | LabelParty]) -> tuple[ColumnGain, ...]:
    """Of the parties with trees, by what their splits gained; the largest first."""
    found = []
    for party in parties:
        gains = party.bottom.find_gains() if isinstance(party.bottom, BoostedTrees) else {}
        for name, places in list_columns(party).items() if gains else ():
            share = sum(gains.get(place, 0.0) for place in places) / sum(gains.values())
            found.append(ColumnGain(party=party.name, column=name, share=share))
    return tuple(sorted(found, key=lambda one: -one.share))


def describe_unmeasured(parties: Sequence[FeatureParty | LabelParty]) -> str:
    """Why a party has no columns; nothing where each has some."""
    counts = {party.name: len(list_columns(party)) for party in parties}
    said = [
        f"{name} has {count} columns, more than the {MOST_COLUMNS} that can be permuted one by one"
        for name, count in counts.items()
        if count > MOST_COLUMNS
    ]
    return f"{'; '.join(said)}." if said else ""


# A job whose parties are all here ---------------------------------------------------------------------------------


def _receive_test_rows(party: FeatureParty, recipe: Recipe, h: Tensor) -> Tensor:
    """Embeddings of test rows, or of their owners, as the label party has them: one per row."""
    sent = compress_for_scoring(recipe, h).to_tensor()
    return sent if party.owners is None else party.owners.held_out[HeldOut.TEST].select_all().expand(sent)


def embed_test_rows(job: Job) -> list[Tensor]:
    """Every feature party's as the label party would receive them, its own last: with the models as they are now."""

    def embed(bottom: nn.Module, features: Tensor) -> Tensor:
        return embed_in_chunks(bottom, features.to(job.device))

    own = job.label_party
    received = [
        _receive_test_rows(party, job.recipe, embed(party.bottom, party.test_features)) for party in job.parties
    ]
    return received if own.bottom is None else [*received, embed(own.bottom, own.test_features)]


def measure_job_importance(
    job: Job, ablation: Ablation, measured: Mapping[PartyName, Mapping[str, float]]
) -> Importance:
    """Columns that were `measured` by messages are not measured again."""
    columns = {
        party.name: measured[party.name]
        if party.name in measured
        else measure_columns(party, ablation, job.recipe, job.device)
        for party in job.everyone
    }
    found = ablation.measure(columns, describe_unmeasured(job.everyone))
    return found.model_copy(update={"gains": rank_gains(job.everyone)})
