"""How a party's rows are shared out among its processes, and that all have read the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

from thinwire.errors import BadInput
from thinwire.group.part import Shares
from thinwire.group.ranks import Ranks
from thinwire.party.description import FeatureParty

__all__ = ["Group"]

_DIGEST = 16  # bytes


@dataclass(frozen=True, slots=True)
class Group:
    """A party's processes, and how its rows are shared out among them."""

    ranks: Ranks
    rows: int
    test_rows: int

    @property
    def shares(self) -> Shares:
        return Shares(self.rows, self.ranks.size)

    @property
    def test_shares(self) -> Shares:
        return Shares(self.test_rows, self.ranks.size)

    def compare(self, features: Tensor, test_features: Tensor | None) -> None:
        """At rank 0, with the whole tables: refuses where another rank has read other rows."""
        for rank in range(1, self.ranks.size):
            told = torch.zeros(_DIGEST, dtype=torch.uint8)
            self.ranks.receive(told, rank)
            if not torch.equal(told, self._digest(features, test_features, rank)):
                raise BadInput(
                    f"rank {rank} has read other rows than rank 0: its copy of the party's "
                    "files differs; copy them again"
                )

    def show(self, features: Tensor, test_features: Tensor | None) -> None:
        """At the other ranks."""
        self.ranks.send(self._digest(features, test_features, self.ranks.rank), 0)

    def keep_own_rows(self, party: FeatureParty) -> None:
        """This rank's rows alone: the others need not stay in memory."""
        party.features = self.shares.taken(party.features, self.ranks.rank)
        if party.test_features is not None:
            party.test_features = self.test_shares.taken(party.test_features, self.ranks.rank)

    def _digest(self, features: Tensor, test_features: Tensor | None, rank: int) -> Tensor:
        """Of one rank's rows, and of how many there are in all."""
        digest = xxhash.xxh3_128(f"{tuple(features.shape)} {self.rows} {self.test_rows}".encode())
        for table, shares in ((features, self.shares), (test_features, self.test_shares)):
            if table is not None:
                own = shares.of(rank)
                digest.update(table[own.start : own.stop].reshape(-1).numpy().data)
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
