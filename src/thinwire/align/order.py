"""The order of the common rows, and the digest that proves it: both follow from the ids and the session's nonce.

Every party holds the common ids, so each sorts them by a hash keyed with the nonce and comes to the same order. It
shows nothing of anybody's table. Without the nonce, which is not kept, the digest cannot be tested against guesses.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from secrets import token_bytes

import numpy as np

from thinwire.align.ids import Ids, RowNumbers

__all__ = ["DIGEST_SIZE", "NONCE_SIZE", "fresh_nonce", "in_common_order", "shuffled"]

NONCE_SIZE = 32
DIGEST_SIZE = 32
_DOMAIN = b"thinwire alignment 1"
_CHUNK = 65536


def fresh_nonce() -> bytes:
    return token_bytes(NONCE_SIZE)


def in_common_order(ids: Ids, rows: RowNumbers, nonce: bytes) -> tuple[RowNumbers, bytes]:
    """These rows in the order that all parties agree on, and the digest of their ids."""
    keys = np.empty((len(rows), DIGEST_SIZE), np.uint8)
    for start in range(0, len(rows), _CHUNK):
        texts = ids.texts(rows[start : start + _CHUNK])
        hashes = (
            blake2b(text, digest_size=DIGEST_SIZE, key=nonce, person=b"tw align row").digest() for text in texts
        )
        keys[start : start + len(texts)] = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, DIGEST_SIZE)
    order = np.argsort(keys.view(f"S{DIGEST_SIZE}")[:, 0])
    digest = sha256(_DOMAIN + nonce + len(rows).to_bytes(8, "big"))
    digest.update(np.ascontiguousarray(keys[order]).data)
    return rows[order], digest.digest()


def shuffled(count: int) -> RowNumbers:
    """All rows in an order that nobody can guess: by 64 bits each from the system."""
    weights = np.frombuffer(token_bytes(8 * count), np.uint64)
    return np.argsort(weights)
