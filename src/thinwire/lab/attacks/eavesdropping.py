"""What a patient feature party has heard by the end of a run: the average of every row's derivatives, all messages.

The job is trained once more, from its first weights, with an ear on the downlink. Early messages say more about
labels than late ones, when the model is right about most rows, so this is worse news than any look at the trained
models.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName, Round
from thinwire.engine.compress import Compressor, Symbols
from thinwire.engine.privacy import Labels, SecureSum
from thinwire.engine.streams import Flow, Rows, Stream, StreamSpec
from thinwire.job.job import Job
from thinwire.lab.attacks.views import AUDIT_KEY
from thinwire.training.train import train


def record_derivatives(begun: Job) -> dict[PartyName, Tensor]:
    """Trains a copy of a job whose models are as they began; each feature party's average derivatives [N, E]."""
    if begun.recipe.labels is Labels.SHARED:
        raise BadInput("no derivatives go down under shared labels: there is nothing to listen to")
    ear = _Listening(begun.recipe.downlink)
    job = copy_modules(begun)
    job.recipe = replace(begun.recipe, downlink=cast(StreamSpec, ear))
    job.noise_secret = AUDIT_KEY.secret
    train(job, callbacks=[])
    summed = isinstance(begun.recipe.aggregation, SecureSum)
    owners = {party.name: job.label_party.name if summed else party.name for party in job.parties}
    return {name: ear.tallies[f"{owner}/downlink"].average() for name, owner in owners.items()}


def copy_modules(job: Job) -> Job:
    """The same job and tables, with modules of its own."""
    copied = copy(job)
    copied.parties = [copy(party) for party in job.parties]
    copied.label_party = copy(job.label_party)
    for party in copied.parties:
        party.bottom = deepcopy(party.bottom)
    copied.label_party.bottom = deepcopy(job.label_party.bottom)
    copied.label_party.top = deepcopy(job.label_party.top)
    return copied


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


@dataclass(frozen=True)
class _Listening:
    """A downlink that keeps what comes out of it."""

    spec: StreamSpec

    def __post_init__(self) -> None:
        object.__setattr__(self, "_tallies", {})  # not a field: it is no part of the recipe's digest

    @property
    def tallies(self) -> dict[str, _Tally]:
        return cast(dict[str, _Tally], self.__dict__["_tallies"])

    @property
    def compressor(self) -> Compressor:
        return self.spec.compressor

    def open(self, flow: Flow) -> Stream:
        tally = self.tallies.setdefault(flow.name, _Tally(flow))
        return _Overheard(self.spec.open(flow), tally)

    def memory_bytes(self, rows: int, width: int) -> int:
        return self.spec.memory_bytes(rows, width)


class _Overheard:
    """A stream with an ear at its receiving end."""

    def __init__(self, stream: Stream, tally: _Tally) -> None:
        self._stream = stream
        self._tally = tally

    def incoming(self, rows: Rows, symbols: Symbols, round: Round) -> Tensor:
        derivative = self._stream.incoming(rows, symbols, round)
        self._tally.add(rows, derivative)
        return derivative

    def outgoing(self, rows: Rows, x: Tensor, round: Round) -> Symbols:
        return self._stream.outgoing(rows, x, round)

    def observe(self, rows: Rows, derivative: Tensor) -> None:
        self._stream.observe(rows, derivative)

    def digest(self) -> int | None:
        return self._stream.digest()

    def verify(self, theirs: int | None, round: Round) -> None:
        self._stream.verify(theirs, round)

    def state_dict(self) -> dict[str, Tensor]:
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._stream.load_state_dict(state)
