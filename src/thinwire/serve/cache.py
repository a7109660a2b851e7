"""Embeddings that a party allows to be kept: so many rows, for so long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

import numpy as np
import numpy.typing as npt
from torch import Tensor

from thinwire.predict.introduction import CacheTerms
from thinwire.types import PartyName

__all__ = ["EmbeddingCache"]


class EmbeddingCache:
    """By party, model and row; the oldest go first. For one thread at a time."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.hits = 0
        self.misses = 0
        self._clock = clock
        self._kept: dict[PartyName, OrderedDict[tuple[str, int], tuple[float, Tensor]]] = {}

    def known(
        self, party: PartyName, model: str, rows: npt.NDArray[np.int64], terms: CacheTerms | None
    ) -> dict[int, Tensor]:
        """What is kept of these rows and has not expired."""
        if terms is None:
            self._kept.pop(party, None)  # no longer allowed
            return {}
        kept, now = self._kept.setdefault(party, OrderedDict()), self._clock()
        found = {}
        for row in rows.tolist():
            held = kept.get((model, row))
            if held is not None and held[0] > now:
                found[row] = held[1]
        self.hits += len(found)
        self.misses += len(rows) - len(found)
        return found

    def keep(
        self, party: PartyName, model: str, rows: npt.NDArray[np.int64], h: Tensor, terms: CacheTerms | None
    ) -> None:
        if terms is None:
            return
        kept = self._kept.setdefault(party, OrderedDict())
        expires = self._clock() + terms.seconds
        for row, values in zip(rows.tolist(), h, strict=True):
            kept[model, row] = (expires, values.clone())
            kept.move_to_end((model, row))
        while len(kept) > terms.rows:
            kept.popitem(last=False)

    def sizes(self) -> dict[PartyName, int]:
        return {party: len(kept) for party, kept in self._kept.items()}
