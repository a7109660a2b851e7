"""A regression's own messages: what comes of the directions in a round; at the end, standard errors.

feature party                            label party
        ... in a round, after DERIVATIVE ...
coefficients = V c           <---------  WEIGHTS: the loss, is it settled, l2; and c of this party's directions
        ... at the end ...
INFERENCE: is it offered?    --------->  every party's answer is here
                             <---------  INFERENCE: go on, or why not
how many directions are left,
and these, one by one        --------->  the loss's second derivatives along all parties' directions, inverted
standard errors              <---------  degrees of freedom, then the party's own block, row by row

Nothing more of a party's columns is sent unless all parties offer it and errors will come of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadInput, Malformed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Identity
from thinwire.engine.models.losses import WeightedLoss, find_plain_loss, squared_error
from thinwire.engine.models.regression import REGRESSION_LOSSES, Outcome, SubspaceFit
from thinwire.engine.privacy.defences import LabelDP
from thinwire.engine.protocols.bottom import RegressionBottom
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.ends import LabelSide

_MOST_DIRECTIONS = 1 << 16  # of a party
_HIDDEN = 1e-8  # of a coefficient: as much of it may be changed without a change of any output


# In a round ---------------------------------------------------------------------------------------------------------


def send_weights(context: PartyContext, side: LabelSide, fit: SubspaceFit, round: Round) -> None:
    """To every party what its own directions count; to ourselves too."""
    loss, weights = REGRESSION_LOSSES.index(find_plain_loss(side.loss)), fit.split_weights()
    facts = torch.tensor([1.0 + loss, fit.settled], dtype=torch.float64)
    for party, mine in zip(context.feature_parties, weights, strict=False):
        context.send(party, Kind.WEIGHTS, round, _pack([*facts, fit.top.l2, *mine]))
    fit.top.facts[:2] = facts
    if isinstance(side.bottom, RegressionBottom):
        side.bottom.combine(weights[-1])


def receive_weights(context: PartyContext, bottom: RegressionBottom, round: Round) -> None:
    body = context.receive(context.label_party, Kind.WEIGHTS, round)
    found = _unpack(body, 3 + bottom.search.found.shape[1], f"{context.label_party!r}, WEIGHTS of round {round}")
    if found[2] != bottom.linear.l2:
        says = f"l2 is {bottom.linear.l2:g}, and {found[2]:g} in {context.label_party!r}'s top model"
        raise BadInput(f"party {context.me!r}: {says}; use the same value at all parties")
    bottom.linear.facts[:2] = found[:2]
    bottom.combine(found[3:])


# At the end ---------------------------------------------------------------------------------------------------------


class _Line:
    """To one party and back, each message with a number of its own."""

    def __init__(self, context: PartyContext, peer: PartyName, round: Round) -> None:
        self._context = context
        self._peer = peer
        self._sent = self._received = round

    def send(self, body: bytes) -> None:
        self._context.send(self._peer, Kind.INFERENCE, self._sent, body)
        self._sent += 1

    def receive(self) -> bytes:
        self._received += 1
        return bytes(self._context.receive(self._peer, Kind.INFERENCE, self._received - 1))

    def receive_numbers(self, count: int) -> Tensor:
        return _unpack(self.receive(), count, f"{self._peer!r}, INFERENCE")

    def receive_whole(self, limit: int) -> int:
        number = float(self.receive_numbers(1))
        if number not in range(limit):
            raise Malformed(f"{self._peer!r}, INFERENCE: {number:g}, not an integer below {limit}")
        return int(number)


def ask_errors(context: PartyContext, bottom: RegressionBottom, round: Round) -> None:
    """Offers the rest of this party's directions, where it may; sends them, and takes the errors, if told to."""
    line, offers = _Line(context, context.label_party, round), bottom.linear.inference
    line.send(_pack([offers]))
    bottom.linear.facts[2] = outcome = line.receive_whole(len(Outcome))
    if outcome != Outcome.KNOWN or not offers:
        return
    rest, size = bottom.list_unsent(), bottom.search.found.shape[0]
    line.send(_pack([len(rest)]))
    for direction in rest:
        symbols = Identity().compress(bottom.search.embed(direction).cpu(), torch.Generator())
        line.send(context.encode(symbols))
    freedom = float(line.receive_numbers(1))
    block = [line.receive_numbers(2 * size) for _ in range(size)]
    _keep_errors(bottom, freedom, torch.stack(block) if block else torch.zeros(0, 0))


def answer_errors(context: PartyContext, side: LabelSide, fit: SubspaceFit, round: Round) -> None:
    """Takes what the parties offer, and tells each of them of its own coefficients alone."""
    lines = {party: _Line(context, party, round) for party in context.feature_parties}
    outcome = _judge(context, side, fit, [bool(line.receive_whole(2)) for line in lines.values()])
    fit.top.facts[2] = outcome
    for line in lines.values():
        line.send(_pack([outcome]))
    if outcome is not Outcome.KNOWN:
        return
    for owner, (party, line) in enumerate(lines.items()):
        for _ in range(line.receive_whole(_MOST_DIRECTIONS)):
            fit.add(owner, context.decode(line.receive(), party, (context.rows, 1)).to_tensor())
    if isinstance(side.bottom, RegressionBottom):
        for direction in side.bottom.list_unsent():
            fit.add(len(lines), side.bottom.search.embed(direction))
    error, freedom, blocks = fit.estimate_errors(side.measure_losses, find_plain_loss(side.loss) is squared_error)
    for line, block in zip(lines.values(), blocks, strict=False):
        for numbers in ([freedom], *block):
            line.send(_pack(numbers))
    fit.top.facts[3], fit.top.error[0] = freedom, error
    if isinstance(side.bottom, RegressionBottom):
        _keep_errors(side.bottom, freedom, blocks[-1])


def _judge(context: PartyContext, side: LabelSide, fit: SubspaceFit, offers: Sequence[bool]) -> Outcome:
    reasons = {
        Outcome.NOT_ASKED: not any(offers),
        Outcome.DECLINED: not all(offers),
        Outcome.PENALISED: fit.top.l2 > 0,
        Outcome.WEIGHTED: side.weights is not None or isinstance(side.loss, WeightedLoss),
        Outcome.DISTURBED: isinstance(context.recipe.defence, LabelDP),
        Outcome.UNSETTLED: not fit.settled,
    }
    return next((reason for reason, holds in reasons.items() if holds), Outcome.KNOWN)


def _keep_errors(bottom: RegressionBottom, freedom: float, block: Tensor) -> None:
    """From the covariance of directions' weights to each column's own error; 0 where rows cannot tell it."""
    bottom.linear.facts[3] = freedom
    whole = bottom.search.complete()
    covariance, hidden = block.to(whole).tensor_split(2, dim=1)
    variance, unknown = (((whole @ one) * whole).sum(1).clamp(min=0) for one in (covariance, hidden))
    errors = torch.where(unknown > _HIDDEN, torch.zeros_like(variance), variance.sqrt())
    bottom.linear.errors.copy_(bottom.search.to_coefficients(errors))


def _pack(numbers: Sequence[float] | Tensor) -> bytes:
    return np.array([float(one) for one in numbers], "<f8").tobytes()


def _unpack(body: bytes | memoryview, count: int, what: str) -> Tensor:
    """So many finite numbers."""
    numbers = np.frombuffer(body, "<f8") if len(body) == 8 * count else np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise Malformed(f"{what}: {len(body)} bytes, not {count} finite numbers")
    return torch.from_numpy(numbers.astype(np.float64))
