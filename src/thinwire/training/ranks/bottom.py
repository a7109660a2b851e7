"""Rank 0's bottom model: every rank embeds its rows, and what they learn is added up here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from thinwire.base.types import Round
from thinwire.engine.programs.program import Batches
from thinwire.engine.streams import Rows
from thinwire.training.ranks.part import Part, Shares
from thinwire.training.ranks.ranks import Order, Ranks


class GroupBottom:
    """Implements `Bottom`. The conversation does not see that there are several processes."""

    def __init__(self, ranks: Ranks, part: Part, batches: Batches, width: int, tests: Shares) -> None:
        self._ranks = ranks
        self._part = part
        self._batches = batches
        self._width = width
        self._test_shares = tests
        self._counts: list[Tensor] = []  # where each rank's rows stand in the batch that was embedded last
        self._passed_on = False  # have the others our weights?

    @property
    def module(self) -> nn.Module:
        return self._part.learner.module

    @property
    def device(self) -> torch.device:
        return self._part.features.device

    def begin(self, round: Round) -> None:
        if not self._passed_on:
            self._ranks.tell(Order.WEIGHTS)
            for tensor in self.module.state_dict().values():
                self._ranks.share(tensor.cpu().contiguous())
            self._passed_on = True
        self._ranks.tell(Order.BEGIN, round)
        self._part.learner.begin(round)

    def embed(self, round: Round, rows: Rows) -> Tensor:
        self._ranks.tell(Order.EMBED, round, rows if self._batches.announced else None)
        self._counts = [self._part.shares.places(rows, rank) for rank in range(self._ranks.size)]
        h = self._gathered(self._part.embed(rows), self._counts)
        return h.requires_grad_(bool(self._part.learned))

    def embed_all(self) -> Tensor:
        self._ranks.tell(Order.EMBED_ALL)
        return self._gathered(self._part.embed_all(), self._in_order(self._part.shares))

    def embed_test(self) -> Tensor | None:
        if not self._test_shares.rows:
            return None
        self._ranks.tell(Order.EMBED_TEST)
        return self._gathered(self._part.embed_test(), self._in_order(self._test_shares))

    def learn(self, rows: Rows, h: Tensor, derivative: Tensor) -> None:
        if not self._part.learned:
            return
        self._ranks.tell(Order.LEARN)
        there = derivative.cpu()
        for rank in range(1, self._ranks.size):
            if len(self._counts[rank]):
                self._ranks.send(there[self._counts[rank]], rank)
        total = self._part.gradient(derivative[self._counts[0].to(derivative.device)])
        self._ranks.add_up(total)  # the loss is a mean over the batch: gradients of its rows add up
        self._part.set_gradient(total)
        self._part.learner.step()
        self._ranks.share(self._part.weights())

    def tensors(self) -> dict[str, Tensor]:
        return self._part.learner.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._part.learner.load(tensors)
        self._passed_on = False

    def _gathered(self, own: Tensor | None, places: list[Tensor]) -> Tensor:
        """Every rank's rows, where they belong."""
        like = next(self.module.parameters(), self._part.features)
        whole = torch.empty(sum(map(len, places)), self._width, dtype=like.dtype)
        for rank, where in enumerate(places):
            if not len(where):
                continue
            if rank == 0 and own is not None:
                whole[where] = own.cpu()
                continue
            received = torch.empty(len(where), self._width, dtype=like.dtype)
            self._ranks.receive(received, rank)
            whole[where] = received
        return whole.to(self.device)

    def _in_order(self, shares: Shares) -> list[Tensor]:
        return [torch.arange(own.start, own.stop) for own in map(shares.of, range(self._ranks.size))]
