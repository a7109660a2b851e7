"""A party's ids as they are compared: Unicode NFC, trimmed, each there once; and the order of the common rows.

Every party holds the common ids, so each sorts them by a hash keyed with the session's nonce and comes to the same
order. It shows nothing of anybody's table. Without the nonce, which is not kept, the digest that proves the order
cannot be tested against guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b, sha256
from math import ceil, log2
from mmap import ACCESS_READ, mmap
from numbers import Integral
from pathlib import Path
from secrets import token_bytes
from typing import Any
from unicodedata import normalize
from uuid import UUID

import numpy as np
import numpy.typing as npt
import xxhash

from thinwire.base.errors import BadIds
from thinwire.storage.atomic_file import append_file, make_folder, map_write_errors

LONGEST_ID = 1 << 20  # bytes of UTF-8
_MOST = 5  # rows named in one message
_NULLS = ("NAType", "NaTType")  # what pandas puts where nothing is

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ids:
    """Normalised ids in the order of a party's rows; one buffer, or a file that is mapped."""

    _data: bytes | mmap
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
        digest = hashlib.sha256()
        for text in self._iterate():
            digest.update(len(text).to_bytes(8, "big") + text)
        return digest.hexdigest()

    def _iterate(self) -> Iterator[bytes]:
        for start in range(0, len(self), _CHUNK):
            yield from self.texts(np.arange(start, min(start + _CHUNK, len(self))))

    def require_different(self, where: str = "ids") -> None:
        """Refuses ids that are there twice, where that was put off: those of a file, which are to go into buckets."""
        if isinstance(self._data, mmap):
            require_different(self.texts(np.arange(len(self))), where)

    def ways_of_writing(self) -> str:
        """How ids here are written where others often write them otherwise; '' where nothing stands out."""
        zeros = capitals = fractions = 0
        for text in self._iterate():
            zeros += text.startswith(b"0") and len(text) > 1 and text.isdigit()
            capitals += text != text.lower()
            fractions += text.endswith(b".0")
        found = [
            f"{count} of {len(self)} {what}"
            for count, what in (
                (zeros, "begin with a zero"),
                (capitals, "hold capital letters"),
                (fractions, "end with '.0', as numbers do that were read with a fraction"),
            )
            if count
        ]
        return "; ".join(found)


def normalize_ids(values: Iterable[Any], where: str = "ids") -> Ids:
    """The ids of a list, or of a column of numpy, Arrow, pandas or polars.

    Text is brought to Unicode NFC and trimmed, bytes are UTF-8 text, whole numbers count as their decimal text,
    dates and UUIDs as `str` writes them. Refuses rows without an id, ids that are there twice, and anything else.
    """
    texts = _list_texts(values, where)
    require_different(texts, where)
    return join_texts(texts)


def store_ids(batches: Iterable[Iterable[Any]], folder: Path, in_memory_ids: int, where: str = "ids") -> Ids:
    """The ids of a column that is read in pieces; of more than so many, in files of the folder.

    Those are not looked through for ids that are there twice: whoever puts them into buckets does that.
    """
    texts: list[bytes] = []
    missing: list[int] = []
    row, stored = 1, StoredIds(folder)
    for batch in batches:
        listed = list(_list_values(batch, where))
        texts += _normalize_values(listed, where, row, missing)
        row += len(listed)
        if stored.count + len(texts) > in_memory_ids:
            stored.add(texts)
            texts.clear()
    _require_texts(texts, missing, where, stored.count)
    if stored.count:
        stored.add(texts)
        return stored.open()
    require_different(texts, where)
    return join_texts(texts)


class StoredIds:
    """Ids that are written to two files as they come: their texts, and where each ends."""

    def __init__(self, folder: Path) -> None:
        self.count = 0
        self._end = 0
        self._files = folder / "texts", folder / "ends"

    def add(self, texts: Sequence[bytes]) -> None:
        ends = self._end + np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
        for path, data in zip(self._files, (b"".join(texts), ends.astype("<i8").tobytes()), strict=True):
            with map_write_errors(path, len(data)):
                if not self.count:
                    make_folder(path.parent)
                    path.unlink(missing_ok=True)
                append_file(path, data)
        self.count += len(texts)
        self._end = int(ends[-1]) if texts else self._end

    def open(self) -> Ids:
        texts, ends = self._files
        with texts.open("rb") as file:
            return Ids(mmap(file.fileno(), 0, access=ACCESS_READ), np.memmap(ends, np.dtype("<i8"), mode="r"))


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
    return OwnerIds(join_texts(list(places)), index)


def join_texts(texts: Sequence[bytes]) -> Ids:
    """These texts, which are normalised already."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return Ids(b"".join(texts), ends)


def _list_texts(values: Iterable[Any], where: str) -> list[bytes]:
    """Each row's id as it is compared."""
    missing: list[int] = []
    texts = _normalize_values(_list_values(values, where), where, 1, missing)
    _require_texts(texts, missing, where)
    return texts


def _normalize_values(values: Iterable[Any], where: str, first: int, missing: list[int]) -> list[bytes]:
    """Each row's id as it is compared, rows numbered from `first`; those without one are added to `missing`."""
    texts: list[bytes] = []
    for row, value in enumerate(values, first):
        text = id_text(value, row, where)
        if text:
            texts.append(text)
        else:
            missing.append(row)
    return texts


def _require_texts(texts: Sequence[bytes], missing: Sequence[int], where: str, before: int = 0) -> None:
    if missing:
        what = "1 row has no id" if len(missing) == 1 else f"{len(missing)} rows have no id"
        raise BadIds(f"{where}: {what}: {_rows(missing)}; give every row one, or drop it")
    if not texts and not before:
        raise BadIds(f"{where}: there are no ids; give one for each row")


def _list_values(values: Any, where: str) -> Iterable[Any]:
    """Plain values; a column knows best how to give them."""
    if isinstance(values, (str, bytes)):
        raise BadIds(f"{where}: one text is no list of ids; give a list, or a column of a table")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise BadIds(f"{where}: an array of shape {values.shape}; ids are one column, [N]")
        if values.dtype.kind == "M" and np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as"):
            values = values.astype("M8[us]")  # those have no times of Python's, and would be listed as numbers
    for listing in ("to_pylist", "to_list", "tolist"):
        if hasattr(values, listing):
            listed: Iterable[Any] = getattr(values, listing)()
            return listed
    if not isinstance(values, Iterable):
        raise BadIds(f"{where}: {type(values).__name__} is no list of ids; give a list, or a column of a table")
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
                raise BadIds(f"{where}: row {row} has bytes that are no UTF-8 text") from None
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
        raise BadIds(f"{where}: row {row} has an id that is no Unicode text") from None
    if len(data) > LONGEST_ID:
        raise BadIds(f"{where}: the id of row {row} has {len(data)} bytes, at most {LONGEST_ID} can be")
    return data


def _unfit(value: Any, row: int, where: str) -> BadIds:
    way_out = "ids are text or whole numbers"
    if isinstance(value, (float, np.floating)):
        way_out += "; read the column as text (pandas makes fractions of whole numbers where a row has none)"
    return BadIds(f"{where}: row {row} has an id of type {type(value).__name__}; {way_out}")


def require_different(texts: Sequence[bytes], where: str, rows: RowNumbers | None = None) -> None:
    """Refuses ids that are there twice; only those whose short hash is there twice are compared in full.

    `rows` are those that the ids stand in, where they are not all rows in their order.
    """
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, texts), np.uint64, len(texts))
    order = np.argsort(hashes, kind="stable")
    same = hashes[order[1:]] == hashes[order[:-1]]
    suspects = np.union1d(order[1:][same], order[:-1][same])
    first: dict[bytes, int] = {}
    again = [(row, before) for row in suspects.tolist() if (before := first.setdefault(texts[row], row)) != row]
    if again:
        numbers = np.arange(len(texts)) if rows is None else rows
        shown = ", ".join(
            f"row {numbers[row] + 1} has that of row {numbers[before] + 1}" for row, before in again[:_MOST]
        )
        more = f" and {len(again) - _MOST} more" if len(again) > _MOST else ""
        what = "1 id is there twice" if len(again) == 1 else f"{len(again)} ids are there already"
        raise BadIds(
            f"{where}: {what}: {shown}{more}; every row needs an id of its own (spaces around it, and whether an "
            "accent is a character of its own, do not count)"
        )


def _rows(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST]))
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}" + ("" if len(rows) <= _MOST else " ...")


NONCE_SIZE = 32
DIGEST_SIZE = 32
_DOMAIN = b"thinwire alignment 1"
_CHUNK = 65536
_FALSE_MATCH_BITS = 40


def fresh_nonce() -> bytes:
    return token_bytes(NONCE_SIZE)


def sort_common_rows(ids: Ids, rows: RowNumbers, nonce: bytes) -> tuple[RowNumbers, bytes]:
    """These rows in the order that all parties agree on, and the digest of their ids."""
    keys = hash_rows(ids, rows, nonce)
    order = np.argsort(keys.view(f"S{DIGEST_SIZE}")[:, 0])
    return rows[order], digest_sorted_keys([keys[order]], len(rows), nonce)


def digest_rows(ids: Ids, rows: RowNumbers, nonce: bytes) -> bytes:
    """Of the ids of these rows in this order."""
    return digest_sorted_keys([hash_rows(ids, rows, nonce)], len(rows), nonce)


def hash_rows(ids: Ids, rows: RowNumbers, nonce: bytes) -> npt.NDArray[np.uint8]:
    """The keys that common rows are sorted by, [rows, 32]."""
    keys = np.empty((len(rows), DIGEST_SIZE), np.uint8)
    for start in range(0, len(rows), _CHUNK):
        texts = ids.texts(rows[start : start + _CHUNK])
        hashes = (
            blake2b(text, digest_size=DIGEST_SIZE, key=nonce, person=b"tw align row").digest() for text in texts
        )
        keys[start : start + len(texts)] = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, DIGEST_SIZE)
    return keys


def digest_sorted_keys(parts: Iterable[npt.NDArray[np.uint8]], count: int, nonce: bytes) -> bytes:
    """Of so many keys in their order, which come in parts."""
    digest = sha256(_DOMAIN + nonce + count.to_bytes(8, "big"))
    for keys in parts:
        digest.update(np.ascontiguousarray(keys).data)
    return digest.digest()


def tag_size(ids: int, peer_ids: int, buckets: int = 1) -> int:
    """So many bytes that any false match among all pairs of ids, of all buckets, has a chance below 2^-40."""
    return ceil((_FALSE_MATCH_BITS + log2(ids) + log2(peer_ids) + log2(buckets)) / 8)


def shuffle_rows(count: int) -> RowNumbers:
    """All rows in an order that nobody can guess: by 64 bits each from the system."""
    weights = np.frombuffer(token_bytes(8 * count), np.uint64)
    return np.argsort(weights)
