"""What one secure sum is about. A mask is bound to all of it, so no mask ever serves two sums."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire.compress.parameters import check_whole
from thinwire.errors import BadParameter
from thinwire.types import PartyName

__all__ = ["Context", "framed", "ring_modulus"]


def ring_modulus(parties: int, top: int) -> int:
    """R = 2^ceil(log2(parties * top + 1)): every sum fits, the one of all at their largest included."""
    return 1 << (parties * top).bit_length()


def framed(*values: int | str) -> bytes:
    """Each value behind its length in 4 bytes: injective for a fixed sequence of types."""
    return b"".join(len(data).to_bytes(4, "big") + data for data in map(_data, values))


def _data(value: int | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if value < 0:
        raise BadParameter(f"a negative number, {value}, where a count or a digest belongs")
    return value.to_bytes((value.bit_length() + 7) // 8, "big")


@dataclass(frozen=True, slots=True)
class Context:
    """One sum: which run, recipe, round and rows, whose integers, and in which ring they are added."""

    run: int
    recipe: str  # its digest
    round: int
    attempt: int
    rows_digest: int  # of the rows in their order
    parties: tuple[PartyName, ...]  # in the job's order, which says who adds a mask and who subtracts it
    top: int  # the largest integer of one party; for Poisson binomial counts, the trials
    modulus: int

    def __post_init__(self) -> None:
        for field in ("run", "round", "attempt"):
            check_whole(self, field, 0, 2**64 - 1)
        check_whole(self, "rows_digest", 0, 2**256 - 1)
        check_whole(self, "top", 1, 65535)
        check_whole(self, "modulus", 1, 2**32)
        object.__setattr__(self, "parties", tuple(self.parties))
        if not 2 <= len(set(self.parties)) == len(self.parties) <= 65535:
            raise BadParameter(f"Context: parties must be two different names at least, got {self.parties}")
        if self.modulus != (wanted := ring_modulus(len(self.parties), self.top)):
            raise BadParameter(
                f"Context: modulus must be {wanted} for {len(self.parties)} parties of integers up to {self.top}, "
                f"got {self.modulus}"
            )

    def to_bytes(self) -> bytes:
        """Canonical and injective: equal bytes mean equal contexts."""
        numbers = (self.run, self.round, self.attempt, self.rows_digest, self.top, self.modulus)
        return framed("thinwire secure sum 1", self.recipe, *numbers, len(self.parties), *self.parties)
