"""The group ids are blinded in: ristretto255 (RFC 9496), by libsodium through rbcl. Nothing else imports rbcl.

The group has prime order, so a point shows nothing but itself, and a key times an unknown point is as good as
random to whoever lacks the key. `multiplied` refuses what is not the one encoding of a point, and the point that
every key leaves where it is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256, sha512
from typing import Any

__all__ = ["POINT_SIZE", "InvalidPoint", "blinded", "fresh_key", "hash_to_group", "multiplied", "tags_of"]

POINT_SIZE = 32  # bytes
_DOMAIN = b"thinwire alignment 1, an id as a point of ristretto255:"


@cache
def _load_rbcl() -> Any:
    """At the first use: it writes the file that it loads libsodium from, and leaves 3 MB a process behind."""
    import rbcl
    from rbcl._sodium import lib_path

    with suppress(OSError):
        os.unlink(lib_path)
    return rbcl


class InvalidPoint(ValueError):
    """Bytes that stand for no point, or for the neutral one, at `place` of those that came together."""

    def __init__(self, place: int) -> None:
        super().__init__(place)  # alone, so that it passes from one process to another
        self.place = place


def fresh_key() -> bytes:
    """A uniform scalar other than 0; never stored."""
    key: bytes = _load_rbcl().crypto_core_ristretto255_scalar_random()
    return key


def hash_to_group(text: bytes) -> bytes:
    """The id's point. Nobody knows a key that leads from one id's point to another's."""
    digest = sha512(_DOMAIN + len(text).to_bytes(8, "big") + text).digest()
    point: bytes = _load_rbcl().crypto_core_ristretto255_from_hash(digest)
    return point


def blinded(texts: Sequence[bytes], key: bytes) -> bytes:
    """The key times each id's point, one after the other."""
    times = _load_rbcl().crypto_scalarmult_ristretto255
    return b"".join([times(key, hash_to_group(text)) for text in texts])


def multiplied(points: bytes, key: bytes) -> bytes:
    """The key times each point of these bytes. Raises InvalidPoint."""
    times = _load_rbcl().crypto_scalarmult_ristretto255
    found: list[bytes] = []
    try:
        for start in range(0, len(points), POINT_SIZE):
            found.append(times(key, points[start : start + POINT_SIZE]))
    except RuntimeError:  # so says rbcl of what libsodium refuses
        raise InvalidPoint(len(found)) from None
    return b"".join(found)


def tags_of(points: bytes, key: bytes, size: int) -> bytes:
    """The key times each point, as the first `size` bytes of its SHA-256. Raises InvalidPoint."""
    both = multiplied(points, key)
    return b"".join([sha256(both[at : at + POINT_SIZE]).digest()[:size] for at in range(0, len(both), POINT_SIZE)])
