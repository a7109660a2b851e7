"""A large alignment's folder: a party's ids in buckets, what each came to, and the common rows, sorted on disk.

::

    session.json    whose buckets these are: parties, ids, salt and number; written once, compared ever after
    buckets.json    how many ids each bucket has, and its SHA-256: once it is there, all buckets are
    00007.ids       a bucket: blocks of rows (8 bytes each), lengths (4 each) and the texts
    00007.match     a bucket that is done: its token, at the label party which ids match, SHA-256 over both
    00007.sort      common rows by the first bits of their key: 32 bytes of key and 8 of row each
    rows            the common rows in their order

Buckets follow from the ids and the salt alone, so that the same command makes them again where one is damaged.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from math import ceil, log, log2, sqrt
from mmap import ACCESS_READ, mmap
from pathlib import Path
from secrets import token_bytes
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from thinwire.align.ids import (
    DIGEST_SIZE,
    Ids,
    RowNumbers,
    digest_sorted_keys,
    join_texts,
    list_values,
    normalize_values,
    require_different,
    require_ids,
)
from thinwire.base.errors import BadFile, BadState, ThinwireError
from thinwire.base.types import PartyName
from thinwire.storage.atomic_file import (
    WriteFailed,
    append_file,
    make_folder,
    map_write_errors,
    open_descriptor,
    replace_file,
    write_all,
)

if TYPE_CHECKING:
    from thinwire.align.conversation import Backend

IN_MEMORY_IDS = 1 << 20  # sets up to this size are matched at once
BUCKET_IDS = 1 << 19  # a bucket has at most so many ids on average, and half of that at least
MOST_BUCKETS = 1 << 16
SALT_SIZE, TOKEN_SIZE = 32, 16
_OVERFLOW_BITS = 40
_CHUNK = 1 << 18  # ids that are put into buckets at a time
_BLOCK = struct.Struct("<II")  # ids, bytes of text
_RECORD = DIGEST_SIZE + 8
NOT_DONE = bytes(TOKEN_SIZE)


class BucketsNotWritten(WriteFailed):
    """The disk is full, or refuses otherwise; what is there stays."""

    def __init__(self, path: Path, bytes_needed: int, error: OSError) -> None:
        super().__init__(path, bytes_needed, error)
        way_out = "make room there and start the same command again at every party; buckets that are done are kept"
        self.args = (f"{self.args[0]}; {way_out}",)


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """Into how many buckets ids go, a power of two, and the salt of the hash that says into which."""

    count: int
    salt: bytes
    engine: str = ""  # the name of the backend that matches them; that of the alignment where there is none

    def choose_buckets(self, texts: Sequence[bytes]) -> npt.NDArray[np.int64]:
        """The bucket of each id; alike at all parties."""
        hashes = (blake2b(text, digest_size=8, key=self.salt, person=b"tw align bucket").digest() for text in texts)
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64).view(np.int64) & (self.count - 1)

    def bucket_size(self, ids: int) -> int:
        """So many ids every bucket of a set of this size is filled up to: its size then says nothing of the ids.

        By Bernstein's inequality the chance that a bucket has more is below 2^-40, all buckets together.
        """
        mean, bits = ids / self.count, _OVERFLOW_BITS * log(2) + log(self.count)
        return min(ids, ceil(mean + bits / 3 + sqrt(bits * bits / 9 + 2 * mean * bits)))


def plan_buckets(largest: int, bucket_ids: int = BUCKET_IDS, in_memory_ids: int = IN_MEMORY_IDS) -> BucketPlan | None:
    """For parties of which the largest has so many ids; None where they need none."""
    if largest <= in_memory_ids:
        return None
    count = 1 << max(1, ceil(log2(largest / bucket_ids)))
    return BucketPlan(min(count, MOST_BUCKETS), token_bytes(SALT_SIZE))


_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BucketSession(BaseModel):
    """What must not change while an alignment goes on over several processes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    me: PartyName
    parties: tuple[PartyName, ...]
    ids_digest: _Digest
    sizes: dict[PartyName, int]
    buckets: int = Field(ge=2, le=MOST_BUCKETS)
    salt: _Digest

    @property
    def plan(self) -> BucketPlan:
        return BucketPlan(self.buckets, bytes.fromhex(self.salt))


class _BucketTable(BaseModel):
    """How many ids each bucket has, and the digest of its file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    counts: list[int]
    digests: list[_Digest]


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a party keeps its buckets, and how large a set must be to need them.

    Args:
        folder: on a disk with room for the ids.
        bucket_ids: ids per bucket, on average.
        in_memory_ids: sets up to this size are matched without buckets.
        engine: matches buckets where every party has it; the conversation's backend unless given.
        where: what a message about the ids begins with.
        say: called with a line of progress.
        on_bucket: called after each bucket.

    Examples:
        >>> from pathlib import Path
        >>> tw.align.Workspace(Path("buckets")).where
        'ids'
    """

    folder: Path
    bucket_ids: int = BUCKET_IDS
    in_memory_ids: int = IN_MEMORY_IDS
    engine: Backend | None = None  # matches buckets where every party has it
    where: str = "ids"  # what a message about them begins with
    say: Callable[[str], None] = field(default=lambda _: None, compare=False)
    on_bucket: Callable[[], None] = field(default=lambda: None, compare=False)  # one more is done

    def clear(self) -> None:
        """Once the alignment is written elsewhere."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def open_workspace(workspace: Workspace | None) -> Iterator[Workspace]:
    """This one, or one whose folder is gone in the end; what is mapped there stays as long as it is used."""
    if workspace is not None:
        yield workspace
        return
    with TemporaryDirectory(prefix="thinwire-buckets-") as folder:
        yield Workspace(Path(folder) / "buckets")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Some of a party's ids, and the rows they stand in."""

    rows: RowNumbers
    ids: Ids

    def pad(self, size: int) -> Ids:
        """Filled up to this size with what is nobody's id: it begins with a byte that no text has."""
        texts = self.ids.texts(np.arange(len(self.ids)))
        return join_texts([*texts, *(b"\xff" + token_bytes(31) for _ in range(size - len(texts)))])


class BucketFolder:
    """A party's buckets of one alignment."""

    def __init__(self, workspace: Workspace) -> None:
        self.path = workspace.folder
        self._say = workspace.say
        self._where = workspace.where
        self._table = _BucketTable(counts=[], digests=[])
        self._rows_sorted = 0

    # The session --------------------------------------------------------------------------------------------------

    def read_session(self) -> BucketSession | None:
        """None where nothing was begun here."""
        path = self.path / "session.json"
        try:
            return BucketSession.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BadFile(f"{path}: cannot be read: {error.strerror}; {self._describe_fresh_start()}") from None
        except ValidationError:
            raise BadState(f"{path}: is damaged; {self._describe_fresh_start()}") from None

    def begin(self, session: BucketSession) -> None:
        """Takes the folder for this session."""
        if self.require_session(session) != session:
            with map_write_errors(self.path, kind=BucketsNotWritten):
                make_folder(self.path)
                (self.path / "buckets.json").unlink(missing_ok=True)
            self._replace("session.json", session.model_dump_json().encode())

    def require_session(self, session: BucketSession) -> BucketSession | None:
        """What was begun here. Refuses a folder where another session has buckets that are done, and keeps it."""
        found = self.read_session()
        if found is not None and found != session:
            names = [name for name in BucketSession.model_fields if getattr(found, name) != getattr(session, name)]
            self.require_nothing_done(found, names)
        return found

    def require_nothing_done(self, found: BucketSession, names: Sequence[str]) -> None:
        """Of a session that differs in these fields from what goes on now."""
        if kept := self._count_kept():
            raise BadState(
                f"{self.path}: holds the buckets of another alignment (other {', '.join(names)}; {kept} of "
                f"{found.buckets} done). Continue with the same tables and folders at every party, or "
                f"{self._describe_fresh_start()}"
            )

    def _describe_fresh_start(self) -> str:
        return f"begin again: remove {self.path}, and the folder of that kind at every party"

    def _count_kept(self) -> int:
        return len(list(self.path.glob("*.match")))

    # Buckets ------------------------------------------------------------------------------------------------------

    def split(self, ids: Ids, plan: BucketPlan) -> None:
        """Puts every id into its bucket, unless that was done before. Refuses ids that are there twice."""
        if self._read_table(plan):
            return
        for path in self.path.glob("*.ids"):
            path.unlink()
        digests, counts = [sha256() for _ in range(plan.count)], np.zeros(plan.count, np.int64)
        for start in range(0, len(ids), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(ids)))
            for bucket, block, size in _cut_blocks(rows, ids.texts(rows), plan):
                self._append(f"{bucket:05}.ids", block)
                digests[bucket].update(block)
                counts[bucket] += size
        if int(counts.max()) > plan.bucket_size(len(ids)):
            raise ThinwireError(f"a bucket happens to have {counts.max()} ids; {self._describe_fresh_start()}")
        self._table = _BucketTable(counts=counts.tolist(), digests=[one.hexdigest() for one in digests])
        self._require_different(plan)
        self._replace("buckets.json", self._table.model_dump_json().encode())

    def _require_different(self, plan: BucketPlan) -> None:
        """Equal ids are in one bucket."""
        for number in range(plan.count):
            bucket = self.read(number)
            require_different(bucket.ids, self._where, bucket.rows)

    def _read_table(self, plan: BucketPlan) -> bool:
        """Is it there? Where it is not, or damaged, the buckets are made again."""
        try:
            found = _BucketTable.model_validate_json((self.path / "buckets.json").read_bytes())
        except (OSError, ValidationError):
            return False
        self._table = found
        return len(found.counts) == len(found.digests) == plan.count

    def read(self, number: int) -> Bucket:
        """What `split` put there; anything else is damage, and all buckets are made again at the next start."""
        path = self.path / f"{number:05}.ids"
        try:
            data = path.read_bytes() if self._table.counts[number] else b""
        except OSError as error:
            raise self._damaged(path, f"cannot be read: {error.strerror}") from None
        if sha256(data).hexdigest() != self._table.digests[number]:
            raise self._damaged(path, "is damaged: its checksum does not match")
        return _join_blocks(data)

    def _damaged(self, path: Path, what: str) -> BadFile:
        (self.path / "buckets.json").unlink(missing_ok=True)
        return BadFile(
            f"{path}: {what}; start the same command again at every party: buckets are made again from the ids, and "
            f"the {self._count_kept()} that are done are kept"
        )

    # What buckets came to -----------------------------------------------------------------------------------------

    def keep(self, number: int, token: bytes, found: npt.NDArray[np.bool_]) -> None:
        """A bucket is done; it is on the disk once this returns."""
        data = token + found.tobytes()
        self._replace(f"{number:05}.match", data + sha256(data).digest())

    def list_tokens(self, plan: BucketPlan) -> list[bytes]:
        """Of each bucket that is done; zeros for the others, and for one whose file is damaged."""
        return [self._read_token(number) for number in range(plan.count)]

    def _read_token(self, number: int) -> bytes:
        path = self.path / f"{number:05}.match"
        try:
            return self._read_match(path)[:TOKEN_SIZE] if path.exists() else NOT_DONE
        except BadFile as error:
            self._say(f"{error}; this bucket is matched again")
            return NOT_DONE

    def read_matches(self, number: int) -> npt.NDArray[np.bool_]:
        data = self._read_match(self.path / f"{number:05}.match")
        return np.frombuffer(data, np.bool_, offset=TOKEN_SIZE)

    def _read_match(self, path: Path) -> bytes:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadFile(f"{path}: cannot be read: {error.strerror}") from None
        if len(data) < TOKEN_SIZE + DIGEST_SIZE or sha256(data[:-DIGEST_SIZE]).digest() != data[-DIGEST_SIZE:]:
            raise BadFile(f"{path}: is damaged: its checksum does not match")
        return data[:-DIGEST_SIZE]

    # The common rows ----------------------------------------------------------------------------------------------

    def begin_sort(self) -> None:
        self._rows_sorted = 0
        for path in self.path.glob("*.sort"):
            path.unlink()

    def add_common(self, rows: RowNumbers, keys: npt.NDArray[np.uint8], plan: BucketPlan) -> None:
        """Rows that all parties have, and the keys of their ids."""
        records = np.empty((len(rows), _RECORD), np.uint8)
        records[:, :DIGEST_SIZE] = keys
        records[:, DIGEST_SIZE:] = rows.astype("<i8").view(np.uint8).reshape(-1, 8)
        parts = (keys[:, 0].astype(np.int64) << 8 | keys[:, 1]) * plan.count >> 16
        order = np.argsort(parts, kind="stable")
        for part, start, end in _list_runs(parts[order]):
            self._append(f"{part:05}.sort", records[order[start:end]].tobytes())
        self._rows_sorted += len(rows)

    def sort_common(self, nonce: bytes, plan: BucketPlan) -> tuple[RowNumbers, bytes]:
        """All rows that were added, in the order that all parties agree on, mapped; and the digest of their ids."""
        target = self.path / "rows"
        target.unlink(missing_ok=True)
        digest = digest_sorted_keys(self._sort_parts(target, plan), self._rows_sorted, nonce)
        return np.memmap(target, np.dtype("<i8"), mode="r", shape=(self._rows_sorted,)), digest

    def _sort_parts(self, target: Path, plan: BucketPlan) -> Iterator[npt.NDArray[np.uint8]]:
        for part in range(plan.count):
            path = self.path / f"{part:05}.sort"
            if not path.exists():
                continue
            records = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, _RECORD)
            keys = np.ascontiguousarray(records[:, :DIGEST_SIZE])
            order = np.argsort(keys.view(f"S{DIGEST_SIZE}")[:, 0])
            self._append(target.name, records[order, DIGEST_SIZE:].tobytes())
            path.unlink()
            yield keys[order]

    def _append(self, name: str, data: bytes) -> None:
        path, flags = self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with map_write_errors(path, len(data), BucketsNotWritten), open_descriptor(path, flags) as descriptor:
            write_all(descriptor, [data])

    def _replace(self, name: str, data: bytes) -> None:
        with map_write_errors(self.path / name, len(data), BucketsNotWritten):
            replace_file(self.path / name, data, mode=0o600)


def _cut_blocks(rows: RowNumbers, texts: Sequence[bytes], plan: BucketPlan) -> Iterator[tuple[int, bytes, int]]:
    """For each bucket that some of these ids go into: its number, a block of its file, and how many ids that has."""
    buckets = plan.choose_buckets(texts)
    order = np.argsort(buckets, kind="stable")
    for bucket, start, end in _list_runs(buckets[order]):
        chosen = order[start:end]
        found = [texts[place] for place in chosen.tolist()]
        data = b"".join(found)
        lengths = np.fromiter(map(len, found), "<u4", len(found)).tobytes()
        head = _BLOCK.pack(len(found), len(data)) + rows[chosen].astype("<i8").tobytes()
        yield bucket, head + lengths + data, len(found)


def _list_runs(values: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """Of sorted values: each one, and from where to where it stands."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    ends = [*starts[1:].tolist(), len(values)][: len(starts)]
    return list(zip(values[starts].tolist(), starts.tolist(), ends, strict=True))


def _join_blocks(data: bytes) -> Bucket:
    """Of a file whose checksum fits."""
    rows, lengths, texts, at = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [], 0
    while at < len(data):
        count, size = _BLOCK.unpack_from(data, at)
        at += _BLOCK.size
        rows.append(np.frombuffer(data, "<i8", count, at))
        lengths.append(np.frombuffer(data, "<u4", count, at + 8 * count).astype(np.int64))
        at += 12 * count
        texts.append(data[at : at + size])
        at += size
    return Bucket(np.concatenate(rows), Ids(b"".join(texts), np.cumsum(np.concatenate(lengths))))


# A party's own ids, before they go into buckets ------------------------------------------------------------------


def store_ids(batches: Iterable[Iterable[Any]], folder: Path, in_memory_ids: int, where: str = "ids") -> Ids:
    """The ids of a column that is read in batches; beyond `in_memory_ids` they go to files in the folder.

    Ids in files are not checked for repeats here, but when they are put into buckets.

    Args:
        batches: one id per row, in batches.
        folder: for the files.
        in_memory_ids: most ids that stay in memory.
        where: what a message about them begins with.

    Raises:
        BadIds: a row without an id, or a repeated one among ids in memory.

    Examples:
        >>> from pathlib import Path
        >>> len(tw.align.store_ids([["a", "b"], ["c"]], Path("."), in_memory_ids=10))
        3
    """
    texts: list[bytes] = []
    missing: list[int] = []
    row, stored = 1, StoredIds(folder)
    for batch in batches:
        listed = list(list_values(batch, where))
        texts += normalize_values(listed, where, row, missing)
        row += len(listed)
        if stored.count + len(texts) > in_memory_ids:
            stored.add(texts)
            texts.clear()
    require_ids(missing, row - 1, where)
    if stored.count:
        stored.add(texts)
        return stored.open()
    found = join_texts(texts)
    require_different(found, where)
    return found


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
