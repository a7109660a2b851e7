"""A small real problem, and the same job under any recipe, always from the same weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import thinwire as tw
from thinwire.job.job import Job
from thinwire.training.result import Result

WIDTH = 8


@lru_cache
def digits() -> tuple[list[Tensor], Tensor]:
    """Four quadrants [360, 16] and the digits."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:360] / 16, dtype=torch.float32).reshape(-1, 8, 8)
    quadrants = [x[:, :4, :4], x[:, :4, 4:], x[:, 4:, :4], x[:, 4:, 4:]]
    return [quadrant.reshape(len(x), 16) for quadrant in quadrants], torch.tensor(labels[:360])


def bottom(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, WIDTH), nn.Tanh())


def top(fusion: str = "sum", parties: int = 3) -> nn.Module:
    torch.manual_seed(99)
    return nn.Linear(WIDTH * (parties if fusion == "concat" else 1), 10)


def job(recipe: tw.Recipe, parties: int = 3, own: bool = False, fusion: str = "sum", **settings: Any) -> Job:
    """`parties` quadrants; with `own`, the last of them belongs to the label party."""
    x, y = digits()
    train, test = slice(0, 240), slice(240, 360)
    feature_parties = parties - 1 if own else parties
    extra: dict[str, Any] = {}
    if own:
        k = parties - 1
        extra = {"features": x[k][train], "test_features": x[k][test], "bottom": bottom(k)}
    return tw.Job(
        parties=[
            tw.FeatureParty(f"p{k}", features=x[k][train], test_features=x[k][test], bottom=bottom(k))
            for k in range(feature_parties)
        ],
        label_party=tw.LabelParty(
            "lab", labels=y[train], test_labels=y[test], top=top(fusion, parties), fusion=fusion, **extra
        ),
        recipe=recipe,
        **{"optimizer": tw.SGD(lr=0.5), "batch_size": 50, "epochs": 4, "eval_every": 5, **settings},
    )


def trained(recipe: tw.Recipe, **settings: Any) -> Result:
    return tw.train(job(recipe, **settings))


def weights(result: Result) -> dict[str, Tensor]:
    return {f"{name}.{key}": t for name, m in result.models.items() for key, t in m.state_dict().items()}


def same_models(a: Result, b: Result) -> bool:
    left, right = weights(a), weights(b)
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def without_times(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in ("seconds",)} for row in history]
