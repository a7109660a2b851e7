"""How a party's rows are shared out among its processes, and that all have read the same ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import xxhash
from torch import Tensor

from thinwire.base.errors import BadInput
from thinwire.training.ranks.part import Shares
from thinwire.training.ranks.ranks import Ranks

_DIGEST = 16  # bytes
_ROWS = 65_536  # read at a time


class Table(Protocol):
    """A party's rows in the order of the alignment, wherever they lie."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Tensor:
        """float32 [stop - start, ...]."""
        ...


@dataclass(frozen=True)
class TensorTable:
    """In memory."""

    tensor: Tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def read(self, start: int, stop: int) -> Tensor:
        return self.tensor[start:stop]


def pieces(table: Table, rows: range) -> Iterator[Tensor]:
    """These rows, some at a time."""
    for start in range(rows.start, rows.stop, _ROWS):
        yield table.read(start, min(start + _ROWS, rows.stop))


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

    def compare(self, features: Table, test_features: Table | None) -> None:
        """At rank 0: refuses where another rank has read other rows."""
        for rank in range(1, self.ranks.size):
            told = torch.zeros(_DIGEST, dtype=torch.uint8)
            self.ranks.receive(told, rank)
            if not torch.equal(told, self._digest(features, test_features, rank)):
                raise BadInput(
                    f"rank {rank} has read other rows than rank 0: its copy of the party's files differs; copy them "
                    "again"
                )

    def show(self, features: Table, test_features: Table | None) -> None:
        """At the other ranks."""
        self.ranks.send(self._digest(features, test_features, self.ranks.rank), 0)

    def _digest(self, features: Table, test_features: Table | None, rank: int) -> Tensor:
        """Of one rank's rows, and of how many there are in all."""
        digest = xxhash.xxh3_128(f"{self.rows} {self.test_rows}".encode())
        for table, shares in ((features, self.shares), (test_features, self.test_shares)):
            for piece in () if table is None else pieces(table, shares.of(rank)):
                digest.update(f"{tuple(piece.shape)}".encode())
                digest.update(piece.reshape(-1).numpy().data)
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
