"""A model that all parties have, whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from thinwire.predict.halves import LabelHalf
from thinwire.predict.own_models import LabelModel
from thinwire.types import PartyName

__all__ = ["Ready"]


@dataclass(frozen=True)
class Ready:
    """The label party's half and everybody's hash."""

    model: LabelModel
    half: LabelHalf
    hashes: Mapping[PartyName, str]
    defaults: Mapping[PartyName, Sequence[float]]  # of parties that state one

    @property
    def run(self) -> str:
        return self.model.run

    @cached_property
    def version(self) -> str:
        """One hash over all parties' models."""
        digest = hashlib.sha256(f"{self.run} {self.model.hash}\n".encode())
        for party, one in sorted(self.hashes.items()):
            digest.update(f"{party} {one}\n".encode())
        return digest.hexdigest()
