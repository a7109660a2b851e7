"""What computing costs here: a step of each party's models, and what a round takes beyond its steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.types import PartyName
from thinwire.engine.channel.link import Link
from thinwire.engine.models.fusion import fuse
from thinwire.engine.privacy.accounting.exposure import Frozen
from thinwire.job.job import Job

_REPEATS = 5  # at least
_ENOUGH_SECONDS = 0.5  # of one party's repeats
_MOST = 25


def measure_step_ms(job: Job) -> dict[PartyName, float]:
    """One update of each party on the first batch, forward, backward and optimiser: milliseconds of the fastest."""
    rows = job.divide_rows().rows(0)
    frozen = isinstance(job.training, Frozen)
    found: dict[PartyName, float] = {}
    embeddings: list[Tensor] = []
    with torch.random.fork_rng(devices=[]):
        for party in job.parties:
            bottom = copy.deepcopy(party.bottom).to(job.device).requires_grad_(not frozen)
            x = party.features[rows].to(job.device)
            embeddings.append(bottom(x).detach().requires_grad_())
            found[party.name] = _fastest_ms(_bottom_step(job, bottom, x, party.optimizer))
        found[job.label_party.name] = _fastest_ms(_top_step(job, embeddings, rows))
    return found


def _bottom_step(job: Job, bottom: nn.Module, x: Tensor, optimizer: Any) -> Callable[[], None]:
    mover = (optimizer or job.optimizer).build(bottom.parameters())

    def step() -> None:
        h = bottom(x)
        if h.requires_grad:
            h.backward(torch.ones_like(h))
        _move(mover)

    return step


def _top_step(job: Job, embeddings: list[Tensor], rows: Tensor) -> Callable[[], None]:
    label = job.label_party
    top, bottom = copy.deepcopy(label.top).to(job.device), copy.deepcopy(label.bottom)
    modules = [top] if bottom is None else [top, bottom.to(job.device)]
    mover = (label.optimizer or job.optimizer).build(p for module in modules for p in module.parameters())
    x = None if label.features is None else label.features[rows].to(job.device)
    y = label.labels[rows].to(job.device)

    def step() -> None:
        own = [] if bottom is None else [bottom(x)]
        label.loss(top(fuse(label.fusion, [*embeddings, *own])), y).mean().backward()
        _move(mover)

    return step


def _move(optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _fastest_ms(work: Callable[[], None]) -> float:
    work()
    times: list[float] = []
    while len(times) < _REPEATS or (sum(times) < _ENOUGH_SECONDS and len(times) < _MOST):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return 1e3 * min(times)  # what else this machine does is not the job's


def charge_link(link: Link, ms: Mapping[PartyName, float], label_party: PartyName) -> Link:
    """The link with what a step costs each party, so that its clock repeats; a `compute_ms` that is given stays."""
    if link.compute_ms is not None:
        return link
    parties = {}
    for name, own in ms.items():
        if name != label_party:
            one = replace(link.parties.get(name, link), parties={})
            parties[name] = replace(one, compute_ms=own if one.compute_ms is None else one.compute_ms)
    return replace(link, compute_ms=ms[label_party], parties=parties)


def compute_handling_ms(events: Sequence[Mapping[str, Any]], ms: Mapping[PartyName, float]) -> float:
    """What a round took beyond one step: compressing, encoding, framing, and the label party's own computing.

    `events` are of a run with one step a round over a link that costs nothing, its time as it really passed.
    """
    pairs = pairwise(events[1:])  # not from the start: the first rounds warm up
    rounds: list[float] = [(b["link_seconds"] - a["link_seconds"]) / (b["round"] - a["round"]) for a, b in pairs]
    # Steps of different parties run at the same time, so the slowest one counts.
    return max(0.0, 1e3 * min(rounds) - max(ms.values()))
