"""A job from Python that is trained in a moment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import thinwire as tw

ROWS, TESTS = 64, 32


def tables() -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    bank, shop = (torch.randn(ROWS + TESTS, 3, generator=rng) for _ in range(2))
    return {"bank": bank, "shop": shop, "labels": (bank.sum(1) + shop.sum(1) > 0).long()}


def small_job(**changes: Any) -> tw.Job:
    """Two parties with features, one of them with the labels."""
    data = tables()
    torch.manual_seed(3)
    settings: dict[str, Any] = {
        "recipe": tw.methods.efvfl(tw.compress.TopK(0.5), labels="private"),
        "optimizer": tw.SGD(lr=0.2),
        "batch_size": 32,
        "epochs": 3,
        "seed": 5,
    }
    return tw.Job(
        [tw.FeatureParty("bank", data["bank"][:ROWS], nn.Linear(3, 4), data["bank"][ROWS:])],
        tw.LabelParty(
            "shop",
            data["labels"][:ROWS],
            nn.Linear(4, 2),
            data["labels"][ROWS:],
            features=data["shop"][:ROWS],
            test_features=data["shop"][ROWS:],
            bottom=nn.Linear(3, 4),
        ),
        **{**settings, **changes},
    )
