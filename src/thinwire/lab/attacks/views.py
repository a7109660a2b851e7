"""What each party gets to see of a run's rows, worked out again from the job and its models.

The conversation is that of `engine/protocols/derivatives.py`: embeddings through the uplink's compressor, and under
secure sum only their sum; derivatives of the batch's mean loss through the defence and the downlink's compressor.
Error feedback is taken at its word: the surrogates have become the embeddings.

A patient feature party has heard more by the end of a run: the average of every row's derivatives, all messages. For
that the job is trained once more, from its first weights, with an ear on the downlink. Early messages say more about
labels than late ones, when the model is right about most rows, so this is worse news than any look at the trained
models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, replace
from functools import partial
from hashlib import sha256
from math import ceil
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName, Round
from thinwire.engine.compress import Hint, Symbols
from thinwire.engine.models.fusion import fuse, fusion_width
from thinwire.engine.privacy import Labels, NoiseKey, SecureSum
from thinwire.engine.protocols.context import cast_like
from thinwire.engine.protocols.ends import Guard, count_classes
from thinwire.engine.protocols.evaluation import embed_in_chunks
from thinwire.engine.schedule import OneWay
from thinwire.engine.streams import ErrorFeedback, Flow, Rows, Stream, StreamSpec
from thinwire.job.job import Job
from thinwire.training.train import train

THE_SUM = "the sum"
_MOST_LOOKS = 100
# Noise of the audit's own: it hides nothing, and the same report comes out again.
AUDIT_KEY = NoiseKey(sha256(b"thinwire audit 1").digest())


@dataclass(frozen=True)
class ObservedViews:
    """What is seen of N rows."""

    derivatives: dict[PartyName, Tensor]  # by each feature party
    embeddings: dict[PartyName, Tensor]  # by the label party: each feature party's, or `THE_SUM`


def looks_of(job: Job) -> int:
    """How often a row is seen: once per epoch; a hundred times stand for more."""
    batches = job.limit_rounds(job.check())
    return max(1, min(ceil(batches.epoch(batches.rounds)), _MOST_LOOKS))


def exact_views(job: Job, rows: Tensor) -> ObservedViews:
    """Nothing compressed, summed or defended: what a run without any protection would show."""
    exact = _exact(job, rows)
    return ObservedViews(_derivatives(job, exact, _own(job, rows), job.label_party.labels[rows]), exact)


def views(job: Job, rows: Tensor, looks: int) -> ObservedViews:
    """As run: the average over so many looks at the models as they are."""
    exact, own = _exact(job, rows), _own(job, rows)
    guard = Guard(job.recipe.defence, AUDIT_KEY, 0, job.label_party.name, job.label_party.fusion)
    labels = job.label_party.labels[rows]
    if job.recipe.labels is Labels.PRIVATE:
        widths = [table.shape[1] for table in (*exact.values(), *own)]
        labels = guard.labels(
            labels, count_classes(job.label_party.top, fusion_width(job.label_party.fusion, widths))
        )

    def seen(look: int) -> ObservedViews:
        received = _received(job, exact, look)
        return ObservedViews(_sent(job, guard, _derivatives(job, received, own, labels), labels, look), received)

    total = seen(0)
    for look in range(1, looks):
        more = seen(look)
        for tables, added in ((total.derivatives, more.derivatives), (total.embeddings, more.embeddings)):
            for name, table in added.items():
                tables[name] = tables[name] + table
    return ObservedViews(
        {name: table / looks for name, table in total.derivatives.items()},
        {name: table / looks for name, table in total.embeddings.items()},
    )


def embeddings(bottom: nn.Module, features: Tensor) -> Tensor:
    """Of these rows, wherever the model lives."""
    return embed_in_chunks(bottom, features.to(next(bottom.parameters(), features).device)).cpu()


def _exact(job: Job, rows: Tensor) -> dict[PartyName, Tensor]:
    return {party.name: embeddings(party.bottom, party.features[rows]) for party in job.parties}


def _own(job: Job, rows: Tensor) -> list[Tensor]:
    """The label party's own embedding, where it has one."""
    label = job.label_party
    if label.bottom is None or label.features is None:
        return []
    return [embeddings(label.bottom, label.features[rows])]


def _received(job: Job, exact: dict[PartyName, Tensor], look: int) -> dict[PartyName, Tensor]:
    """The embeddings as the label party gets them."""
    arrived = {name: _through(job, job.recipe.uplink, h, look, f"{name}/uplink") for name, h in exact.items()}
    if not isinstance(job.recipe.aggregation, SecureSum):
        return arrived
    return {THE_SUM: torch.stack(list(arrived.values())).sum(dim=0)}


def _derivatives(
    job: Job, received: dict[PartyName, Tensor], own: list[Tensor], labels: Tensor
) -> dict[PartyName, Tensor]:
    """dL/dh of each feature party, batch by batch; none where nothing comes back."""
    if isinstance(job.recipe.schedule, OneWay):
        return {}
    label, top = job.label_party, job.label_party.top
    like = next(top.parameters(), torch.zeros(1))
    was = top.training
    top.eval()
    parts: list[list[Tensor]] = []
    for batch in _batches(job, len(labels)):
        h = [cast_like(like, table[batch]).detach().requires_grad_() for table in received.values()]
        fused = fuse(label.fusion, [*h, *(cast_like(like, table[batch]) for table in own)])
        losses = label.loss(top(fused), labels[batch].to(like.device))
        found = torch.autograd.grad(losses.mean(), h, allow_unused=True)
        parts.append([torch.zeros_like(x) if g is None else g for g, x in zip(found, h, strict=True)])
    top.train(was)
    tables = [torch.cat(batches) for batches in zip(*parts, strict=True)]
    if THE_SUM in received:
        tables = tables * len(job.parties)  # one derivative, the same for all
    return {party.name: table for party, table in zip(job.parties, tables, strict=True)}


def _sent(
    job: Job, guard: Guard, derivatives: dict[PartyName, Tensor], labels: Tensor, look: int
) -> dict[PartyName, Tensor]:
    """The derivatives as the feature parties get them."""
    batches = list(_batches(job, len(labels)))
    parts = [
        guard.protect([table[batch] for table in derivatives.values()], labels[batch], look * len(batches) + place)
        for place, batch in enumerate(batches)
    ]
    summed = isinstance(job.recipe.aggregation, SecureSum)
    found: dict[PartyName, Tensor] = {}
    for name, *protected in zip(derivatives, *parts, strict=True):
        stream = "sum/downlink" if summed else f"{name}/downlink"
        found[name] = _through(job, job.recipe.downlink, torch.cat(protected), look, stream)
    return found


def _through(job: Job, spec: StreamSpec, x: Tensor, look: int, name: str) -> Tensor:
    """What comes out at the other end."""
    if isinstance(spec, ErrorFeedback):
        return x
    noise = AUDIT_KEY.for_round(0, look, 0, name)
    hint = Hint(round=job.divide_rows().rounds)
    parts = [spec.compressor.compress(x[batch].cpu(), noise, hint) for batch in _batches(job, len(x))]
    return torch.cat([part.to_tensor() for part in parts])


def _batches(job: Job, rows: int) -> Iterator[Tensor]:
    yield from torch.arange(rows).split(job.batch_size or rows)


# What a feature party has heard by the end of a run ---------------------------------------------------------------


def record_derivatives(begun: Job, on_round: Callable[[int], None] | None = None) -> dict[PartyName, Tensor]:
    """Trains a copy of the job and returns the average derivative of each row [N, E], by the party that received it.

    Args:
        begun: a job with the models as they were before training.
        on_round: called with the number of rounds done.

    Raises:
        BadInput: labels are shared, so no derivatives are sent.

    Examples:
        >>> tw.audit.record_derivatives(job)["bank"].shape
        torch.Size([64, 2])
    """
    if begun.recipe.labels is Labels.SHARED:
        raise BadInput("no derivatives are sent down under shared labels, so there is nothing to attack")
    tallies: dict[str, _Tally] = {}

    def hear(flow: Flow, rows: Rows, _: Symbols, derivative: Tensor, __: Round) -> None:
        if flow.name not in tallies:
            tallies[flow.name] = _Tally(flow)
        tallies[flow.name].add(rows, derivative)

    job = begun.duplicate()
    job.recipe = replace(begun.recipe, downlink=tap_stream(begun.recipe.downlink, "incoming", hear))
    job.noise_secret = AUDIT_KEY.secret
    job.baselines = job.importance = job.column_importance = False
    train(job, callbacks=[], on_round=on_round)
    summed = isinstance(begun.recipe.aggregation, SecureSum)
    owners = {party.name: job.label_party.name if summed else party.name for party in job.parties}
    heard = {name: tallies.get(f"{owner}/downlink") for name, owner in owners.items()}
    return {name: tally.average() for name, tally in heard.items() if tally is not None}


class _Tally:
    """Sums and counts for each row."""

    def __init__(self, flow: Flow) -> None:
        self._total = torch.zeros(flow.rows, flow.width, dtype=torch.float64)
        self._seen = torch.zeros(flow.rows, 1, dtype=torch.float64)

    def add(self, rows: Rows, derivative: Tensor) -> None:
        self._total[rows] += derivative.cpu().double()
        self._seen[rows] += 1

    def average(self) -> Tensor:
        return self._total / self._seen.clamp(min=1)


# An ear on a stream -----------------------------------------------------------------------------------------------


Ear: TypeAlias = Callable[[Flow, Rows, Any, Any, Round], None]  # what the stream was given, and what it made of it


def tap_stream(spec: StreamSpec, end: Literal["outgoing", "incoming"], ear: Ear) -> StreamSpec:
    """The same streams, with an ear at their sending or their receiving end."""
    return cast(StreamSpec, _TappedSpec(spec, partial(_TappedStream, end, ear)))


@dataclass(frozen=True)
class _TappedSpec:
    spec: StreamSpec
    tap: InitVar[Callable[[Flow, Stream], _TappedStream]]  # not a field: it is no part of the recipe's digest

    def __post_init__(self, tap: Callable[[Flow, Stream], _TappedStream]) -> None:
        object.__setattr__(self, "_tap", tap)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spec, name)

    def open(self, flow: Flow) -> Stream:
        return cast(Stream, self.__dict__["_tap"](flow, self.spec.open(flow)))


class _TappedStream:
    def __init__(self, end: str, ear: Ear, flow: Flow, stream: Stream) -> None:
        self._end, self._ear, self._stream = end, partial(ear, flow), stream

    def __getattr__(self, name: str) -> Any:
        return self._pass if name == self._end else getattr(self._stream, name)

    def _pass(self, rows: Rows, given: Any, round: Round) -> Any:
        made = getattr(self._stream, self._end)(rows, given, round)
        self._ear(rows, given, made, round)
        return made
