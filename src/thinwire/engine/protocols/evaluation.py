"""Scores on test rows together: counted apart from training, and a rest for all parties between two rounds.

feature party                            label party
EVALUATION: test embedding  --------->   outputs of the top model; metrics
go on, or stop  <---------------------   EVALUATION: a byte; two for the local steps a round from here on
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from struct import Struct

import torch
from torch import Tensor, nn

from thinwire.base.errors import Malformed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Hint
from thinwire.engine.models.networks import fuse
from thinwire.engine.privacy import SecureSum
from thinwire.engine.protocols.context import PartyContext, cast_like
from thinwire.engine.protocols.sealing import EVALUATION, Sealing, sum_compressor, unseal

_CHUNK = 8192
_GO_ON = Struct("<BH")  # stop, local steps a round


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


def send_test_embedding(context: PartyContext, h: Tensor | None, round: Round, sealing: Sealing | None) -> None:
    """Under secure sum by the same mechanism as in training, with noise and masks of its own."""
    body = b""
    if h is not None:
        if sealing is None:
            body = context.encode(context.recipe.scoring.compress(h, torch.Generator()))
        else:
            noise = sealing.noise(round, h, EVALUATION)
            symbols = sum_compressor(context.recipe, EVALUATION).compress(h, noise, Hint(round))
            body = context.encode(sealing.seal(symbols, round, torch.arange(len(h)), EVALUATION))
    context.send(context.label_party, Kind.EVALUATION, round, body)


def receive_decision(context: PartyContext, round: Round) -> tuple[bool, int]:
    """Whether to stop, and how many local steps to take a round otherwise."""
    body = bytes(context.receive(context.label_party, Kind.EVALUATION, round))
    if len(body) != _GO_ON.size or body[0] > 1:
        raise Malformed(f"round {round}: {context.label_party!r} ended the evaluation with {body[:8]!r}")
    stop, steps = _GO_ON.unpack(body)
    return bool(stop), steps


def receive_test_embeddings(
    context: PartyContext, rows: int, widths: Mapping[PartyName, int], round: Round
) -> list[Tensor] | None:
    """Each party's test embedding in order, or their sum; None where there are no test rows."""
    bodies = {party: context.receive(party, Kind.EVALUATION, round) for party in context.feature_parties}
    for party, body in bodies.items():
        if bool(body) != bool(rows):
            sent = "an embedding" if body else "no embedding"
            raise Malformed(f"round {round}: {party!r} sent {sent} of test rows, there are {rows} test labels")
    if not rows:
        return None
    symbols = [context.decode(body, party, (rows, widths[party])) for party, body in bodies.items()]
    if isinstance(context.recipe.aggregation, SecureSum):
        return [unseal(context, symbols, round, torch.arange(rows), EVALUATION).to_tensor()]
    return [one.to_tensor() for one in symbols]


def send_decision(context: PartyContext, round: Round, stop: bool, steps: int) -> None:
    for party in context.feature_parties:
        context.send(party, Kind.EVALUATION, round, _GO_ON.pack(stop, steps))


def compute_outputs(top: nn.Module, fusion: str, embeddings: Sequence[Tensor]) -> Tensor:
    """What the top model says of these embeddings."""
    like = next(top.parameters(), embeddings[0])
    with evaluation_mode(top):
        return top(fuse(fusion, [cast_like(like, h) for h in embeddings]))  # type: ignore[no-any-return]
