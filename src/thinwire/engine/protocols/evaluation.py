"""Scores on held-out rows together: counted apart from training, and a rest for all parties between two rounds.

feature party                            label party
EVALUATION: validation embedding  --->   outputs of the top model; metrics; is it the best model so far?
keep the weights; go on, or stop  <---   EVALUATION: a byte of verdict; two for the local steps a round from here on
        ... at the end, with the best weights ...
TEST: test embedding  --------------->   outputs of the top model; the scores of the model that is delivered

Without validation rows every evaluation is of the test rows, nothing is kept, and there is no TEST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from struct import Struct

import torch
from torch import Tensor, nn

from thinwire.base.errors import Malformed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Hint
from thinwire.engine.models.networks import fuse
from thinwire.engine.privacy import SecureSum
from thinwire.engine.protocols.context import PartyContext, cast_like
from thinwire.engine.protocols.sealing import EVALUATION, TEST, Sealing, sum_compressor, unseal

_CHUNK = 8192
_VERDICT = Struct("<BH")  # stop and best, a bit each; local steps a round
_STOP, _BEST = 1, 2
_USES = {Kind.EVALUATION: EVALUATION, Kind.TEST: TEST}  # no two share noise or masks


class HeldOut(StrEnum):
    """Rows that no model learns from."""

    VALIDATION = "validation"  # they steer: early stopping, the best model, targets
    TEST = "test"  # they judge, once at the end


@dataclass(frozen=True, slots=True)
class EvaluationVerdict:
    """What an evaluation ends with."""

    stop: bool = False
    best: bool = False  # of all so far: every party keeps its weights
    steps: int = 0  # local steps a round from here on


@contextmanager
def evaluation_mode(*modules: nn.Module | None) -> Iterator[None]:
    """Modules in evaluation mode, and back as they were, each part of them; no graph."""
    here = [module for module in modules if module is not None]
    training = {part: part.training for module in here for part in module.modules()}
    for module in here:
        module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in here:
            module.train(training[module])
        for part, was in training.items():
            part.training = was


def begin_training(module: nn.Module) -> nn.Module:
    """In training mode; parts that were set to evaluation inside a module that trains stay so."""
    return module if module.training else module.train()


def embed_in_chunks(module: nn.Module, features: Tensor) -> Tensor:
    """The embeddings of many rows, in chunks."""
    with evaluation_mode(module):
        return torch.cat([module(features[start : start + _CHUNK]) for start in range(0, len(features), _CHUNK)])


def send_held_out(context: PartyContext, kind: Kind, h: Tensor | None, round: Round, sealing: Sealing | None) -> None:
    """Under secure sum by the same mechanism as in training, with noise and masks of its own."""
    body, use = b"", _USES[kind]
    if h is not None:
        if sealing is None:
            body = context.encode(context.recipe.scoring.compress(h, torch.Generator()))
        else:
            noise = sealing.noise(round, h, use)
            symbols = sum_compressor(context.recipe, use).compress(h, noise, Hint(round))
            body = context.encode(sealing.seal(symbols, round, torch.arange(len(h)), use))
    context.send(context.label_party, kind, round, body)


def receive_verdict(context: PartyContext, round: Round) -> EvaluationVerdict:
    body = bytes(context.receive(context.label_party, Kind.EVALUATION, round))
    if len(body) != _VERDICT.size or body[0] > _STOP | _BEST:
        raise Malformed(f"round {round}: {context.label_party!r} ended the evaluation with {body[:8]!r}")
    bits, steps = _VERDICT.unpack(body)
    return EvaluationVerdict(bool(bits & _STOP), bool(bits & _BEST), steps)


def receive_held_out(
    context: PartyContext, kind: Kind, rows: int, widths: Mapping[PartyName, int], round: Round
) -> list[Tensor] | None:
    """Each party's embedding of the held-out rows in order, or their sum; None where there are no such rows."""
    bodies = {party: context.receive(party, kind, round) for party in context.feature_parties}
    for party, body in bodies.items():
        if bool(body) != bool(rows):
            sent = "an embedding" if body else "no embedding"
            raise Malformed(f"round {round}: {party!r} sent {sent} of held-out rows, there are {rows} labels of them")
    if not rows:
        return None
    symbols = [context.decode(body, party, (rows, widths[party])) for party, body in bodies.items()]
    if isinstance(context.recipe.aggregation, SecureSum):
        return [unseal(context, symbols, round, torch.arange(rows), _USES[kind]).to_tensor()]
    return [one.to_tensor() for one in symbols]


def send_verdict(context: PartyContext, round: Round, verdict: EvaluationVerdict) -> None:
    bits = _STOP * verdict.stop | _BEST * verdict.best
    for party in context.feature_parties:
        context.send(party, Kind.EVALUATION, round, _VERDICT.pack(bits, verdict.steps))


def compute_outputs(top: nn.Module, fusion: str, embeddings: Sequence[Tensor]) -> Tensor:
    """What the top model says of these embeddings."""
    like = next(top.parameters(), embeddings[0])
    with evaluation_mode(top):
        return top(fuse(fusion, [cast_like(like, h) for h in embeddings]))  # type: ignore[no-any-return]
