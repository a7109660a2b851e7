"""Parties that are elsewhere, played by stand-ins, so that the checks of a whole job serve for one party's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.job.checks import build_budget
from thinwire.job.job import Job
from thinwire.job.registry import build_training
from thinwire.job.schema import JobSection
from thinwire.party import FeatureParty, LabelParty
from thinwire.recipe import Recipe
from thinwire.types import PartyName

__all__ = ["Rows", "absent_feature_party", "absent_label_party", "job_of"]


@dataclass(frozen=True)
class Rows:
    """How many rows all parties hold."""

    training: int
    test: int | None = None


class _Elsewhere(nn.Module):
    """A bottom model of which the width is known, and no more."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), self._width)


def absent_feature_party(name: PartyName, rows: Rows, width: int) -> FeatureParty:
    tests = None if rows.test is None else torch.zeros(rows.test, 1)
    return FeatureParty(name, torch.zeros(rows.training, 1), _Elsewhere(width), tests)


def absent_label_party(name: PartyName, rows: Rows) -> LabelParty:
    """Without features; its top model and loss take any embedding."""
    tests = None if rows.test is None else torch.zeros(rows.test)
    return LabelParty(name, torch.zeros(rows.training), nn.Identity(), tests, loss=_any_loss)


def job_of(recipe: Recipe, settings: JobSection, parties: Sequence[FeatureParty], label_party: LabelParty) -> Job:
    """A job to check, not to train: without link, targets and optimisers."""
    return Job(
        parties,
        label_party,
        recipe,
        batch_size=settings.batch_size,
        batches=settings.batches,
        epochs=settings.epochs,
        seed=settings.seed,
        eval_every=settings.eval_every,
        metrics=settings.metrics,
        effort=settings.effort,
        device=settings.device,
        training=build_training("job.training", settings.training),
        budget=build_budget(settings),
    )


def _any_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.sum(dim=1) + 0 * labels
