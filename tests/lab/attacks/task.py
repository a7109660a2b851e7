"""A task such as clicks: four parties, one row in ten positive, and labels that no model can quite predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import thinwire as tw

ROWS, TESTS, COLUMNS, WIDTH = 1000, 1000, 5, 8
PARTIES = ("bank", "shop", "clinic", "tax")


def table() -> tuple[list[Tensor], Tensor]:
    """Each party's columns [N, 5], and the labels: a logistic model of all columns."""
    rng = torch.Generator().manual_seed(7)
    x = torch.randn(ROWS + TESTS, len(PARTIES) * COLUMNS, generator=rng)
    weights = torch.randn(x.shape[1], generator=rng)
    logits = 1.5 * x @ weights / weights.norm() - 2.9
    labels = (torch.rand(len(x), generator=rng) < torch.sigmoid(logits)).long()
    return list(x.split(COLUMNS, dim=1)), labels


def positive() -> Tensor:
    return table()[1][:ROWS] == 1


def bottom(place: int) -> nn.Module:
    torch.manual_seed(place)
    return nn.Sequential(nn.Linear(COLUMNS, 16), nn.Tanh(), nn.Linear(16, WIDTH), nn.Tanh())


def job(recipe: tw.Recipe, bottoms: Callable[[int], nn.Module] = bottom, **settings: Any) -> tw.Job:
    """One logit of summed embeddings, always from the same weights."""
    x, y = table()
    train, test = slice(0, ROWS), slice(ROWS, None)
    torch.manual_seed(99)
    return tw.Job(
        parties=[
            tw.FeatureParty(name, x[place][train], bottoms(place), x[place][test])
            for place, name in enumerate(PARTIES)
        ],
        label_party=tw.LabelParty("ads", y[train], nn.Linear(WIDTH, 1), y[test], loss=tw.losses.binary_cross_entropy),
        recipe=recipe,
        **{
            "optimizer": tw.Adam(lr=0.01),
            "batch_size": 100,
            "epochs": 10,
            "metrics": ["auc"],
            "diagnostics": False,
            "noise_secret": bytes(range(32)),
            **settings,
        },
    )


class Recording(nn.Module):
    """A bottom model that keeps every derivative that its party was sent."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.received: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.module(x)
        if h.requires_grad:
            h.register_hook(lambda derivative: self.received.append(derivative.clone()))
        return h
