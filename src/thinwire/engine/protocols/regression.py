"""A regression's own messages: what comes of the directions in a round; at the end, standard errors.

feature party                            label party
        ... in a round, after DERIVATIVE ...
coefficients = V c           <---------  WEIGHTS: the loss, is it settled, l2; and c of this party's directions
        ... at the end, where every party offers it ...
INFERENCE: how many more directions,
as many embeddings, one by one  ------>  second derivatives of the loss along all parties' directions, inverted
standard errors              <---------  INFERENCE: why not, or degrees of freedom; then its own block, row by row

A party that offers none says so, and everybody is told: no setting leaves a party waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadInput, Malformed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Identity
from thinwire.engine.models.losses import WeightedLoss, squared_error
from thinwire.engine.models.regression import REGRESSION_LOSSES, FitErrors, Outcome, SubspaceFit
from thinwire.engine.privacy.defences import LabelDP
from thinwire.engine.protocols.bottom import RegressionBottom
from thinwire.engine.protocols.context import PartyContext
from thinwire.engine.protocols.ends import LabelSide

_OFFER = Struct("<BI")  # is it offered; directions that follow
_ANSWER = Struct("<BId")  # why not; rows that follow; degrees of freedom
_MOST_DIRECTIONS = 1 << 16  # of a party
_HIDDEN = 1e-8  # of a coefficient: as much of it may be changed without a change of any output


# In a round ---------------------------------------------------------------------------------------------------------


def fit_directions(side: LabelSide, fit: SubspaceFit, embeddings: Sequence[Tensor]) -> list[Tensor]:
    """With one more direction of every party; each party's part of the outputs then."""
    fit.add(embeddings)
    fit.solve(side.measure_losses)
    return fit.embed()


def send_weights(context: PartyContext, side: LabelSide, fit: SubspaceFit, round: Round) -> None:
    """To every party what its own directions count; to ourselves too."""
    weights = fit.split_weights()
    facts = torch.tensor([1.0 + REGRESSION_LOSSES.index(find_plain_loss(side)), fit.settled], dtype=torch.float64)
    for party, mine in zip(context.feature_parties, weights, strict=False):
        context.send(party, Kind.WEIGHTS, round, np.array([*facts, fit.top.l2, *mine], "<f8").tobytes())
    fit.top.facts[:2] = facts
    if isinstance(side.bottom, RegressionBottom):
        side.bottom.linear.facts[:2] = facts
        side.bottom.combine(weights[-1])


def receive_weights(context: PartyContext, bottom: RegressionBottom, round: Round) -> None:
    found = _read_numbers(context, Kind.WEIGHTS, round, 3 + bottom.search.found.shape[1])
    l2 = float(found[2])
    if l2 != bottom.linear.l2:
        raise BadInput(
            f"party {context.me!r}: l2 is {bottom.linear.l2:g}, and {l2:g} in {context.label_party!r}'s top model; "
            "write the same at all parties"
        )
    bottom.linear.facts[:2] = found[:2]
    bottom.combine(found[3:])


def find_plain_loss(side: LabelSide) -> object:
    """Without its weights."""
    return getattr(side.loss, "loss", side.loss)


# At the end ---------------------------------------------------------------------------------------------------------


def ask_errors(context: PartyContext, bottom: RegressionBottom, round: Round) -> None:
    """Offers the rest of this party's directions, where it may, and takes the answer."""
    offers = bottom.linear.inference
    rest = bottom.list_unsent() if offers else []
    _say(context, context.label_party, round, _OFFER.pack(offers, len(rest)))
    for place, direction in enumerate(rest, 1):
        symbols = Identity().compress(bottom.search.embed(direction).cpu(), torch.Generator())
        _say(context, context.label_party, round + place, context.encode(symbols))
    body = bytes(context.receive(context.label_party, Kind.INFERENCE, round))
    size = bottom.search.found.shape[0]
    if len(body) != _ANSWER.size or body[0] not in set(Outcome) or _ANSWER.unpack(body)[1] not in (0, size):
        raise Malformed(f"round {round}: {context.label_party!r} began standard errors with {body[:16]!r}")
    outcome, rows, freedom = _ANSWER.unpack(body)
    block = [_read_numbers(context, Kind.INFERENCE, round + 1 + row, 2 * size) for row in range(rows)]
    _keep_errors(bottom, outcome, freedom, torch.stack(block) if rows else torch.zeros(size, 2 * size))


def answer_errors(context: PartyContext, side: LabelSide, fit: SubspaceFit, round: Round) -> None:
    """Takes what the parties offer, and tells each of them of its own coefficients alone."""
    offers = [_receive_offer(context, fit, owner, round) for owner in range(len(context.feature_parties))]
    own = side.bottom if isinstance(side.bottom, RegressionBottom) else None
    for direction in own.list_unsent() if own is not None and any(offers) else ():
        fit.add_one(len(offers), own.search.embed(direction))  # type: ignore[union-attr]
    outcome = _judge(context, side, fit, offers)
    found = FitErrors(0.0, 0, [])
    if outcome is Outcome.KNOWN:
        found = fit.estimate_errors(side.measure_losses, find_plain_loss(side) is squared_error)
    for place, (party, offered) in enumerate(zip(context.feature_parties, offers, strict=True)):
        rows = torch.cat(found.blocks[place], dim=1) if found.blocks else ()
        mine = outcome if offered else Outcome.NOT_ASKED
        _say(context, party, round, _ANSWER.pack(mine, len(rows), found.freedom))
        for row, numbers in enumerate(rows, 1):
            _say(context, party, round + row, numbers.numpy().astype("<f8").tobytes())
    fit.top.facts[2:] = torch.tensor([outcome, found.freedom])
    fit.top.error[0] = found.intercept
    if own is not None and found.blocks:
        _keep_errors(own, outcome, found.freedom, torch.cat(found.blocks[-1], dim=1))


def _receive_offer(context: PartyContext, fit: SubspaceFit, owner: int, round: Round) -> bool:
    """Whether there is one; the directions that come with it are added."""
    party = context.feature_parties[owner]
    body = bytes(context.receive(party, Kind.INFERENCE, round))
    if len(body) != _OFFER.size or body[0] > 1 or _OFFER.unpack(body)[1] > _MOST_DIRECTIONS * body[0]:
        raise Malformed(f"round {round}: {party!r} offered standard errors by {body[:16]!r}")
    offered, count = _OFFER.unpack(body)
    for place in range(1, count + 1):
        embedding = context.decode(context.receive(party, Kind.INFERENCE, round + place), party, (context.rows, 1))
        fit.add_one(owner, embedding.to_tensor())
    return bool(offered)


def _judge(context: PartyContext, side: LabelSide, fit: SubspaceFit, offers: Sequence[bool]) -> Outcome:
    if not any(offers):
        return Outcome.NOT_ASKED
    reasons = {
        Outcome.DECLINED: not all(offers),
        Outcome.PENALISED: fit.top.l2 > 0,
        Outcome.WEIGHTED: side.weights is not None or isinstance(side.loss, WeightedLoss),
        Outcome.DISTURBED: isinstance(context.recipe.defence, LabelDP),
        Outcome.UNSETTLED: not fit.settled,
    }
    return next((reason for reason, holds in reasons.items() if holds), Outcome.KNOWN)


def _keep_errors(bottom: RegressionBottom, outcome: int, freedom: float, block: Tensor) -> None:
    """From the covariance of directions' weights to each column's own error; 0 where rows cannot tell it."""
    bottom.linear.facts[2:] = torch.tensor([outcome, freedom])
    covariance, hidden = block.double().to(bottom.device).tensor_split(2, dim=1)
    whole = bottom.search.complete()
    variance, unknown = (((whole @ one) * whole).sum(1).clamp(min=0) for one in (covariance, hidden))
    errors = torch.where(unknown > _HIDDEN, torch.zeros_like(variance), variance.sqrt())
    bottom.linear.errors.copy_(bottom.search.to_coefficients(errors))


def _say(context: PartyContext, receiver: PartyName, round: Round, body: bytes) -> None:
    context.send(receiver, Kind.INFERENCE, round, body)


def _read_numbers(context: PartyContext, kind: Kind, round: Round, count: int) -> Tensor:
    """So many finite ones, from the label party."""
    body = bytes(context.receive(context.label_party, kind, round))
    numbers = np.frombuffer(body, "<f8") if len(body) == 8 * count else np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise Malformed(f"round {round}: {context.label_party!r} sent no {count} finite numbers as {kind.name}")
    return torch.from_numpy(numbers.astype(np.float64))
