"""The tensors of cached exchanges, in memory up to a limit, else in a file; and how far a cached row is trusted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import cos, prod, radians
from typing import BinaryIO
from weakref import finalize

import torch
from torch import Tensor

from thinwire.base.errors import BadState
from thinwire.base.types import Round
from thinwire.engine.streams import Storage, release_pages
from thinwire.engine.streams.storage import map_file

_ALIGNED = 64  # bytes


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the file a tensor stands, and what it was."""

    start: int
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device


@dataclass(frozen=True, slots=True)
class _Spilled:
    """One exchange's tensors, one after the other."""

    start: int
    size: int
    places: tuple[_Place, ...]


class ExchangeCache:
    """Tensors of past exchanges; those that exceed the storage's limit go to a file, bit for bit.

    Args:
        storage: memory limit and folder.

    Examples:
        >>> cache = tw.schedule.ExchangeCache(tw.Storage())
        >>> cache.put(0, [torch.ones(2)])
        >>> cache.rounds()
        [0]
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._held: dict[Round, list[Tensor]] = {}
        self._spilled: dict[Round, _Spilled] = {}
        self._bytes_held = 0
        self._file: BinaryIO | None = None
        self._length = 0
        self._mapped: Tensor | None = None  # all of the file
        self._free: dict[int, list[int]] = {}  # where exchanges stood that are gone, by size

    def rounds(self) -> list[Round]:
        return sorted([*self._held, *self._spilled])

    def put(self, round: Round, tensors: Sequence[Tensor]) -> None:
        """Keeps one exchange; its tensors must not change afterwards."""
        self.drop([round])
        size = _bytes(tensors)
        if self._bytes_held + size <= self._storage.memory_limit_bytes:
            self._held[round] = list(tensors)
            self._bytes_held += size
        else:
            self._spilled[round] = self._written(tensors)

    def get(self, round: Round) -> list[Tensor]:
        """The exchange's tensors, to compute with: those that were put, or copies."""
        if round in self._held:
            return list(self._held[round])
        places = self._spilled[round].places
        found = [self._at(place).to(place.device, copy=True) for place in places]
        release_pages(self._area())
        return found

    def look(self, round: Round) -> list[Tensor]:
        """The same for a checkpoint: what lies in the file stays there, and may change once it is dropped."""
        if round in self._held:
            return list(self._held[round])
        return [self._at(place) for place in self._spilled[round].places]

    def drop(self, rounds: Collection[Round]) -> None:
        for round in rounds:
            self._bytes_held -= _bytes(self._held.pop(round, []))
            spilled = self._spilled.pop(round, None)
            if spilled is not None:
                self._free.setdefault(spilled.size, []).append(spilled.start)

    def keep(self, rounds: Collection[Round]) -> None:
        """Drops all others."""
        self.drop([round for round in self.rounds() if round not in rounds])

    def _written(self, tensors: Sequence[Tensor]) -> _Spilled:
        sizes = [-(-tensor.nbytes // _ALIGNED) * _ALIGNED for tensor in tensors]
        starts = accumulate(sizes, initial=self._room(sum(sizes)))
        places = [_Place(start, t.dtype, t.shape, t.device) for start, t in zip(starts, tensors, strict=False)]
        for place, tensor in zip(places, tensors, strict=True):
            self._at(place).copy_(tensor)
        release_pages(self._area())
        return _Spilled(places[0].start, sum(sizes), tuple(places))

    def _room(self, size: int) -> int:
        """Where an exchange that is gone stood, or at the end of the file."""
        if free := self._free.get(size):
            return free.pop()
        if self._file is None:
            self._file = self._storage.file()
            finalize(self, self._file.close)
        self._storage.reserve(self._file, self._length, size, "cached exchanges")
        self._length += size
        self._mapped = map_file(self._file, self._length)
        return self._length - size

    def _at(self, place: _Place) -> Tensor:
        end = place.start + prod(place.shape) * place.dtype.itemsize
        return self._area()[place.start : end].view(place.dtype).view(place.shape)

    def _area(self) -> Tensor:
        if self._mapped is None:
            raise RuntimeError("nothing was spilled")
        return self._mapped


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


# How far a cached row may be trusted: the cosine between what it was and what it is, and counts of them -----------


def cosine_weights(now: Tensor, cached: Tensor, xi_degrees: float) -> tuple[Tensor, Tensor]:
    """Row weights and cosines between current and cached values; a weight is 0 where the cosine is below cos(xi).

    The cosine with one zero vector is 0, of two zero vectors 1; never NaN.

    Args:
        now: [B, ...].
        cached: [B, ...].
        xi_degrees: largest angle that counts.

    Examples:
        >>> weights, cosines = tw.schedule.cosine_weights(torch.eye(2), torch.ones(2, 2), xi_degrees=60)
        >>> weights
        tensor([0.7071, 0.7071])
    """
    dtype = now.dtype
    now, cached = now.flatten(1).double(), cached.flatten(1).double()  # float32 lengths would underflow
    lengths = now.norm(dim=1) * cached.norm(dim=1)
    cosines = (now * cached).sum(dim=1) / lengths.clamp_min(torch.finfo(now.dtype).tiny)
    both_zero = (now == 0).all(dim=1) & (cached == 0).all(dim=1)
    cosines = torch.where(both_zero, torch.ones_like(cosines), cosines.clamp(-1, 1))
    weights = torch.where(cosines < cos(radians(xi_degrees)), torch.zeros_like(cosines), cosines)
    return weights.to(dtype), cosines.to(dtype)


_BINS = 4000  # over -1 to 1: quantiles are right to 0.0005


class CosineTally:
    """Counts cosines in equal bins, for quantiles.

    Examples:
        >>> tally = tw.schedule.CosineTally()
        >>> tally.add(torch.tensor([0.5, 1.0]))
        >>> len(tally)
        2
    """

    def __init__(self) -> None:
        self._counts = torch.zeros(_BINS, dtype=torch.int64)

    def add(self, cosines: Tensor) -> None:
        """Values from -1 to 1."""
        self._counts += torch.histc(cosines.detach().float().cpu(), _BINS, -1, 1).long()

    def __len__(self) -> int:
        return int(self._counts.sum())

    def quantiles(self, parts: Sequence[float]) -> list[float]:
        """The cosine below which each part of the rows lies; the middle of its bin."""
        below = self._counts.cumsum(0).double()
        ranks = torch.tensor(parts, dtype=torch.float64) * (below[-1] - 1)
        bins = torch.searchsorted(below, ranks, right=True)
        return [round(float(place) * 2 / _BINS - 1 + 1 / _BINS, 6) for place in bins]

    def clear(self) -> None:
        self._counts.zero_()

    def state(self) -> Tensor:
        """Not a copy."""
        return self._counts

    def load(self, counts: Tensor) -> None:
        if counts.dtype != torch.int64 or counts.shape != self._counts.shape:
            raise BadState(f"saved cosines are {counts.dtype} {tuple(counts.shape)}, not {_BINS} counts")
        self._counts.copy_(counts)
