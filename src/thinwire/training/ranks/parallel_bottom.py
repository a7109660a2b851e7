"""A bottom model on every rank of a party: rank 0 gathers embeddings and adds up gradients, the others follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadState
from thinwire.base.types import Round
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.bottom import Learner, NetworkBottom, run_backward
from thinwire.engine.protocols.evaluation import HeldOut, embed_in_chunks, evaluation_mode
from thinwire.engine.streams import Rows
from thinwire.training.ranks.ranks import RankCommand, RankOrder, Ranks


@dataclass(frozen=True, slots=True)
class RowShares:
    """Which of a table's rows each rank holds: neighbours, as many at every rank up to one."""

    rows: int
    ranks: int

    def of(self, rank: int) -> range:
        return range(self.rows * rank // self.ranks, self.rows * (rank + 1) // self.ranks)

    def places(self, rows: Rows, rank: int) -> Tensor:
        """Where in a batch the rank's rows stand."""
        own = self.of(rank)
        return torch.nonzero((rows >= own.start) & (rows < own.stop)).flatten()


class RankModel:
    """A rank's rows and model; it remembers the last embedding's graph until it has learned from it."""

    def __init__(
        self, learner: Learner, rank: int, shares: RowShares, features: Tensor, held_out: Mapping[HeldOut, Tensor]
    ) -> None:
        self.learner = learner
        self.shares = shares
        self.features = features
        self._rank = rank
        self._held_out = held_out
        self._h: Tensor | None = None
        with evaluation_mode(learner.module):
            self.dtype: torch.dtype = learner.module(features[:1]).dtype  # of embeddings; weights may have another

    def embed(self, rows: Rows) -> Tensor | None:
        """Of those of the round's rows that are here; None where there are none."""
        self._h = None
        own = rows[self.shares.places(rows, self._rank)] - self.shares.of(self._rank).start
        if len(own):
            self._h = self.learner.forward(self.features.index_select(0, own))
        return None if self._h is None else self._h.detach()

    def embed_all(self) -> Tensor | None:
        if not len(self.features):
            return None
        with torch.no_grad():
            return self.learner.forward(self.features)

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        table = self._held_out.get(rows)
        return None if table is None or not len(table) else embed_in_chunks(self.learner.module, table)

    def gradient(self, derivative: Tensor) -> Tensor:
        """Of the rows that were embedded last, all parameters in one line; zeros where there were none."""
        if self._h is not None and self._h.requires_grad:
            run_backward(self._h, derivative.to(self._h))
        self._h = None
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.learner.trained]
        for parameter in self.learner.trained:
            parameter.grad = None
        return _line(found)

    def set_gradient(self, line: Tensor) -> None:
        for parameter, piece in zip(self.learner.trained, _pieces(line, self.learner.trained), strict=True):
            parameter.grad = piece

    def weights(self) -> Tensor:
        """Those that change, in one line."""
        return _line([parameter.detach() for parameter in self.learner.trained])

    def set_weights(self, line: Tensor) -> None:
        with torch.no_grad():
            for parameter, piece in zip(self.learner.trained, _pieces(line, self.learner.trained), strict=True):
                parameter.copy_(piece)


def _line(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()


def _pieces(line: Tensor, like: list[nn.Parameter]) -> list[Tensor]:
    pieces = line.split([parameter.numel() for parameter in like])
    return [piece.reshape(p.shape).to(p.device, p.dtype) for piece, p in zip(pieces, like, strict=True)]


_EMBED = {HeldOut.VALIDATION: RankOrder.EMBED_VALIDATION, HeldOut.TEST: RankOrder.EMBED_TEST}


class GroupBottom(NetworkBottom):
    """Rank 0's. The conversation does not see that there are several processes."""

    def __init__(
        self, ranks: Ranks, part: RankModel, batches: Batches, width: int, held_out: Mapping[HeldOut, RowShares]
    ) -> None:
        super().__init__(part.learner, part.features.device)
        self._ranks = ranks
        self._part = part
        self._batches = batches
        self._width = width
        self._held_out_shares = held_out
        self._counts: list[Tensor] = []  # where each rank's rows stand in the batch that was embedded last
        self._passed_on = False  # have the others our weights?

    def begin(self, round: Round) -> None:
        if not self._passed_on:
            self._pass_on()
        self._ranks.tell(RankOrder.BEGIN, round)
        super().begin(round)

    def _pass_on(self) -> None:
        """Our weights to the other ranks."""
        self._ranks.tell(RankOrder.WEIGHTS)
        for tensor in self.module.state_dict().values():
            self._ranks.share(tensor.cpu().contiguous())
        self._passed_on = True

    def embed(self, round: Round, rows: Rows) -> Tensor:
        self._ranks.tell(RankOrder.EMBED, round, rows if self._batches.announced else None)
        self._counts = [self._part.shares.places(rows, rank) for rank in range(self._ranks.size)]
        h = self._gathered(self._part.embed(rows), self._counts)
        return h.requires_grad_(bool(self._learner.trained))

    def embed_all(self) -> Tensor:
        self._ranks.tell(RankOrder.EMBED_ALL)
        return self._gathered(self._part.embed_all(), self._in_order(self._part.shares))

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        shares = self._held_out_shares.get(rows)
        if shares is None:
            return None
        self._ranks.tell(_EMBED[rows])
        return self._gathered(self._part.embed_held_out(rows), self._in_order(shares))

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        if not self._learner.trained:
            return
        self._ranks.tell(RankOrder.LEARN)
        there = derivative.cpu().to(self._part.dtype)
        for rank in range(1, self._ranks.size):
            if len(self._counts[rank]):
                self._ranks.send(there[self._counts[rank]], rank)
        total = self._part.gradient(derivative[self._counts[0].to(derivative.device)])
        self._ranks.add_up(total)  # the loss is a mean over the batch: gradients of its rows add up
        self._part.set_gradient(total)
        self._learner.step()
        self._ranks.share(self._part.weights())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self._passed_on = False

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        self._pass_on()

    def _gathered(self, own: Tensor | None, places: list[Tensor]) -> Tensor:
        """Every rank's rows, where they belong."""
        whole = torch.empty(sum(map(len, places)), self._width, dtype=self._part.dtype)
        for rank, where in enumerate(places):
            if not len(where):
                continue
            if rank == 0 and own is not None:
                whole[where] = own.cpu()
                continue
            received = torch.empty(len(where), self._width, dtype=self._part.dtype)
            self._ranks.receive(received, rank)
            whole[where] = received
        return whole.to(self.device)

    def _in_order(self, shares: RowShares) -> list[Tensor]:
        return [torch.arange(own.start, own.stop) for own in map(shares.of, range(self._ranks.size))]


def follow(ranks: Ranks, part: RankModel, batches: Batches, width: int) -> None:
    """Blocks until rank 0 says that it is over; raises GroupBroken where rank 0 is gone."""
    follower = _Follower(ranks, part, batches, width)
    while (told := ranks.receive_order()).order is not RankOrder.END:
        follower.obey(told)


class _Follower:
    def __init__(self, ranks: Ranks, part: RankModel, batches: Batches, width: int) -> None:
        self._ranks = ranks
        self._part = part
        self._batches = batches
        self._width = width
        self._embedded = 0  # rows, last

    def obey(self, told: RankCommand) -> None:
        match told.order:
            case RankOrder.WEIGHTS:
                for tensor in self._part.learner.module.state_dict().values():
                    held = tensor.cpu().contiguous()
                    self._ranks.share(held)
                    tensor.copy_(held)
            case RankOrder.BEGIN:
                self._part.learner.begin(told.round)
            case RankOrder.EMBED:
                rows = self._batches.rows(told.round) if told.rows is None else told.rows
                self._embedded = self._sent(self._part.embed(rows))
            case RankOrder.EMBED_ALL:
                self._sent(self._part.embed_all())
            case RankOrder.EMBED_VALIDATION:
                self._sent(self._part.embed_held_out(HeldOut.VALIDATION))
            case RankOrder.EMBED_TEST:
                self._sent(self._part.embed_held_out(HeldOut.TEST))
            case RankOrder.LEARN:
                self._learn()
            case _:
                raise BadState(f"rank 0 told rank {self._ranks.rank} to {told.order.name}, which does not come now")

    def _sent(self, h: Tensor | None) -> int:
        if h is None:
            return 0
        self._ranks.send(h.cpu(), 0)
        return len(h)

    def _learn(self) -> None:
        derivative = torch.empty(self._embedded, self._width, dtype=self._part.dtype)
        if self._embedded:
            self._ranks.receive(derivative, 0)
        self._ranks.add_up(self._part.gradient(derivative))
        weights = self._part.weights()
        self._ranks.share(weights)
        self._part.set_weights(weights)
