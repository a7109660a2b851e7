"""Embeddings that a party allows to be kept: so many rows, for so long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from time import monotonic

import numpy as np
import numpy.typing as npt
from torch import Tensor

from thinwire.base.types import PartyName
from thinwire.net.handshake import CacheTerms

_Kept = OrderedDict[tuple[str, int], tuple[float, Tensor]]  # by model and row: until when, and what


class EmbeddingCache:
    """By party, model and row; the oldest go first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.hits = 0
        self.misses = 0
        self._clock = clock
        self._lock = Lock()  # batches begin in one thread and are scored in another
        self._kept: dict[PartyName, _Kept] = {}

    def find(
        self, party: PartyName, model: str, rows: npt.NDArray[np.int64], terms: CacheTerms | None
    ) -> dict[int, Tensor]:
        """What is kept of these rows and has not expired."""
        with self._lock:
            if terms is None:
                self._kept.pop(party, None)  # no longer allowed
                return {}
            kept = self._fresh(party)
            found = {row: kept[model, row][1] for row in rows.tolist() if (model, row) in kept}
            self.hits += len(found)
            self.misses += len(rows) - len(found)
            return found

    def keep(self, party: PartyName, model: str, rows: npt.NDArray[np.int64], h: Tensor, terms: CacheTerms) -> None:
        with self._lock:
            kept = self._fresh(party)
            expires = self._clock() + terms.seconds
            for row, values in zip(rows.tolist(), h, strict=True):
                kept[model, row] = (expires, values.clone())
                kept.move_to_end((model, row))
            while len(kept) > terms.rows:
                kept.popitem(last=False)

    def drop_stale(self) -> None:
        """From time to time: what may not be kept any longer is not in memory any longer."""
        with self._lock:
            for party in self._kept:
                self._fresh(party)

    def sizes(self) -> dict[PartyName, int]:
        with self._lock:
            return {party: len(kept) for party, kept in self._kept.items()}

    def _fresh(self, party: PartyName) -> _Kept:
        kept, now = self._kept.setdefault(party, OrderedDict()), self._clock()
        # The first to come are the first to go; where a party shortens its time, it has come back with other terms.
        while kept and next(iter(kept.values()))[0] <= now:
            kept.popitem(last=False)
        return kept
