"""A party's ids as they are compared: Unicode NFC, trimmed, each there once; and the order of the common rows.

Every party holds the common ids, so each sorts them by a hash keyed with the session's nonce and comes to the same
order. It shows nothing of anybody's table. Without the nonce, which is not kept, the digest that proves the order
cannot be tested against guesses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b, sha256
from itertools import islice
from math import ceil, log2
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from numbers import Integral
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, BinaryIO
from unicodedata import normalize
from uuid import UUID

import numpy as np
import numpy.typing as npt
import xxhash

from thinwire.base.errors import BadIds
from thinwire.storage.atomic_file import map_write_errors, write_all

if TYPE_CHECKING:
    from thinwire.engine.streams import Storage

LONGEST_ID = 1 << 20  # bytes of UTF-8
_MOST = 5  # rows named in one message
_CHUNK = 65_536  # rows at a time
_FEW = 1_024  # rows whose pages may stay in memory
_IN_MEMORY = 64 << 20  # bytes of a column of ids; more go to files
_NULLS = ("NAType", "NaTType")  # what pandas puts where nothing is

RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ids:
    """Normalised ids in the order of a party's rows, in one buffer or a mapped file. `normalize_ids` builds them.

    Examples:
        >>> ids = tw.align.normalize_ids([" a1", "b2"])
        >>> len(ids), ids.decode()
        (2, ['a1', 'b2'])
    """

    _data: bytes | mmap
    _ends: RowNumbers  # where each id ends in the data

    def __len__(self) -> int:
        return len(self._ends)

    def texts(self, rows: RowNumbers) -> list[bytes]:
        """The UTF-8 text of each of these rows."""
        ends = self._ends[rows]
        starts = np.where(rows > 0, self._ends[rows - 1], 0)
        data = self._data
        found = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        if len(rows) > _FEW:
            self._release_pages()
        return found

    def _release_pages(self) -> None:
        """Of ids in files: a page that was read counts as memory until it is let go of."""
        for area in (self._data, getattr(self._ends, "_mmap", None)):
            if isinstance(area, mmap):
                area.madvise(MADV_DONTNEED)

    def iterate(self, rows: RowNumbers | None = None) -> Iterator[bytes]:
        """The UTF-8 text of these rows, or of every row."""
        for start in range(0, len(self) if rows is None else len(rows), _CHUNK):
            stop = min(start + _CHUNK, len(self))
            yield from self.texts(np.arange(start, stop) if rows is None else rows[start : start + _CHUNK])

    def decode(self) -> list[str]:
        """The text of every row."""
        return [text.decode() for text in self.iterate()]

    def digest(self) -> str:
        """SHA-256 over all ids in order, each behind its length in 8 bytes; tells whether a table has changed."""
        digest = hashlib.sha256()
        for start in range(0, len(self), _CHUNK):
            digest.update(self._prefix_lengths(start, min(start + _CHUNK, len(self))))
            self._release_pages()
        return digest.hexdigest()

    def _prefix_lengths(self, start: int, stop: int) -> bytes:
        """These rows' ids, each behind its length in 8 bytes."""
        first = int(self._ends[start - 1]) if start else 0
        ends = self._ends[start:stop] - first
        text = np.frombuffer(self._data, np.uint8, int(ends[-1]), first)
        lengths = np.diff(ends, prepend=0)
        found = np.empty(len(text) + 8 * len(ends), np.uint8)
        rows = np.arange(1, len(ends) + 1)
        found[np.arange(len(text)) + 8 * np.repeat(rows, lengths)] = text
        places = (ends - lengths + 8 * (rows - 1))[:, None] + np.arange(8)
        found[places] = lengths.astype(">u8")[:, None].view(np.uint8)
        return found.tobytes()

    def require_different(self, where: str = "ids") -> None:
        """Refuses repeated ids, where that was put off: those of a file, which are to go into buckets."""
        if isinstance(self._data, mmap):
            require_different(self, where)

    def ways_of_writing(self) -> str:
        """How ids here are written where others often write them otherwise; '' where nothing stands out."""
        zeros = capitals = fractions = 0
        for text in self.iterate():
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


_NO_IDS = Ids(b"", np.zeros(0, np.int64))


def normalize_ids(values: Iterable[Any], where: str = "ids") -> Ids:
    """Normalises the ids of a list, or of a column of numpy, Arrow, pandas or polars.

    Text becomes Unicode NFC without surrounding whitespace; bytes are UTF-8 text; integers count as their decimal
    text, dates and UUIDs as `str` writes them.

    Args:
        values: one id per row.
        where: what a message about them begins with.

    Raises:
        BadIds: a row without an id, a repeated id, or an id of another type.

    Examples:
        >>> tw.align.normalize_ids([7, "7b"]).decode()
        ['7', '7b']
    """
    found = _join_parts(list(_list_parts(values, where)))
    require_different(found, where)
    return found


def collect_ids(values: Any, where: str, storage: Storage) -> Ids:
    """As `normalize_ids`, of a column that is read a part at a time; many ids lie in files without a name."""
    room = min(_IN_MEMORY, storage.memory_limit_bytes) if storage.spills else None
    parts: list[Ids] = []
    with ExitStack() as stack:
        files: list[BinaryIO] = []
        size = end = 0
        for part in _list_parts(values, where):
            parts.append(part)
            size += len(part._data) + part._ends.nbytes
            if room is not None and size > room:
                files = files or [stack.enter_context(storage.file()) for _ in range(2)]
                end = _append_parts(parts, files, end, storage)
                parts.clear()
        if files:
            _append_parts(parts, files, end, storage)
            texts = mmap(files[0].fileno(), 0, access=ACCESS_READ)
            found = Ids(texts, np.memmap(files[1], np.dtype("<i8"), mode="r"))
        else:
            found = _join_parts(parts)
    require_different(found, where)
    return found


def _append_parts(parts: Iterable[Ids], files: Sequence[BinaryIO], end: int, storage: Storage) -> int:
    """Behind what is there, up to `end` of the texts; gives the new end."""
    for part in parts:
        for file, data in zip(files, (bytes(part._data), (end + part._ends).astype("<i8").tobytes()), strict=True):
            with map_write_errors(storage.place, len(data)):
                write_all(file.fileno(), [data])
        end += len(part._data)
    return end


def _join_parts(parts: list[Ids]) -> Ids:
    """All as one; what is copied is let go of, so that long lists are not in memory twice."""
    ends, data, done = np.empty(sum(map(len, parts)), np.int64), bytearray(), 0
    for place, part in enumerate(parts):
        ends[done : done + len(part)] = len(data) + part._ends
        data += part._data
        done += len(part)
        parts[place] = _NO_IDS
    return Ids(bytes(data), ends)


@dataclass(frozen=True, slots=True)
class OwnerIds:
    """The owner of each row of the label party's table. `normalize_owner_ids` builds them.

    Args:
        ids: the owners, each once.
        index: [N], each row's owner among them.

    Examples:
        >>> len(tw.align.normalize_owner_ids(["u1", "u2", "u1"]).ids)
        2
    """

    ids: Ids
    index: RowNumbers  # [N]


def normalize_owner_ids(values: Iterable[Any], where: str = "ids") -> OwnerIds:
    """As `normalize_ids`, for ids that many rows may share.

    Args:
        values: one id per row.
        where: what a message about them begins with.

    Raises:
        BadIds: a row without an id, or an id of another type.

    Examples:
        >>> tw.align.normalize_owner_ids(["u1", "u2", "u1"]).index.tolist()
        [0, 1, 0]
    """
    places: dict[bytes, int] = {}
    texts = (text for some in _list_texts(values, where) for text in some)
    index = np.fromiter((places.setdefault(text, len(places)) for text in texts), np.int64)
    return OwnerIds(join_texts(list(places)), index)


def join_texts(texts: Sequence[bytes]) -> Ids:
    """These texts, which are normalised already."""
    ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))
    return Ids(b"".join(texts), ends)


def _list_parts(values: Any, where: str) -> Iterator[Ids]:
    """All rows' ids, some rows at a time; repeated ones are not looked for."""
    if not hasattr(values, "iterchunks"):
        yield from map(join_texts, _list_texts(values, where))
        return
    missing: list[int] = []
    row = 1
    for chunk in values.iterchunks():
        for start in range(0, len(chunk), _CHUNK):
            some = chunk.slice(start, _CHUNK)
            yield _read_plain(some) or join_texts(normalize_values(list_values(some, where), where, row, missing))
            row += len(some)
    require_ids(missing, row - 1, where)


def _read_plain(chunk: Any) -> Ids | None:
    """An Arrow array of printable ASCII without spaces, straight from its memory; None for others."""
    if chunk.null_count or str(chunk.type) not in ("string", "int64", "int32"):
        return None
    _, offsets, data = chunk.cast("string").buffers()
    if offsets is None or data is None:
        return None
    offset = 0 if str(chunk.type) != "string" else chunk.offset
    ends = np.frombuffer(offsets, np.int32, len(chunk) + 1, 4 * offset).astype(np.int64)
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not ((text > 0x20) & (text < 0x7F)).all() or (ends[1:] == ends[:-1]).any():
        return None
    return Ids(text.tobytes(), ends[1:] - ends[0])


def _list_texts(values: Iterable[Any], where: str) -> Iterator[list[bytes]]:
    """Each row's id as it is compared, some rows at a time."""
    missing: list[int] = []
    listed, row = iter(list_values(values, where)), 1
    while some := list(islice(listed, _CHUNK)):
        yield normalize_values(some, where, row, missing)
        row += len(some)
    require_ids(missing, row - 1, where)


def normalize_values(values: Iterable[Any], where: str, first: int, missing: list[int]) -> list[bytes]:
    """Each row's id as it is compared, rows numbered from `first`; those without one are added to `missing`."""
    texts: list[bytes] = []
    for row, value in enumerate(values, first):
        text = id_text(value, row, where)
        if text:
            texts.append(text)
        else:
            missing.append(row)
    return texts


def require_ids(missing: Sequence[int], rows: int, where: str) -> None:
    if missing:
        what = "1 row has no id" if len(missing) == 1 else f"{len(missing)} rows have no id"
        raise BadIds(f"{where}: {what}: {_rows(missing)}; give every row an id, or drop it")
    if not rows:
        raise BadIds(f"{where}: there are no ids; give one for each row")


def list_values(values: Any, where: str) -> Iterable[Any]:
    """Plain values; a column knows best how to give them."""
    if isinstance(values, (str, bytes)):
        raise BadIds(f"{where}: a single string is not a list of ids; give a list, or a column of a table")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise BadIds(f"{where}: the array has shape {values.shape}; ids must be one column, [N]")
        if values.dtype.kind == "M" and np.datetime_data(values.dtype)[0] in ("ns", "ps", "fs", "as"):
            values = values.astype("M8[us]")  # those have no times of Python's, and would be listed as numbers
    if hasattr(values, "iterchunks"):
        return (one for chunk in values.iterchunks() for one in chunk.to_pylist())
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


def require_different(ids: Ids, where: str, rows: RowNumbers | None = None) -> None:
    """Refuses repeated ids; only those whose short hash appears twice are compared in full.

    `rows` are those that the ids stand in, where they are not all rows in their order.
    """
    hashes = _hash_texts(ids)
    hashes.sort()
    twice = _find_repeated(hashes)
    if not len(twice):
        return
    suspects = np.flatnonzero(np.isin(_hash_texts(ids), twice))
    first: dict[bytes, int] = {}
    texts = zip(suspects.tolist(), ids.texts(suspects), strict=True)
    again = [(row, before) for row, text in texts if (before := first.setdefault(text, row)) != row]
    if again:
        numbers = np.arange(len(ids)) if rows is None else rows
        shown = ", ".join(
            f"row {numbers[row] + 1} repeats the id of row {numbers[before] + 1}" for row, before in again[:_MOST]
        )
        more = f" and {len(again) - _MOST} more" if len(again) > _MOST else ""
        what = "1 id is repeated" if len(again) == 1 else f"{len(again)} ids are repeated"
        raise BadIds(
            f"{where}: {what}: {shown}{more}; every row needs a unique id (surrounding spaces, and whether an "
            "accent is a separate character, do not count)"
        )


def _hash_texts(ids: Ids) -> npt.NDArray[np.uint64]:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, ids.iterate()), np.uint64, len(ids))


def _find_repeated(rising: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Numbers that are there twice; a piece at a time, so that no second copy is in memory."""
    pieces = [rising[start : start + _CHUNK + 1] for start in range(0, len(rising), _CHUNK)]
    found: npt.NDArray[np.uint64] = np.concatenate([piece[1:][piece[1:] == piece[:-1]] for piece in pieces])
    return found


def _rows(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_MOST]))
    return f"row {shown}" if len(rows) == 1 else f"rows {shown}" + ("" if len(rows) <= _MOST else " ...")


NONCE_SIZE = 32
DIGEST_SIZE = 32
_DOMAIN = b"thinwire alignment 1"
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
