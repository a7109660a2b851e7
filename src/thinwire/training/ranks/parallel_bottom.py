"""A bottom model on every rank of a party: rank 0 gathers embeddings, torch adds up gradients, the others follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadState
from thinwire.base.types import Round
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.bottom import Learner, NetworkBottom
from thinwire.engine.protocols.context import add_prefix, remove_prefix, select_rows
from thinwire.engine.protocols.evaluation import CHUNK, HeldOut, embed_in_chunks, evaluation_mode
from thinwire.engine.streams import Rows
from thinwire.training.ranks.batch_norm import GroupBatchNorm
from thinwire.training.ranks.ranks import RankCommand, RankOrder, Ranks
from thinwire.training.ranks.sharded_learner import ShardedLearner


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
    """A rank's rows and model; it remembers the last embedding's graph until it has learned from it.

    Every rank embeds and learns in every round, since the others wait for its gradients: one that holds no row of a
    batch computes its first row instead, with a derivative of 0. All ranks must build theirs at the same time.
    """

    def __init__(
        self, learner: Learner, ranks: Ranks, shares: RowShares, features: Tensor, held_out: Mapping[HeldOut, Tensor]
    ) -> None:
        """`learner.module` has gone through `share_batch_norm`."""
        self.learner = learner
        self.ranks = ranks
        self.shares = shares
        self.features = features
        self._held_out = held_out
        self._own = torch.empty(0, dtype=torch.int64)  # rows that were embedded last
        self._h: Tensor | None = None
        self._norms = [part for part in learner.module.modules() if isinstance(part, GroupBatchNorm)]
        with evaluation_mode(learner.module):
            embedding: Tensor = learner.module(features[:1])
        self.width, self.dtype = embedding.shape[1], embedding.dtype  # weights may have another type
        if learner.trained and not isinstance(learner, ShardedLearner):
            learner.network = ranks.synchronise(learner.module)

    def embed(self, rows: Rows) -> Tensor:
        """Of those of the round's rows that are here; to learn from where gradients are on, as at all ranks."""
        self._own = rows[self.shares.places(rows, self.ranks.rank)] - self.shares.of(self.ranks.rank).start
        for norm in self._norms:
            norm.counts = bool(len(self._own))
        h = self._forward(self._select() if len(self._own) else self.features[:1])
        self._h = h if h.requires_grad else None
        return h.detach()[: len(self._own)]

    def _select(self) -> Tensor:
        return select_rows(self.features, self._own.to(self.features.device))

    def _forward(self, x: Tensor) -> Tensor:
        with self.ranks.map_errors("embedding rows"):
            return self.learner.forward(x)

    def embed_all(self) -> Tensor:
        for norm in self._norms:
            norm.counts = True
        with torch.no_grad():
            return self._forward(self.features)

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        table = self._held_out.get(rows)
        if table is None:
            return None
        with self.ranks.map_errors("embedding rows"):
            h = embed_in_chunks(self.learner.module, table) if len(table) else torch.empty(0, self.width)
            if isinstance(self.learner, ShardedLearner):
                self._wait_for_chunks(-(-len(table) // CHUNK))
        return h

    def _wait_for_chunks(self, own: int) -> None:
        """Weights that are shared out come together at all ranks, or at none: one may have a chunk more than this."""
        most = int(self.ranks.gather_all(torch.tensor([own])).max())
        for _ in range(own, most):
            embed_in_chunks(self.learner.module, self.features[:1])

    def learn(self, derivative: Tensor) -> None:
        """One update from dL/dh of the rows here that were embedded last, and from those of the other ranks."""
        h, self._h = self._h, None
        if h is None:
            raise BadState(f"rank {self.ranks.rank} has no embedding to learn from")
        whole = torch.zeros_like(h)
        # torch takes the mean over ranks; the loss is a mean over the whole batch already, so gradients add up.
        whole[: len(self._own)] = derivative.to(h) * self.ranks.size
        with self.ranks.map_errors("adding up gradients"):
            self.learner.learn(self._own, self._select, h, whole)


_EMBED = {HeldOut.VALIDATION: RankOrder.EMBED_VALIDATION, HeldOut.TEST: RankOrder.EMBED_TEST}


class GroupBottom(NetworkBottom):
    """Rank 0's. The conversation does not see that there are several processes."""

    def __init__(self, part: RankModel, batches: Batches, held_out: Mapping[HeldOut, RowShares]) -> None:
        super().__init__(part.learner, part.features.device)
        self._ranks = part.ranks
        self._part = part
        self._batches = batches
        self._held_out_shares = held_out
        self._places: list[Tensor] = []  # of each rank's rows in the batch that was embedded last
        self._is_shared = False  # have the others our weights, and what our optimiser remembers?

    def begin(self, round: Round) -> None:
        if not self._is_shared:
            self._share(self.tensors())
        self._ranks.tell(RankOrder.BEGIN, round)
        super().begin(round)

    def _share(self, tensors: Mapping[str, Tensor]) -> None:
        """The other ranks load them."""
        self._ranks.tell(RankOrder.STATE)
        self._ranks.share(tensors)
        self._is_shared = True

    def embed(self, round: Round, rows: Rows) -> Tensor:
        order = RankOrder.EMBED if torch.is_grad_enabled() else RankOrder.EMBED_ONLY
        self._ranks.tell(order, round, None if torch.equal(rows, self._batches.rows(round)) else rows)
        self._places = [self._part.shares.places(rows, rank) for rank in range(self._ranks.size)]
        h = self._gather(self._part.embed(rows), self._places)
        return h.requires_grad_(bool(self._learner.trained) and torch.is_grad_enabled())

    def embed_all(self) -> Tensor:
        self._ranks.tell(RankOrder.EMBED_ALL)
        return self._gather(self._part.embed_all(), self._in_order(self._part.shares))

    def embed_held_out(self, rows: HeldOut) -> Tensor | None:
        shares = self._held_out_shares.get(rows)
        if shares is None:
            return None
        self._ranks.tell(_EMBED[rows])
        return self._gather(self._part.embed_held_out(rows), self._in_order(shares))

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor, curvature: Tensor | None = None) -> None:
        if not self._learner.trained:
            return
        self._ranks.tell(RankOrder.LEARN)
        there = derivative.cpu().to(self._part.dtype)
        for rank in range(1, self._ranks.size):
            if len(self._places[rank]):
                self._ranks.send(there[self._places[rank]], rank)
        self._part.learn(derivative[self._places[0].to(derivative.device)])

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self._is_shared = False

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        super().load_weights(weights)
        self._share(add_prefix("module", weights))

    def _gather(self, own: Tensor | None, places: list[Tensor]) -> Tensor:
        """Every rank's rows, where they belong."""
        part = self._part
        whole = torch.empty(sum(map(len, places)), part.width, dtype=part.dtype)
        for rank, where in enumerate(places):
            if not len(where):
                continue
            if rank == 0 and own is not None:
                whole[where] = own.cpu()
                continue
            received = torch.empty(len(where), part.width, dtype=part.dtype)
            self._ranks.receive(received, rank)
            whole[where] = received
        return whole.to(self.device)

    def _in_order(self, shares: RowShares) -> list[Tensor]:
        return [torch.arange(own.start, own.stop) for own in map(shares.of, range(self._ranks.size))]


class ShardedBottom(GroupBottom):
    """Where weights are shared out. Rank 0 has a whole copy, which is never trained: for checkpoints and scores."""

    def __init__(
        self, part: RankModel, batches: Batches, held_out: Mapping[HeldOut, RowShares], whole: nn.Module
    ) -> None:
        super().__init__(part, batches, held_out)
        self._whole = whole

    @property
    def module(self) -> nn.Module:
        self.tensors()
        return self._whole

    def tensors(self) -> dict[str, Tensor]:
        self._ranks.tell(RankOrder.GATHER)
        found = super().tensors()
        self._whole.load_state_dict(remove_prefix("module", found))
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        self._share(tensors)


class RankFollower:
    """Every other rank's: does what rank 0 says. `open_model` builds its part, for so many rounds."""

    def __init__(self, ranks: Ranks, open_model: Callable[[int], RankModel], batches: Batches) -> None:
        self._ranks = ranks
        self._open_model = open_model
        self._batches = batches
        self._embedded = 0  # rows, last
        self._opened: RankModel | None = None

    def follow(self) -> None:
        """Blocks until rank 0 says that it is over; raises GroupBroken where rank 0 is gone."""
        while (received := self._ranks.receive_order()).order is not RankOrder.END:
            if received.order is RankOrder.OPEN:
                self._opened = self._open_model(received.round)
            else:
                self._obey(received, self._part)

    @property
    def _part(self) -> RankModel:
        if self._opened is None:
            raise BadState(f"rank 0 told rank {self._ranks.rank} to compute before there was a model")
        return self._opened

    def _obey(self, received: RankCommand, part: RankModel) -> None:
        match received.order:
            case RankOrder.STATE:
                part.learner.load(self._ranks.share())
            case RankOrder.BEGIN:
                part.learner.begin(received.round)
            case RankOrder.EMBED | RankOrder.EMBED_ONLY as order:
                rows = self._batches.rows(received.round) if received.rows is None else received.rows
                with torch.set_grad_enabled(order is RankOrder.EMBED):
                    self._embedded = self._send(part.embed(rows))
            case RankOrder.EMBED_ALL:
                self._send(part.embed_all())
            case RankOrder.EMBED_VALIDATION:
                self._send(part.embed_held_out(HeldOut.VALIDATION))
            case RankOrder.EMBED_TEST:
                self._send(part.embed_held_out(HeldOut.TEST))
            case RankOrder.GATHER:
                part.learner.tensors()
            case RankOrder.LEARN:
                part.learn(self._receive_derivative(part))
            case _:
                raise BadState(f"rank 0 told rank {self._ranks.rank} to {received.order.name}, out of turn")

    def _send(self, h: Tensor | None) -> int:
        if h is None or not len(h):
            return 0
        self._ranks.send(h.cpu(), 0)
        return len(h)

    def _receive_derivative(self, part: RankModel) -> Tensor:
        derivative = torch.empty(self._embedded, part.width, dtype=part.dtype)
        if self._embedded:
            self._ranks.receive(derivative, 0)
        return derivative
