"""Seeds that follow from what they are for, so that nothing depends on the order of draws."""

from __future__ import annotations

import xxhash


def derive_seed(*parts: object) -> int:
    """63 bits from the run's seed and the names and numbers of a use; never for privacy noise."""
    return xxhash.xxh3_64_intdigest("\x1f".join(str(part) for part in parts).encode()) >> 1
