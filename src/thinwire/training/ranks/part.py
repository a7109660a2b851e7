"""What one rank has of its party: some of the rows, and a copy of the bottom model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from thinwire.engine.protocols.bottom import Learner
from thinwire.engine.protocols.evaluation import embed_in_chunks
from thinwire.engine.streams import Rows


@dataclass(frozen=True, slots=True)
class Shares:
    """Which of a table's rows each rank holds: neighbours, as many at every rank up to one."""

    rows: int
    ranks: int

    def of(self, rank: int) -> range:
        return range(self.rows * rank // self.ranks, self.rows * (rank + 1) // self.ranks)

    def taken(self, table: Tensor, rank: int) -> Tensor:
        """A copy of the rank's rows: the rest need not stay in memory."""
        own = self.of(rank)
        return table[own.start : own.stop].clone()

    def places(self, rows: Rows, rank: int) -> Tensor:
        """Where in a batch the rank's rows stand."""
        own = self.of(rank)
        return torch.nonzero((rows >= own.start) & (rows < own.stop)).flatten()


class Part:
    """A rank's rows and model; it remembers the last embedding's graph until it has learned from it."""

    def __init__(
        self, learner: Learner, rank: int, shares: Shares, features: Tensor, test_features: Tensor | None
    ) -> None:
        self.learner = learner
        self.shares = shares
        self.features = features
        self._rank = rank
        self._test_features = test_features
        self._h: Tensor | None = None

    @property
    def learned(self) -> list[nn.Parameter]:
        """The parameters that change."""
        return [parameter for parameter in self.learner.module.parameters() if parameter.requires_grad]

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

    def embed_test(self) -> Tensor | None:
        if self._test_features is None or not len(self._test_features):
            return None
        return embed_in_chunks(self.learner.module, self._test_features)

    def gradient(self, derivative: Tensor) -> Tensor:
        """Of the rows that were embedded last, all parameters in one line; zeros where there were none."""
        if self._h is not None and self._h.requires_grad:
            self._h.backward(derivative.to(self._h))
        self._h = None
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.learned]
        for parameter in self.learned:
            parameter.grad = None
        return _line(found)

    def set_gradient(self, line: Tensor) -> None:
        for parameter, piece in zip(self.learned, _pieces(line, self.learned), strict=True):
            parameter.grad = piece

    def weights(self) -> Tensor:
        """Those that change, in one line."""
        return _line([parameter.detach() for parameter in self.learned])

    def set_weights(self, line: Tensor) -> None:
        with torch.no_grad():
            for parameter, piece in zip(self.learned, _pieces(line, self.learned), strict=True):
                parameter.copy_(piece)


def _line(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).cpu()


def _pieces(line: Tensor, like: list[nn.Parameter]) -> list[Tensor]:
    pieces = line.split([parameter.numel() for parameter in like])
    return [piece.reshape(p.shape).to(p.device, p.dtype) for piece, p in zip(pieces, like, strict=True)]
