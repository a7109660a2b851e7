"""What a score hangs on: permutation importance by party and by column, and the score without a party's data.

It looks at all parties' models and features at once, as only a simulator can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor, nn

from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.protocols.evaluation import compute_outputs, embed_in_chunks
from thinwire.job.job import Job
from thinwire.report.record import ColumnImportance, Importance, PartyImportance
from thinwire.training.baselines import choose_score
from thinwire.training.result import better

_PERMUTATIONS = 3
_MOST_COLUMNS = 200  # of a party: each costs three passes over the rows


@dataclass(frozen=True, eq=False)
class ScoredParty:
    """A party's trained bottom model, the rows that are scored, and those that it was trained on."""

    name: str
    bottom: nn.Module
    features: Tensor  # [N, ...] to score
    training_features: Tensor
    columns: Mapping[str, Sequence[int]]  # which features each column of its table became; none: not looked at

    @classmethod
    def of(cls, party: FeatureParty | LabelParty, device: str) -> ScoredParty | None:
        """On its test rows; None where it has no features."""
        if party.bottom is None or party.test_features is None:
            return None
        test, training = party.test_features.to(device), party.features.to(device)
        return cls(party.name, party.bottom, test, training, list_columns(party))

    def embed(self, features: Tensor) -> Tensor:
        return embed_in_chunks(self.bottom, features)


def list_columns(party: FeatureParty | LabelParty) -> Mapping[str, Sequence[int]]:
    """The features of each column, by its name where the table had names; none for pictures and series."""
    if party.preparation is not None:
        return party.preparation.feature_places
    if party.features.dim() != 2:
        return {}
    return {f"column {place}": [place] for place in range(party.features.shape[1])}


@dataclass(frozen=True, eq=False)
class FusedModel:
    """The top model, and how its outputs are scored."""

    top: nn.Module
    fusion: str
    metric: str
    sign: int  # 1 where a higher score is better
    score: Callable[[Tensor], float]  # of outputs, on the rows that are scored

    def score_embeddings(self, embeddings: Sequence[Tensor]) -> float:
        return self.score(compute_outputs(self.top, self.fusion, embeddings).cpu())


def measure_job_importance(job: Job) -> Importance:
    """On the test rows of a job whose parties are all here, with the models as they are now."""
    label, name = job.label_party, next(iter(job.metrics), "loss")
    score = choose_score(name, label)
    model = FusedModel(label.top, label.fusion, name, better(name), lambda outputs: score(outputs, label.test_labels))
    held = [ScoredParty.of(party, job.device) for party in job.everyone]
    return measure_importance(model, [party for party in held if party is not None])


def measure_importance(model: FusedModel, parties: Sequence[ScoredParty]) -> Importance:
    """Every party's, in the order of the fusion; every column's where a party has not too many."""
    began = perf_counter()
    ablation = _Ablation(model, parties)
    columns = [one for place in range(len(parties)) for one in ablation.measure_columns(place)]
    return Importance(
        metric=model.metric,
        value=ablation.value,
        parties=tuple(ablation.measure_party(place) for place in range(len(parties))),
        columns=tuple(sorted(columns, key=lambda one: -one.lost)),
        seconds=perf_counter() - began,
        note=_describe_missing(parties),
    )


class _Ablation:
    """Changes one party's part, and scores again."""

    def __init__(self, model: FusedModel, parties: Sequence[ScoredParty]) -> None:
        self._model = model
        self._parties = parties
        self._embeddings = [party.embed(party.features) for party in parties]
        self.value = model.score_embeddings(self._embeddings)

    def measure_party(self, place: int) -> PartyImportance:
        h, party = self._embeddings[place], self._parties[place]
        scores = [self._score_with(place, h[rows]) for rows in self._permutations(h)]
        mean = party.embed(party.training_features).mean(dim=0)
        without = self._score_with(place, mean.expand_as(h))
        return PartyImportance(
            party=party.name, lost=self._lost(scores), without=without, worth=self._lost([without])
        )

    def measure_columns(self, place: int) -> Iterator[ColumnImportance]:
        party = self._parties[place]
        for name, features in party.columns.items() if len(party.columns) <= _MOST_COLUMNS else ():
            scores = [self._score_column(place, features, rows) for rows in self._permutations(party.features)]
            yield ColumnImportance(party=party.name, column=name, lost=self._lost(scores))

    def _score_column(self, place: int, features: Sequence[int], rows: Tensor) -> float:
        changed = self._parties[place].features.clone()
        changed[:, features] = changed[rows][:, features]
        return self._score_with(place, self._parties[place].embed(changed))

    def _score_with(self, place: int, h: Tensor) -> float:
        return self._model.score_embeddings([*self._embeddings[:place], h, *self._embeddings[place + 1 :]])

    def _lost(self, scores: Sequence[float]) -> float:
        return self._model.sign * (self.value - sum(scores) / len(scores))

    def _permutations(self, like: Tensor) -> Iterator[Tensor]:
        """The same for every party and column, so that they can be compared."""
        for seed in range(_PERMUTATIONS):
            yield torch.randperm(len(like), generator=torch.Generator().manual_seed(seed)).to(like.device)


def _describe_missing(parties: Sequence[ScoredParty]) -> str:
    said = [
        f"{party.name} has {len(party.columns)} columns, more than the {_MOST_COLUMNS} that are permuted one by one"
        for party in parties
        if len(party.columns) > _MOST_COLUMNS
    ]
    return f"{'; '.join(said)}." if said else ""
