"""Matching by Diffie-Hellman in ristretto255 (RFC 9496): both parties' keys on both parties' ids.

::

    label party (key b)                          feature party (key a)
    b H(x), shuffled              ------->
                                  <-------       a H(y), shuffled
                                  <-------       tags of a b H(x), in the order they came
    tags of b a H(y)

Equal tags are equal ids. The label party learns which of its ids match and at which place of the feature party's
list; the feature party learns the number of the label party's ids. Each pair has keys and orders of its own: were
they the label party's same for two feature parties, these two could together tell which of its points belong
together. All of it goes in chunks, so that one is computed while another travels, and nobody runs further ahead of
its peer than one chunk.

The group has prime order, so a point shows nothing but itself, and a key times an unknown point is as good as
random to whoever lacks the key. `multiply_points` refuses what is not the one encoding of a point, and the point that
every key leaves where it is. It comes from libsodium through rbcl, which nothing else imports.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256, sha512
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.align.alignment import WorkersFailed
from thinwire.align.conversation import Conversation
from thinwire.align.ids import Ids, RowNumbers, shuffle_rows, tag_size
from thinwire.base.errors import BadParameter
from thinwire.base.types import Kind, PartyName, Progress

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


# Workers that compute while the program talks to its peers --------------------------------------------------------


# libsodium runs outside of Python's lock, so threads share the cores as well as processes do, and need neither copies
# nor a guarded main module. Beyond eight the lock is passed on too often; there, processes take over, which are
# spawned: a process that speaks gRPC must not be forked.
MOST_THREADS = 8
_PIECE = 512  # ids a task: some 30 ms


class Work:
    """Bytes that are being computed, in pieces."""

    def __init__(self, pieces: Sequence[Future[bytes]]) -> None:
        self._pieces = pieces

    def result(self) -> bytes:
        """All pieces in order; waits for them. Raises InvalidPoint with the place among all."""
        found = []
        for number, piece in enumerate(self._pieces):
            try:
                found.append(piece.result())
            except InvalidPoint as error:
                raise InvalidPoint(number * _PIECE + error.place) from None
            except BrokenProcessPool:
                raise WorkersFailed(
                    f"a worker process died. A script that starts more than {MOST_THREADS} workers must do so under "
                    '`if __name__ == "__main__":`; otherwise memory may have run out: use fewer workers'
                ) from None
        return b"".join(found)


class WorkerPool:
    """Hands out pieces of work; its executor computes them in any order."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def blind(self, texts: Sequence[bytes], key: bytes) -> Work:
        """Ids to points under a key."""
        starts = range(0, len(texts), _PIECE)
        return Work([self._executor.submit(blind_ids, texts[at : at + _PIECE], key) for at in starts])

    def tag(self, points: bytes, key: bytes, size: int) -> Work:
        """A peer's points under a key of ours, shortened."""
        length = _PIECE * POINT_SIZE
        starts = range(0, len(points), length)
        return Work([self._executor.submit(compute_tags, points[at : at + length], key, size) for at in starts])


@contextmanager
def open_worker_pool(workers: int | None = None) -> Iterator[WorkerPool]:
    """So many workers; None: one for each core this process may use, up to eight."""
    if workers is None:
        workers = min(_cores(), MOST_THREADS)
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 1024:
        raise BadParameter(f"workers must be an integer from 1 to 1024, got {workers!r}")
    if workers <= MOST_THREADS:
        executor: Executor = ThreadPoolExecutor(workers, thread_name_prefix="align")
    else:
        executor = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield WorkerPool(executor)
    finally:
        executor.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Both ends of a pair ----------------------------------------------------------------------------------------------


CHUNK = 32_768  # ids a message: 1 MiB of points
_LAG = 2  # chunks that are tagged while the next ones are exchanged
_STAGE = "matching"


@dataclass(frozen=True, slots=True)
class RistrettoBackend:
    """The default `Backend`, on the group ristretto255. The parties of a simulation may share one.

    Args:
        crew: the worker processes; `ristretto` opens them.
        chunk: ids per message.

    Raises:
        BadParameter: `chunk` is out of range.
    """

    crew: WorkerPool
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or not 1 <= self.chunk <= 1 << 20:
            raise BadParameter(f"RistrettoBackend: chunk must be an integer from 1 to {1 << 20}, got {self.chunk!r}")

    @property
    def name(self) -> str:
        return f"ristretto255, {self.chunk} ids per message"

    def match_as_label(
        self, talk: Conversation, ids: Ids, peer_ids: Mapping[PartyName, int], on_progress: Progress
    ) -> dict[PartyName, RowNumbers]:
        """Talks to all feature parties in turn, chunk by chunk, so that all of them compute at the same time."""
        ends = [_LabelEnd(self, talk, ids, peer, count) for peer, count in peer_ids.items()]
        for step in range(max(end.steps for end in ends) + _LAG):
            for end in ends:
                end.speak(step)
            for end in ends:
                end.listen(step)
            on_progress(*_progress(ends), _STAGE)
        return {end.peer: end.places() for end in ends}

    def match_as_feature(self, talk: Conversation, ids: Ids, peer_ids: int, on_progress: Progress) -> RowNumbers:
        end = _FeatureEnd(self, talk, ids, talk.label_party, peer_ids)
        for step in range(end.steps + _LAG):
            end.speak(step)
            end.listen(step)
            on_progress(*_progress([end]), _STAGE)
        end.require_all_different(end.theirs, "blinded ids")
        return end.order


@contextmanager
def ristretto(workers: int | None = None, chunk: int = CHUNK) -> Iterator[RistrettoBackend]:
    """The default backend with its own worker processes, for as long as the `with` block lasts.

    Args:
        workers: number of processes; one per core unless given.
        chunk: ids per message.

    Raises:
        BadParameter: `workers` or `chunk` is out of its range.

    Examples:
        >>> with tw.align.ristretto(workers=1) as backend:
        ...     backend.name
        'ristretto255, 32768 ids per message'
    """
    with open_worker_pool(workers) as crew:
        yield RistrettoBackend(crew, chunk)


class _End:
    """What both ends of a pair do: send points of their own, and put their key on the other's."""

    def __init__(
        self, backend: RistrettoBackend, talk: Conversation, ids: Ids, peer: PartyName, peer_ids: int
    ) -> None:
        self.peer = peer
        self.order = shuffle_rows(len(ids))
        self.tag_size = tag_size(len(ids), peer_ids, talk.buckets)
        self.theirs = empty_tags(peer_ids, self.tag_size)  # in the order of the peer's list
        self.steps = -(-max(len(ids), peer_ids) // backend.chunk)
        self.sent = self.tagged = 0
        self._talk = talk
        self._ids = ids
        self._crew = backend.crew
        self._chunk = backend.chunk
        self._key = fresh_key()
        self._ahead: deque[Work] = deque([self._blinded(0), self._blinded(1)])
        self._tagging: deque[Work] = deque()

    @property
    def total(self) -> int:
        """Ids that this end sends and tags."""
        return len(self.order) + len(self.theirs)

    def _blinded(self, step: int) -> Work:
        return self._crew.blind(self._ids.texts(self.order[self._part(step)]), self._key)

    def _part(self, step: int) -> slice:
        return slice(step * self._chunk, (step + 1) * self._chunk)

    def speak(self, step: int) -> None:
        """Sends a chunk; an empty one, once there are no more, says that the peer may go on."""
        if step < self.steps:
            body = self._ahead.popleft().result()
            self._ahead.append(self._blinded(step + 2))
            self._talk.send(self.peer, Kind.BLINDED_IDS, step, body)
            self.sent += len(body) // POINT_SIZE

    def hear_points(self, step: int) -> None:
        """Takes the peer's chunk and has it tagged."""
        if step < self.steps:
            size = len(self.theirs[self._part(step)]) * POINT_SIZE
            points = self._talk.receive_exactly(self.peer, Kind.BLINDED_IDS, step, size)
            self._tagging.append(self._crew.tag(points, self._key, self.tag_size))

    def take_tags(self, step: int) -> bytes:
        """The tags of the peer's points of that step."""
        try:
            tags = self._tagging.popleft().result()
        except InvalidPoint as error:
            number = step * self._chunk + error.place
            raise self._talk.build_error(
                self.peer, f"a blinded id, number {number}, that is not a curve point"
            ) from None
        part = self.theirs[self._part(step)]
        part[:] = self._as_tags(tags)
        self.tagged += len(part)
        return tags

    def _as_tags(self, data: bytes) -> Tags:
        return np.frombuffer(data, np.uint8).reshape(-1, self.tag_size)

    def require_all_different(self, tags: Tags, what: str) -> None:
        """Ids are different, so their points are; a peer that repeats one could count on our answers."""
        repeated = find_repeat(tags)
        if repeated is not None:
            raise self._talk.build_error(
                self.peer, f"{what} of which numbers {repeated[0]} and {repeated[1]} are the same"
            )


class _FeatureEnd(_End):
    """Answers the label party's points with their tags."""

    def listen(self, step: int) -> None:
        self.hear_points(step)
        if step >= _LAG:
            tags = self.take_tags(step - _LAG)
            if tags:
                self._talk.send(self.peer, Kind.MATCH_TAGS, step - _LAG, tags)


class _LabelEnd(_End):
    """Collects the tags of its own points, and finds them among those of the peer's."""

    def __init__(
        self, backend: RistrettoBackend, talk: Conversation, ids: Ids, peer: PartyName, peer_ids: int
    ) -> None:
        super().__init__(backend, talk, ids, peer, peer_ids)
        self._ours = empty_tags(len(ids), self.tag_size)  # in the order of our list

    def listen(self, step: int) -> None:
        self.hear_points(step)
        before = step - _LAG
        if 0 <= before < self.steps:
            self.take_tags(before)
            ours = self._ours[self._part(before)]
            if len(ours):
                ours[:] = self._as_tags(
                    self._talk.receive_exactly(self.peer, Kind.MATCH_TAGS, before, len(ours) * self.tag_size)
                )

    def places(self) -> RowNumbers:
        """The place of each of our rows in the peer's list."""
        self.require_all_different(self.theirs, "blinded ids")
        self.require_all_different(self._ours, "match tags")
        places = np.empty(len(self.order), np.int64)
        places[self.order] = find_places(self._ours, self.theirs)
        return places


def _progress(ends: Sequence[_End]) -> tuple[int, int]:
    return sum(end.sent + end.tagged for end in ends), sum(end.total for end in ends)
