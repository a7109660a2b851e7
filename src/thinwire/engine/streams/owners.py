"""Rows with one owner in common: a user's ratings, a customer's orders. A party of owners has one row for each.

Both ends of its streams work by owner: in a round each owner of the batch has one embedding, in the order of the
owners' numbers, and one derivative, the sum over its rows. Both follow from the rows and this index, so nothing more
travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from thinwire.base.errors import BadTensor
from thinwire.base.numbering import number_by_appearance
from thinwire.engine.streams.stream import Rows
from thinwire.engine.streams.surrogate import are_all, list_rows


@dataclass(frozen=True, slots=True)
class OwnedRows:
    """Some rows of the run and their owners, each owner once.

    Args:
        owners: row numbers in the owners' table.
        places: each row's owner among them; None where each row has its own.

    Examples:
        >>> owned = tw.streams.OwnedRows(torch.tensor([4, 7]), torch.tensor([0, 1, 0]))
        >>> owned.expand(torch.tensor([[1.0], [2.0]])).flatten()
        tensor([1., 2., 1.])
    """

    owners: Rows
    places: Tensor | None = None  # of each row's owner among them; None: each row has an owner of its own

    def expand(self, values: Tensor) -> Tensor:
        """One row of values for each row, of one for each owner."""
        return values if self.places is None else values.index_select(0, self.places.to(values.device))

    def add_up(self, values: Tensor) -> Tensor:
        """The sum over each owner's rows."""
        if self.places is None:
            return values
        total = values.new_zeros(len(self.owners), *values.shape[1:])
        return total.index_add_(0, self.places.to(values.device), values)


@dataclass(frozen=True, eq=False)
class RowOwners:
    """The owner of each row of the run, as a row of one party's table.

    Args:
        count: number of owners.
        index: int64 [N]; None where each row is its own owner.

    Examples:
        >>> tw.streams.RowOwners.of(torch.tensor([0, 1, 0])).count
        2
    """

    count: int  # of owners
    index: Tensor | None = None  # int64 [N]; None: each row is its own

    @classmethod
    def of(cls, index: Tensor) -> RowOwners:
        """Of owners that are numbered without a gap."""
        return cls(int(index.max()) + 1, index)

    @property
    def rows(self) -> int:
        """Of the run."""
        return self.count if self.index is None else len(self.index)

    @classmethod
    def join(cls, parts: Sequence[RowOwners]) -> RowOwners:
        """Of tables one behind the other, whose owners have nothing to do with each other."""
        starts = [0, *accumulate(part.count for part in parts)]
        indices = [part.of_rows(slice(None)) + start for part, start in zip(parts, starts, strict=False)]
        return cls(starts[-1], torch.cat(indices))

    def select(self, rows: Rows) -> OwnedRows:
        if self.index is None:
            return OwnedRows(rows)
        if are_all(rows, len(self.index)):
            return OwnedRows(list_rows(self.count), self.index)
        owners, places = torch.unique(self.index.index_select(0, rows), return_inverse=True)
        return OwnedRows(owners, places)

    def select_all(self) -> OwnedRows:
        return OwnedRows(list_rows(self.count), self.index)

    def of_rows(self, rows: Rows | slice) -> Tensor:
        """Each row's owner."""
        if self.index is None:
            return torch.arange(self.count)[rows] if isinstance(rows, slice) else rows
        return self.index[rows]


def renumber_owners(table: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of owners that the index names, and the index of those alone.

    They are numbered in the order of their first rows: whoever knows which rows have an owner in common, as the label
    party does, has the same numbers.
    """
    owners, places = map(torch.from_numpy, number_by_appearance(index.numpy()))
    return (table if are_all(owners, len(table)) else table.index_select(0, owners.to(table.device))), places


def check_index(where: str, index: Tensor, owners: int) -> Tensor:
    """An int64 tensor [N] of rows of a table of so many owners."""
    is_whole = not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
    if not is_whole or index.dim() != 1 or not len(index):
        raise BadTensor(f"{where} must hold one whole number per row, got {index.dtype} of shape {list(index.shape)}")
    index = index.long()
    wrong = (index < 0) | (index >= owners)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        says = f"row {row + 1} belongs to owner {int(index[row])}, and there are 0 to {owners - 1}"
        raise BadTensor(f"{where}: {says}; give the place of each row's owner in the features")
    return index
