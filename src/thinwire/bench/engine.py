"""What the engine costs on top of the models: simulated split learning against a plain torch loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinwire.bench.rows import Row, paired
from thinwire.job import Job, train
from thinwire.methods import svfl
from thinwire.models import SGD, ResNet18
from thinwire.party import FeatureParty, LabelParty

__all__ = ["Case", "engine_ms", "full_batch", "plain_ms", "resnets", "rows"]


@dataclass(frozen=True)
class Case:
    """A network split between parties, and how long to run it. Data is random: time does not depend on it."""

    name: str
    features: list[Tensor]
    labels: Tensor
    build: Callable[[], tuple[list[nn.Module], nn.Module]]
    batch_size: int | None
    rounds: int


def rows() -> list[Row]:
    torch.set_num_threads(1)
    found = []
    for name, case, repeats in (("full batch", full_batch(), 5), ("resnet18", resnets(4), 3)):
        pair = paired(lambda case=case: engine_ms(case), lambda case=case: plain_ms(case), repeats)  # type: ignore[misc]
        found.append(pair.row(name, f"a simulated round, {case.name}", "plain torch", "ms"))
    return found


def full_batch(rounds: int = 12) -> Case:
    """The EF-VFL paper's network on as many rows as MNIST has."""

    def build() -> tuple[list[nn.Module], nn.Module]:
        bottoms: list[nn.Module] = [nn.Sequential(nn.Linear(196, 16, bias=False), nn.Sigmoid()) for _ in range(4)]
        return bottoms, nn.Linear(16, 10, bias=False)

    rng = torch.Generator().manual_seed(0)
    features = [torch.rand(60000, 196, generator=rng) for _ in range(4)]
    labels = torch.randint(0, 10, (60000,), generator=rng)
    return Case("MNIST network, full batch", features, labels, build, None, rounds)


def resnets(rounds: int = 6) -> Case:
    def build() -> tuple[list[nn.Module], nn.Module]:
        return [ResNet18(3, 32, base_width=16) for _ in range(4)], nn.Linear(32, 10)

    rng = torch.Generator().manual_seed(0)
    features = [torch.rand(256, 3, 16, 16, generator=rng) for _ in range(4)]
    labels = torch.randint(0, 10, (256,), generator=rng)
    return Case("resnet18 width 16, quadrants", features, labels, build, 128, rounds)


def plain_ms(case: Case) -> float:
    """A median round in one loop, the same arithmetic; the first one is left out."""
    torch.manual_seed(0)
    bottoms, top = case.build()
    optimizer = torch.optim.SGD([p for module in (*bottoms, top) for p in module.parameters()], lr=0.1)
    size = case.batch_size or len(case.labels)
    marks = []
    for t in range(case.rounds):
        first = t * size % len(case.labels)
        rows: Any = slice(None) if case.batch_size is None else torch.arange(first, first + size)
        total = bottoms[0](case.features[0][rows])
        for module, x in zip(bottoms[1:], case.features[1:], strict=True):
            total = total + module(x[rows])
        cross_entropy(top(total), case.labels[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()
        marks.append(perf_counter())
    return _median_ms(marks)


def engine_ms(case: Case) -> float:
    """A median round of svfl between simulated parties; the first one is left out."""
    torch.manual_seed(0)
    bottoms, top = case.build()
    per_epoch = -(-len(case.labels) // (case.batch_size or len(case.labels)))
    job = Job(
        [FeatureParty(f"p{k}", x, bottoms[k]) for k, x in enumerate(case.features)],
        LabelParty("labels", case.labels, top),
        svfl(),
        optimizer=SGD(lr=0.1),
        batch_size=case.batch_size,
        epochs=case.rounds / per_epoch,
        eval_every=10**6,
        diagnostics=False,
        metrics=[],
    )
    marks: list[float] = []
    train(job, callbacks=[], on_round=lambda _: marks.append(perf_counter()))
    return _median_ms(marks)


def _median_ms(marks: list[float]) -> float:
    """Not the mean: a round that the machine disturbs says nothing of the others."""
    return 1e3 * median(later - sooner for sooner, later in pairwise(marks))
