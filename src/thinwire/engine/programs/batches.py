"""Which rows a round is about: every party derives the same ones from the agreed seed; no ids travel."""

from __future__ import annotations

import copy
from functools import lru_cache

import torch

from thinwire.base.errors import BadParameter
from thinwire.base.seeds import derived_seed
from thinwire.base.types import Round
from thinwire.engine.streams import Rows


class Batches:
    """The rows of each round: an epoch's shuffle in pieces, a last short one kept; or all rows in order.

    Announced: the label party draws them and sends them, in rising order, as the EF-VFL poster does.
    """

    def __init__(self, rows: int, batch_size: int | None, epochs: float, seed: int, announced: bool = False) -> None:
        if batch_size is not None and not 1 <= batch_size <= rows:
            says = f"must be from 1 to the {rows} training rows, got {batch_size}; leave it out for all rows"
            raise BadParameter.of("batch_size", says)
        if not epochs > 0:
            raise BadParameter.of("epochs", f"must be above 0, got {epochs}")
        self._rows = rows
        self._size = batch_size or rows
        self._whole = batch_size is None
        self._seed = seed
        self.announced = announced
        self.rounds_per_epoch = -(-rows // self._size)
        self.rounds = max(1, round(epochs * self.rounds_per_epoch))
        self._shuffle = lru_cache(maxsize=2)(self._shuffled)

    def limit(self, rounds: int) -> Batches:
        """The first of these rounds only."""
        fewer = copy.copy(self)
        fewer.rounds = min(self.rounds, rounds)
        return fewer

    def rows(self, round: Round) -> Rows:
        epoch, place = divmod(round, self.rounds_per_epoch)
        rows = self._shuffle(epoch)[place * self._size : (place + 1) * self._size]
        return rows.sort().values if self.announced else rows

    def all_rows(self) -> Rows:
        return torch.arange(self._rows)

    def epoch(self, rounds: int) -> float:
        """How many epochs this many rounds are."""
        return rounds / self.rounds_per_epoch

    def _shuffled(self, epoch: int) -> Rows:
        if self._whole:
            return torch.arange(self._rows)
        rng = torch.Generator().manual_seed(derived_seed(self._seed, "batches", epoch))
        return torch.randperm(self._rows, generator=rng)
