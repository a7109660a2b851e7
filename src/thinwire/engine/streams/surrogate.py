"""G: both ends of a stream hold one and change it alike, so that it stays the same bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
import xxhash
from torch import Tensor

from thinwire.base.errors import BadParameter, BadState
from thinwire.engine.streams.storage import Storage, blocks, make_table, release_pages

_TOUCHED = 1 << 16  # bytes that the system maps around a single row
_DEFAULT = Storage()


@lru_cache(maxsize=4)
def list_rows(count: int) -> Tensor:
    """0 to count - 1, in one tensor for all who ask, so that it is known again at sight; nobody writes into it."""
    return torch.arange(count)


def are_all(rows: Tensor, count: int) -> bool:
    """Whether these are all `count` rows, in order."""
    return len(rows) == count and torch.equal(rows, list_rows(count))  # takes no time for the very same tensor


class Surrogate:
    """Both ends' estimate G of the embeddings: one float32 row per row of the alignment, zeros at the start.

    Args:
        rows: N.
        width: E.
        storage: memory limit and folder.

    Raises:
        BadParameter: a size below 1.

    Examples:
        >>> surrogate = tw.streams.Surrogate(rows=3, width=2)
        >>> surrogate.add(torch.tensor([1]), torch.ones(1, 2))
        >>> surrogate.at(torch.tensor([1]))
        tensor([[1., 1.]])
    """

    def __init__(self, rows: int, width: int, storage: Storage = _DEFAULT) -> None:
        for field, value in (("rows", rows), ("width", width)):
            if value < 1:
                raise BadParameter(f"Surrogate: {field} must be 1 or more, got {value}")
        self.bytes = 4 * rows * width
        self.in_memory = self.bytes <= storage.memory_limit_bytes
        if self.in_memory:
            self._table = torch.zeros(rows, width, dtype=torch.float32)
            self._at_once = rows
        else:
            self._table = make_table(rows, width, storage, "a surrogate")
            # Halves: the rows that are looked up, and the same ones when they are changed.
            self._at_once = max(1, storage.resident_bytes // (_TOUCHED + 4 * width) // 2)
        self._touched = 0  # rows since memory was let go of

    @property
    def table(self) -> Tensor:
        """All of it, not a copy; shape [N, E]."""
        return self._table

    def at(self, rows: Tensor) -> Tensor:
        """A copy of some rows; shape [B, E]."""
        if self.in_memory and are_all(rows, len(self._table)):
            return self._table.clone()
        found = [self._table.index_select(0, part) for part in self._parts(rows)]
        return found[0] if len(found) == 1 else torch.cat(found)

    def subtract_from(self, rows: Tensor, x: Tensor) -> Tensor:
        """x - G[rows], of as many rows."""
        whole = self.in_memory and are_all(rows, len(self._table))
        return x - (self._table if whole else self.at(rows))

    def add(self, rows: Tensor, change: Tensor) -> None:
        """G[rows] += change, in the same order at both ends."""
        if self.in_memory and are_all(rows, len(self._table)):
            self._table += change
            return
        done = 0
        for part in self._parts(rows):
            self._table.index_add_(0, part, change[done : done + len(part)])
            done += len(part)

    def _parts(self, rows: Tensor) -> Iterator[Tensor]:
        """The rows, as many at a time as may be in memory; those before are let go of."""
        if self.in_memory or len(rows) == 0:
            yield rows
            return
        for part in rows.split(self._at_once):
            if self._touched + len(part) > 2 * self._at_once:
                release_pages(self._table)
                self._touched = 0
            self._touched += len(part)
            yield part

    def add_all(self, change: Tensor) -> None:
        """G += change."""
        flat, done = change.reshape(-1), 0
        for block in blocks(self._table):
            block.add_(flat[done : done + len(block)])
            done += len(block)

    def digest(self) -> int:
        """XXH3-64 of the table's bytes: equal at both ends, or the stream is broken."""
        running = xxhash.xxh3_64()
        for block in blocks(self._table):
            running.update(block.numpy().data)
        return running.intdigest()

    def load(self, table: Tensor) -> None:
        """Takes over a saved table."""
        if table.dtype != torch.float32 or table.shape != self._table.shape:
            raise BadState(
                f"the saved surrogate is {table.dtype} {tuple(table.shape)}, this stream needs "
                f"torch.float32 {tuple(self._table.shape)}; was it saved with other parties or widths?"
            )
        table = table.contiguous()
        for block in blocks(table):
            if not bool(torch.isfinite(torch.stack(torch.aminmax(block))).all()):
                raise BadState("the saved surrogate holds NaN or infinity")
        for mine, saved in zip(blocks(self._table), blocks(table), strict=True):
            mine.copy_(saved)
