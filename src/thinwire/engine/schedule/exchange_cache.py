"""The tensors of cached exchanges, by round: in memory up to a limit, the rest in a file."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import BinaryIO
from weakref import finalize

import torch
from torch import Tensor

from thinwire.base.types import Round
from thinwire.engine.streams import Storage, let_go
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
    """What exchanges left behind. One that no longer fits the storage's limit goes to a file, bit for bit."""

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

    @property
    def file_bytes(self) -> int:
        """How much of it is in the file."""
        return sum(spilled.size for spilled in self._spilled.values())

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
        let_go(self._area())
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
        let_go(self._area())
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
