"""How often each symbol occurs, a byte each, and the coder that such tables steer.

A weight byte c > 0 means (16 + m) * 2^e with c - 1 = 16 e + m: five significant bits, which costs less than a
thousandth of the size. 0 means that the symbol does not occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import constriction
import numpy as np

from thinwire.base.errors import Malformed
from thinwire.engine.compress.message import Array
from thinwire.engine.wire.buffers import BodyReader, BodyWriter

MOST_WEIGHT = 241  # the byte of a table's most frequent symbol


def weight_bytes(counts: Array) -> Array:
    """The bytes of one table (one dimension), or of one in each row."""
    largest = np.maximum(counts.max(axis=-1, keepdims=True), 1)
    scaled = np.maximum(counts * (2.0**19 / largest), 16.0)
    exponents = np.floor(np.log2(scaled)).astype(np.int64) - 4
    mantissas = np.rint(scaled / 2.0**exponents).astype(np.int64) - 16  # 16 carries into the exponent
    return np.where(counts > 0, 1 + 16 * exponents + mantissas, 0).astype(np.uint8)


def count_bits(counts: Array, weights: Array) -> float:
    """How many bits symbols that occur so often take under these tables."""
    values = _values(weights)
    used = counts > 0
    totals = np.broadcast_to(values.sum(axis=-1, keepdims=True), values.shape)
    return float(np.sum(counts[used] * np.log2(totals[used] / values[used])))


def build_model(weights: Array) -> Any:
    """The coder's model of one table, in which two symbols occur at least."""
    return constriction.stream.model.Categorical(_values(weights), perfect=False)


def open_coder(words: Array | None = None) -> Any:
    """A new coder; with words, one that decodes them."""
    ans = constriction.stream.stack.AnsCoder
    return ans() if words is None else ans(words.astype(np.uint32))


def _values(weights: Array) -> Array:
    code = weights.astype(np.int64) - 1
    values: Array = np.where(weights > 0, (16 + (code & 15)) << (code >> 4 & 15), 0).astype(np.float64)
    return values


def encode_runs(out: BodyWriter, runs: Sequence[tuple[Array, Array]]) -> None:
    """Writes runs of symbols, each with its table; a table with one symbol says all of its run by itself."""
    ans = open_coder()
    for symbols, weights in reversed(runs):
        if np.count_nonzero(weights) > 1:
            ans.encode_reverse(np.ascontiguousarray(symbols, dtype=np.int32), build_model(weights))
    words = ans.get_compressed()
    out.whole(words.size)
    out.raw(words.astype("<u4").tobytes())


class RunReader:
    """Decodes run after run of what `encode_runs` wrote."""

    def __init__(self, reader: BodyReader) -> None:
        words = reader.array("<u4", reader.whole())
        if words.size and words[-1] == 0:
            raise Malformed("range-coded words end with an empty one")
        self._ans = open_coder(words)

    def run(self, weights: Array, count: int) -> Array | int:
        """`count` symbols; the one symbol where the table has but one."""
        occurs = np.flatnonzero(weights)
        if not occurs.size:
            raise Malformed("a table in which no symbol occurs")
        if occurs.size == 1:
            return int(occurs[0])
        symbols: Array = self._ans.decode(build_model(weights), count)
        return symbols

    def finish(self) -> None:
        if not self._ans.is_empty():
            raise Malformed("range-coded words do not end with the last symbol")
