"""Hashes that are the same on every machine and in every version: of row numbers, and of categories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types
import xxhash
from numpy.typing import NDArray

from thinwire.base.errors import BadParameter
from thinwire.base.seeds import derive_seed

BUCKETS = range(2, (1 << 24) + 1)  # of a column; a float holds their numbers
_STEP = np.uint64(0x9E3779B97F4A7C15)


def row_keys(rows: NDArray[np.int64], *use: object) -> NDArray[np.uint64]:
    """64 bits for each row number and use (splitmix64); sorting by them shuffles."""
    x = rows.astype(np.uint64) * _STEP + np.uint64(derive_seed(*use))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True)
class Buckets:
    """How many codes a hashed column has: code 0 is "missing", the others share the categories."""

    default: int = 1_000
    by_column: Mapping[str, int] | tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_column", tuple(dict(self.by_column).items()))
        for name, count in {"default": self.default, **dict(self.by_column)}.items():
            if count not in BUCKETS:
                raise BadParameter(f"Buckets: {name} must be from 2 to {BUCKETS[-1]}, got {count}")

    def __str__(self) -> str:
        others = ", ".join(f"{count} for {name}" for name, count in dict(self.by_column).items())
        return f"{self.default} codes" + (f" ({others})" if others else "")

    def of(self, column: str) -> int:
        return dict(self.by_column).get(column, self.default)


def hash_codes(column: str, values: Any, buckets: int) -> NDArray[np.float32]:
    """0 where missing, else 1 + XXH3-64(value; seed XXH3-64(column)) mod (buckets - 1), for an Arrow column."""
    digest = xxhash.xxh3_64_intdigest
    seed = digest(column.encode())

    def table(words: list[bytes]) -> NDArray[np.float32]:
        hashes = np.array([digest(word, seed) for word in words], dtype=np.uint64)
        return np.append(1 + hashes % np.uint64(buckets - 1), 0).astype(np.float32)

    return encode_words(values, table)


def code_known_words(values: Any, codes: Mapping[str, int], unknown: int, missing: int) -> NDArray[np.float32]:
    """Each value's code; `unknown` for a word that has none, `missing` where there is no word."""
    known = {word.encode(): code for word, code in codes.items()}
    return encode_words(
        values, lambda words: np.array([*(known.get(word, unknown) for word in words), missing], dtype=np.float32)
    )


def encode_words(values: Any, table: Callable[[list[bytes]], NDArray[np.float32]]) -> NDArray[np.float32]:
    """Looks every value up in `table(words)`: a number for each of the words, and a last one for missing values."""
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    codes = [np.zeros(0, dtype=np.float32)]
    for chunk in chunks:
        whole = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        words = whole.dictionary.cast(pa.string()).cast(pa.binary()).to_pylist()
        places = pc.fill_null(whole.indices.cast(pa.int64()), len(words)).to_numpy(zero_copy_only=False)
        codes.append(table(words)[places])
    return np.concatenate(codes)
