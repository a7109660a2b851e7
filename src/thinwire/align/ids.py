"""A party's ids as they are compared: Unicode NFC, trimmed, each there once; and the order of the common rows.

Every party holds the common ids, so each sorts them by a hash keyed with the session's nonce and comes to the same
order. It shows nothing of anybody's table. Without the nonce, which is not kept, the digest that proves the order
cannot be tested against guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b, sha256
from numbers import Integral
from secrets import token_bytes
from typing import Any
from unicodedata import normalize
from uuid import UUID

import numpy as np
import numpy.typing as npt
import xxhash

from thinwire.base.errors import BadIds

LONGEST_ID = 1 << 20  # bytes of UTF-8
_MOST = 5  # rows named in one message
_NULLS = ("NAType", "NaTType")  # what pandas puts where nothing is

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ids:
    """Normalised ids in the order of a party's rows; one buffer, so that a hundred million fit."""

    _data: bytes
    _ends: RowNumbers  # where each id ends in the data

    def __len__(self) -> int:
        return len(self._ends)

    def texts(self, rows: RowNumbers) -> list[bytes]:
        """The UTF-8 text of each of these rows."""
        ends = self._ends[rows]
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        data = self._data
        return [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def decode(self) -> list[str]:
        """The text of every row."""
        return [text.decode() for text in self.texts(np.arange(len(self)))]

    def digest(self) -> str:
        """SHA-256 over all ids in order, each behind its length in 8 bytes; tells whether a table has changed."""
        digest, start, data = hashlib.sha256(), 0, memoryview(self._data)
        for end in self._ends.tolist():
            digest.update((end - start).to_bytes(8, "big"))
            digest.update(data[start:end])
            start = end
        return digest.hexdigest()

    def ways_of_writing(self) -> str:
        """How ids here are written where others often write them otherwise; '' where nothing stands out."""
        zeros = capitals = fractions = 0
        for text in self.texts(np.arange(len(self))):
            zeros += text.startswith(b"0") and len(text) > 1 and text.isdigit()
            capitals += text != text.lower()
            fractions += text.endswith(b".0")
        found = [
            f"{count} of {len(self)} {what}"
            for count, what in (
                (zeros, "begin with a zero"),
                (capitals, "hold capital letters"),
                (fractions, "end with '.0', as integers do that were read as floats"),
            )
            if count
        ]
        return "; ".join(found)


def normalize_ids(values: Iterable[Any], where: str = "ids") -> Ids:
    """The ids of a list, or of a column of numpy, Arrow, pandas or polars.

    Text is brought to Unicode NFC and trimmed, bytes are UTF-8 text, integers count as their decimal text,
    dates and UUIDs as `str` writes them. Refuses rows without an id, ids that are there twice, and anything else.
    """
    texts = _list_texts(values, where)
    _require_different(texts, where)
    return _join_texts(texts)


@dataclass(frozen=True, slots=True)
class OwnerIds:
    """Whose each row of the label party's table is: the ids of the owners, each there once, and each row's place."""

    ids: Ids
    index: RowNumbers  # [N]


def normalize_owner_ids(values: Iterable[Any], where: str = "ids") -> OwnerIds:
    """As `normalize_ids`, of ids that many rows may have in common; a row without one is refused."""
    places: dict[bytes, int] = {}
    texts = _list_texts(values, where)
    index = np.fromiter((places.setdefault(text, len(places)) for text in texts), np.int64, len(texts))
    return OwnerIds(_join_texts(list(places)), index)


def _join_texts(texts: Sequence[bytes]) -> Ids:
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return Ids(b"".join(texts), ends)


def _list_texts(values: Iterable[Any], where: str) -> list[bytes]:
    """Each row's id as it is compared."""
    texts: list[bytes] = []
    missing: list[int] = []
    for row, value in enumerate(_list_values(values, where), 1):
        text = id_text(value, row, where)
        if text:
            texts.append(text)
        else:
            missing.append(row)
    if missing:
        what = "1 row has no id" if len(missing) == 1 else f"{len(missing)} rows have no id"
        raise BadIds(f"{where}: {what}: {_rows(missing)}; give every row an id, or drop it")
    if not texts:
        raise BadIds(f"{where}: there are no ids; give one for each row")
    return texts


def _list_values(values: Any, where: str) -> Iterable[Any]:
    """Plain values; a column knows best how to give them."""
    if isinstance(values, (str, bytes)):
        raise BadIds(f"{where}: one text is not a list of ids; give a list, or a column of a table")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise BadIds(f"{where}: the array has shape {values.shape}; ids must be one column, [N]")
        if values.dtype.kind == "M" and np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as"):
            values = values.astype("M8[us]")  # those have no times of Python's, and would be listed as numbers
    for listing in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, listing):
            listed: Iterable[Any] = getattr(values, listing)()
            return listed
    if not isinstance(values, Iterable):
        raise BadIds(f"{where}: {type(values).__name__} is not a list of ids; give a list, or a column of a table")
    return values


def id_text(value: Any, row: int, where: str) -> bytes | None:
    """The id as it is compared; None or nothing where there is none."""
    match value:
        case str():
            text = value if value.isascii() else normalize("NFC", value)
        case None:
            return None
        case bool() | np.bool_():
            raise _unfit(value, row, where)
        case Integral():
            text = str(int(value))
        case bytes():
            try:
                text = normalize("NFC", value.decode())
            except UnicodeDecodeError:
                raise BadIds(f"{where}: row {row} has bytes that are not valid UTF-8") from None
        case float() | np.floating() if np.isnan(value):
            return None
        case _ if type(value).__name__ in _NULLS:
            return None
        case date() | UUID():
            text = str(value)
        case _:
            raise _unfit(value, row, where)
    try:
        data = text.strip().encode()
    except UnicodeEncodeError:
        raise BadIds(f"{where}: row {row} has an id that is not valid Unicode") from None
    if len(data) > LONGEST_ID:
        raise BadIds(f"{where}: the id of row {row} has {len(data)} bytes; at most {LONGEST_ID} are allowed")
    return data


def _unfit(value: Any, row: int, where: str) -> BadIds:
    way_out = "ids must be text or integers"
    if isinstance(value, (float, np.floating)):
        way_out += "; read the column as text (pandas turns integers into floats where a value is missing)"
    return BadIds(f"{where}: row {row} has an id of type {type(value).__name__}; {way_out}")


def _require_different(texts: Sequence[bytes], where: str) -> None:
    """Refuses ids that are there twice; only those whose short hash appears twice are compared in full."""
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    order = np.argsort(hashes, kind="stable")
    same = hashes[order[1:]] == hashes[order[:-1]]
    suspects = np.union1d(order[1:][same], order[:-1][same])
    first: dict[bytes, int] = {}
    again = [(row, before) for row in suspects.tolist() if (before := first.setdefault(texts[row], row)) != row]
    if again:
        shown = ", ".join(f"row {row + 1} repeats the id of row {before + 1}" for row, before in again[:_MOST])
        more = f" and {len(again) - _MOST} more" if len(again) > _MOST else ""
        what = "1 id is repeated" if len(again) == 1 else f"{len(again)} ids are repeated"
        raise BadIds(
            f"{where}: {what}: {shown}{more}; every row needs a unique id (surrounding spaces, and whether an "
            "accent is a separate character, do not count)"
        )


def _rows(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST]))
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}" + ("" if len(rows) <= _MOST else " ...")


NONCE_SIZE = 32
DIGEST_SIZE = 32
_DOMAIN = b"thinwire alignment 1"
_CHUNK = 65536


def fresh_nonce() -> bytes:
    return token_bytes(NONCE_SIZE)


def sort_common_rows(ids: Ids, rows: RowNumbers, nonce: bytes) -> tuple[RowNumbers, bytes]:
    """These rows in the order that all parties agree on, and the digest of their ids."""
    keys = _hash_rows(ids, rows, nonce)
    order = np.argsort(keys.view(f"S{DIGEST_SIZE}")[:, 0])
    return rows[order], _digest_keys(keys[order], nonce)


def digest_rows(ids: Ids, rows: RowNumbers, nonce: bytes) -> bytes:
    """Of the ids of these rows in this order."""
    return _digest_keys(_hash_rows(ids, rows, nonce), nonce)


def _hash_rows(ids: Ids, rows: RowNumbers, nonce: bytes) -> npt.NDArray[np.uint8]:
    keys = np.empty((len(rows), DIGEST_SIZE), np.uint8)
    for start in range(0, len(rows), _CHUNK):
        texts = ids.texts(rows[start : start + _CHUNK])
        hashes = (
            blake2b(text, digest_size=DIGEST_SIZE, key=nonce, person=b"tw align row").digest() for text in texts
        )
        keys[start : start + len(texts)] = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, DIGEST_SIZE)
    return keys


def _digest_keys(keys: npt.NDArray[np.uint8], nonce: bytes) -> bytes:
    digest = sha256(_DOMAIN + nonce + len(keys).to_bytes(8, "big"))
    digest.update(np.ascontiguousarray(keys).data)
    return digest.digest()


def shuffle_rows(count: int) -> RowNumbers:
    """All rows in an order that nobody can guess: by 64 bits each from the system."""
    weights = np.frombuffer(token_bytes(8 * count), np.uint64)
    return np.argsort(weights)
