"""Tables of the entropy coder: how often each symbol occurs, a byte each, and the coder that follows from it.

A weight byte c > 0 means (16 + m) * 2^e with c - 1 = 16 e + m: five significant bits, which costs less than
a thousandth of the size. 0 means that the symbol does not occur.
"""

from __future__ import annotations

from typing import Any

import constriction
import numpy as np

from thinwire.compress.message import Array

__all__ = ["MOST_TABLE", "coded_bits", "coder", "model_of", "weight_bytes"]

MOST_TABLE = 1024  # symbols


def weight_bytes(counts: Array) -> Array:
    """The bytes of one table (one dimension), or of one in each row."""
    largest = counts.max(axis=-1, keepdims=True)
    scaled = np.maximum(counts * (2.0**19 / largest), 16.0)
    exponents = np.floor(np.log2(scaled)).astype(np.int64) - 4
    mantissas = np.rint(scaled / 2.0**exponents).astype(np.int64) - 16  # 16 carries into the exponent
    return np.where(counts > 0, 1 + 16 * exponents + mantissas, 0).astype(np.uint8)


def coded_bits(counts: Array, weights: Array) -> float:
    """How many bits symbols that occur so often take under these tables."""
    values = _values(weights)
    used = counts > 0
    totals = np.broadcast_to(values.sum(axis=-1, keepdims=True), values.shape)
    return float(np.sum(counts[used] * np.log2(totals[used] / values[used])))


def model_of(weights: Array) -> Any:
    """The coder's model of one table, in which two symbols occur at least."""
    return constriction.stream.model.Categorical(_values(weights), perfect=False)


def coder(words: Array | None = None) -> Any:
    """A new coder; with words, one that decodes them."""
    ans = constriction.stream.stack.AnsCoder
    return ans() if words is None else ans(words.astype(np.uint32))


def _values(weights: Array) -> Array:
    code = weights.astype(np.int64) - 1
    values: Array = np.where(weights > 0, (16 + (code & 15)) << (code >> 4 & 15), 0).astype(np.float64)
    return values
