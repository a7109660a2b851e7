"""The group ids are blinded in: ristretto255 (RFC 9496), by libsodium through rbcl. Nothing else imports rbcl.

The group has prime order, so a point shows nothing but itself, and a key times an unknown point is as good as
random to whoever lacks the key. `multiplied` refuses what is not the one encoding of a point, and the point that
every key leaves where it is. Tags are what is compared in place of the points under both keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256, sha512
from math import ceil, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.align.ids import RowNumbers

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


def blind_ids(texts: Sequence[bytes], key: bytes) -> bytes:
    """The key times each id's point, one after the other."""
    times = _load_rbcl().crypto_scalarmult_ristretto255
    return b"".join([times(key, hash_to_group(text)) for text in texts])


def multiply_points(points: bytes, key: bytes) -> bytes:
    """The key times each point of these bytes. Raises InvalidPoint."""
    times = _load_rbcl().crypto_scalarmult_ristretto255
    found: list[bytes] = []
    try:
        for start in range(0, len(points), POINT_SIZE):
            found.append(times(key, points[start : start + POINT_SIZE]))
    except RuntimeError:  # so says rbcl of what libsodium refuses
        raise InvalidPoint(len(found)) from None
    return b"".join(found)


def compute_tags(points: bytes, key: bytes, size: int) -> bytes:
    """The key times each point, as the first `size` bytes of its SHA-256. Raises InvalidPoint."""
    both = multiply_points(points, key)
    return b"".join([sha256(both[at : at + POINT_SIZE]).digest()[:size] for at in range(0, len(both), POINT_SIZE)])


Tags = npt.NDArray[np.uint8]  # [ids, bytes]

_FALSE_MATCH_BITS = 40


def tag_size(ids: int, peer_ids: int) -> int:
    """So many bytes that any false match among all pairs of ids has a chance below 2^-40."""
    return ceil((_FALSE_MATCH_BITS + log2(ids) + log2(peer_ids)) / 8)


def empty_tags(ids: int, size: int) -> Tags:
    """Room that takes memory only as it is filled."""
    return np.empty((ids, size), np.uint8)


def find_repeat(tags: Tags) -> tuple[int, int] | None:
    """Two places that hold the same tag."""
    texts = _texts(tags)
    order = np.argsort(texts, kind="stable")
    ordered = texts[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    return None if not same.size else (int(order[same[0]]), int(order[same[0] + 1]))


def find_places(tags: Tags, among: Tags) -> RowNumbers:
    """For each tag its place among the others, which are all different; -1 where it is not there."""
    texts, others = _texts(tags), _texts(among)
    order = np.argsort(others)
    near = np.minimum(np.searchsorted(others, texts, sorter=order), len(others) - 1)
    places: RowNumbers = order[near]
    return np.where(others[places] == texts, places, -1)


def _texts(tags: Tags) -> npt.NDArray[Any]:
    """Each row of bytes as one value. All have one length, so the zeros that numpy pads texts with do no harm."""
    return np.ascontiguousarray(tags).view(f"S{tags.shape[1]}")[:, 0]
