"""Scores on held-out rows together: counted apart from training, and a rest for all parties between two rounds.

feature party                            label party
EVALUATION: validation embedding  --->   outputs of the top model; metrics; is it the best model so far?
(or what changed in it since the last)
keep the weights; go on, or stop  <---   EVALUATION: a byte of verdict and level of precision; two for the local steps
                                         a round from here on
        ... at the end, with the best weights ...
TEST: test embedding  --------------->   outputs of the top model; the scores of the model that is delivered
        ... where the job asks for the importance of columns, again and again ...
COLUMN: test embedding, a column  --->   the same outputs with this embedding in its place
permuted; or empty: that was all
what the column is worth  <-----------   COLUMN: the score that is lost, to the column's owner alone; or its name

Without validation rows every evaluation is of the test rows, nothing is kept, and there is no TEST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite
from statistics import fmean
from struct import Struct

import torch
from torch import Tensor, nn

from thinwire.base.errors import Malformed
from thinwire.base.types import Kind, PartyName, Round
from thinwire.engine.compress import Hint, StdGrid, Symbols
from thinwire.engine.compress.grids import deviation
from thinwire.engine.compress.message import message_values
from thinwire.engine.models.fusion import fuse
from thinwire.engine.models.metrics import METRICS
from thinwire.engine.privacy import SecureSum
from thinwire.engine.protocols.context import PartyContext, cast_like
from thinwire.engine.protocols.sealing import EVALUATION, TEST, Sealing, sum_compressor, unseal
from thinwire.engine.recipe import Recipe
from thinwire.engine.schedule import MOST_LEVEL, Pace
from thinwire.engine.streams import RowOwners, release_pages

CHUNK = 8192  # rows that are embedded at a time
_VERDICT = Struct("<BH")  # stop and best, a bit each, and the level in four; local steps a round
_STOP, _BEST, _LEVEL = 1, 2, 4
_MOST_VERDICT = _STOP | _BEST | _LEVEL * MOST_LEVEL
_LOST = Struct("<d")
_PERMUTATIONS = 3
_FEW_ROWS = 1000
MOST_COLUMNS = 200  # of a party
_USES = {Kind.EVALUATION: EVALUATION, Kind.TEST: TEST}  # no two share noise or masks


class HeldOut(StrEnum):
    """Rows that no model learns from."""

    VALIDATION = "validation"  # they steer: early stopping, the best model, targets
    TEST = "test"  # they judge, once at the end


@dataclass(frozen=True, slots=True)
class HeldOutRows:
    """Which of them, and how many."""

    which: HeldOut
    count: int

    def find_owners(self, context: PartyContext, party: PartyName) -> RowOwners:
        """As the party sees them."""
        return context.find_held_out_owners(party, self.which, self.count)

    def expand(self, context: PartyContext, party: PartyName, h: Tensor) -> Tensor:
        """The party's embedding of its owners, repeated for each of their rows."""
        return self.find_owners(context, party).select_all().expand(h)


@dataclass(frozen=True, slots=True)
class EvaluationVerdict:
    """What an evaluation ends with."""

    stop: bool = False
    best: bool = False  # of all so far: every party keeps its weights
    pace: Pace = Pace(0)  # from here on


@contextmanager
def evaluation_mode(*modules: nn.Module | None) -> Iterator[None]:
    """Modules in evaluation mode, and back as they were, each part of them; no graph."""
    here = [module for module in modules if module is not None]
    training = {part: part.training for module in here for part in module.modules()}
    if not any(training.values()):  # nothing to set, nothing to set back
        with torch.no_grad():
            yield
        return
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

    def embed(start: int) -> Tensor:
        found: Tensor = module(features[start : start + CHUNK])
        release_pages(features)
        return found

    with evaluation_mode(module):
        return torch.cat([embed(start) for start in range(0, len(features), CHUNK)])


def send_held_out(context: PartyContext, kind: Kind, h: Tensor | None, round: Round, sealing: Sealing | None) -> None:
    """Under secure sum by the same mechanism as in training, with noise and masks of its own."""
    body, use = b"", _USES[kind]
    if h is not None:
        if sealing is None:
            body = context.encode(compress_for_scoring(context.recipe, h))
        else:
            noise = sealing.noise(round, h, use)
            symbols = sum_compressor(context.recipe, use).compress(h, noise, Hint(round))
            body = context.encode(sealing.seal(symbols, round, torch.arange(len(h)), use))
    context.send(context.label_party, kind, round, body)


def compress_for_scoring(recipe: Recipe, h: Tensor) -> Symbols:
    """As embeddings of rows travel that are only scored; under secure sum they do not."""
    return recipe.scoring.compress(h, torch.Generator())


class TrackedEmbeddings:
    """Validation embeddings as both ends know them: at every evaluation only what has changed travels.

    It travels as integers of `step` deviations of the embedding, so that no value is ever off by more than half
    of that, and a model that hardly changes any more costs hardly any bytes.
    """

    def __init__(self, step: float) -> None:
        self._step = step
        self._table: Tensor | None = None

    def outgoing(self, h: Tensor) -> Symbols:
        h = h.cpu().float()
        table = self._open(h.shape)
        unit = deviation(message_values(h)) or 1.0
        symbols = StdGrid(self._step, scale=unit).compress(h - table, torch.Generator())
        table += symbols.to_tensor()
        return symbols

    def incoming(self, symbols: Symbols, sender: PartyName) -> Tensor:
        table = self._open(symbols.shape)
        table += symbols.to_tensor().float()
        if not bool(torch.isfinite(table).all()):
            raise Malformed(f"{sender!r} sent embeddings of validation rows that leave the range of float32")
        return table.clone()

    def _open(self, shape: Sequence[int]) -> Tensor:
        if self._table is None:
            self._table = torch.zeros(*shape)
        return self._table

    def tensors(self) -> dict[str, Tensor]:
        return {} if self._table is None else {"table": self._table}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._table = tensors["table"].clone() if "table" in tensors else None


def receive_verdict(context: PartyContext, round: Round) -> EvaluationVerdict:
    body = bytes(context.receive(context.label_party, Kind.EVALUATION, round))
    if len(body) != _VERDICT.size or body[0] > _MOST_VERDICT:
        raise Malformed(f"round {round}: {context.label_party!r} ended the evaluation with {body[:8]!r}")
    bits, steps = _VERDICT.unpack(body)
    return EvaluationVerdict(bool(bits & _STOP), bool(bits & _BEST), Pace(steps, bits // _LEVEL))


def receive_held_out(
    context: PartyContext, kind: Kind, rows: HeldOutRows, widths: Mapping[PartyName, int], round: Round
) -> list[Tensor] | None:
    """Each party's embedding of the held-out rows in order, or their sum; None where there are no such rows."""
    symbols = receive_held_out_symbols(context, kind, rows, widths, round)
    if not symbols:
        return None
    if isinstance(context.recipe.aggregation, SecureSum):
        every = torch.arange(rows.count)
        return [unseal(context, list(symbols.values()), round, every, _USES[kind]).to_tensor()]
    return [rows.expand(context, party, one.to_tensor()) for party, one in symbols.items()]


def receive_held_out_symbols(
    context: PartyContext, kind: Kind, rows: HeldOutRows, widths: Mapping[PartyName, int], round: Round
) -> dict[PartyName, Symbols]:
    """What each party sent of the held-out rows, one for each owner; nothing where there are none."""
    bodies = {party: context.receive(party, kind, round) for party in context.feature_parties}
    for party, body in bodies.items():
        if bool(body) != bool(rows.count):
            sent = f"{'an' if body else 'no'} embedding of held-out rows, there are {rows.count} labels of them"
            raise Malformed(f"round {round}: {party!r} sent {sent}")
    if not rows.count:
        return {}
    counts = {party: rows.find_owners(context, party).count for party in bodies}
    return {p: context.decode(body, p, (counts[p], widths[p])) for p, body in bodies.items()}


def send_verdict(context: PartyContext, round: Round, verdict: EvaluationVerdict) -> None:
    bits = _STOP * verdict.stop | _BEST * verdict.best | _LEVEL * verdict.pace.level
    for party in context.feature_parties:
        context.send(party, Kind.EVALUATION, round, _VERDICT.pack(bits, verdict.pace.steps))


def compute_outputs(top: nn.Module, fusion: str, embeddings: Sequence[Tensor]) -> Tensor:
    """What the top model says of these embeddings."""
    like = next(top.parameters(), embeddings[0])
    with evaluation_mode(top):
        return top(fuse(fusion, [cast_like(like, h) for h in embeddings]))  # type: ignore[no-any-return]


# The importance of columns ----------------------------------------------------------------------------------------


def permute_rows(rows: int, permutations: int = _PERMUTATIONS) -> Iterator[Tensor]:
    """By fixed seeds: the same for every party and column, so that they can be compared."""
    for seed in range(permutations):
        yield torch.randperm(rows, generator=torch.Generator().manual_seed(seed))


def _count_permutations(rows: int) -> int:
    """Of a column: chance moves the score of few rows more, and they cost few bytes."""
    return _PERMUTATIONS if rows < _FEW_ROWS else 1


@dataclass(frozen=True, eq=False)
class ColumnTable:
    """A party's test rows, by the columns of its table."""

    features: Tensor  # [N, ...]
    places: Mapping[str, Sequence[int]]  # which features each column became; none: not looked at

    def measure(self, bottom: nn.Module, lose: Callable[[Tensor], float]) -> dict[str, float]:
        """What each column is worth; `lose` says what another embedding of the test rows costs the score."""
        if len(self.places) > MOST_COLUMNS:
            return {}
        return {
            name: fmean(lose(embed_in_chunks(bottom, changed)) for changed in self._permute(places))
            for name, places in self.places.items()
        }

    def _permute(self, places: Sequence[int]) -> Iterator[Tensor]:
        """All features of a column together."""
        rows = len(self.features)
        for order in permute_rows(rows, _count_permutations(rows)):
            changed = self.features.clone()
            changed[:, places] = changed[:, places][order.to(changed.device)]
            yield changed


@dataclass(frozen=True)
class ColumnLosses:
    """What each column of a party's is worth: the score that is lost when it is permuted."""

    metric: str
    lost: Mapping[str, float]


@dataclass(frozen=True)
class ColumnAnswers:
    """The label party's score, and what it loses by another embedding of a party's test rows."""

    metric: str
    lose: Callable[[PartyName, Tensor], float]


def ask_columns(context: PartyContext, table: ColumnTable, bottom: nn.Module, round: Round) -> ColumnLosses:
    """At the owner of the columns. The label party is told no names."""
    lost = table.measure(bottom, lambda h: _ask_loss(context, h, round))
    name = bytes(_ask(context, b"", round)).decode("ascii", "replace")
    if name not in (*METRICS, "loss"):
        raise Malformed(f"round {round}: {context.label_party!r} scores columns by {name[:20]!r}")
    return ColumnLosses(name, lost)


def _ask_loss(context: PartyContext, h: Tensor, round: Round) -> float:
    body = _ask(context, context.encode(compress_for_scoring(context.recipe, h)), round)
    if len(body) != _LOST.size or not isfinite(lost := _LOST.unpack(body)[0]):
        raise Malformed(f"round {round}: {context.label_party!r} answered a column with {bytes(body[:8])!r}")
    return float(lost)


def _ask(context: PartyContext, body: bytes, round: Round) -> bytes | memoryview:
    context.send(context.label_party, Kind.COLUMN, round, body)
    return context.receive(context.label_party, Kind.COLUMN, round)


def answer_columns(
    context: PartyContext, rows: HeldOutRows, widths: Mapping[PartyName, int], round: Round, answers: ColumnAnswers
) -> None:
    """One answer to each party in turn, until none has a question left: nobody waits for all columns of another."""
    asking, answered = list(context.feature_parties), 0
    while asking:
        for party in tuple(asking):
            body = context.receive(party, Kind.COLUMN, round)
            if not body:
                asking.remove(party)
                context.send(party, Kind.COLUMN, round, answers.metric.encode())
                continue
            owners = rows.find_owners(context, party)
            if answered == MOST_COLUMNS * _count_permutations(owners.count):
                raise Malformed(f"round {round}: {party!r} asks about more than {MOST_COLUMNS} columns")
            h = owners.select_all().expand(context.decode(body, party, (owners.count, widths[party])).to_tensor())
            context.send(party, Kind.COLUMN, round, _LOST.pack(answers.lose(party, h)))
        answered += 1
