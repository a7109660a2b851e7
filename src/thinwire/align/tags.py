"""Tags: what is compared in place of the points under both keys."""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.align.ids import RowNumbers

__all__ = ["Tags", "empty_tags", "first_repeated", "places_of", "tag_size"]

Tags = npt.NDArray[np.uint8]  # [ids, bytes]

_FALSE_MATCH_BITS = 40


def tag_size(ids: int, peer_ids: int) -> int:
    """So many bytes that any false match among all pairs of ids has a chance below 2^-40."""
    return ceil((_FALSE_MATCH_BITS + log2(ids) + log2(peer_ids)) / 8)


def empty_tags(ids: int, size: int) -> Tags:
    """Room that takes memory only as it is filled."""
    return np.empty((ids, size), np.uint8)


def first_repeated(tags: Tags) -> tuple[int, int] | None:
    """Two places that hold the same tag."""
    texts = _texts(tags)
    order = np.argsort(texts, kind="stable")
    ordered = texts[order]
    same = np.flatnonzero(ordered[1:] == ordered[:-1])
    return None if not same.size else (int(order[same[0]]), int(order[same[0] + 1]))


def places_of(tags: Tags, among: Tags) -> RowNumbers:
    """For each tag its place among the others, which are all different; -1 where it is not there."""
    texts, others = _texts(tags), _texts(among)
    order = np.argsort(others)
    near = np.minimum(np.searchsorted(others, texts, sorter=order), len(others) - 1)
    places: RowNumbers = order[near]
    return np.where(others[places] == texts, places, -1)


def _texts(tags: Tags) -> npt.NDArray[Any]:
    """Each row of bytes as one value. All have one length, so the zeros that numpy pads texts with do no harm."""
    return np.ascontiguousarray(tags).view(f"S{tags.shape[1]}")[:, 0]
