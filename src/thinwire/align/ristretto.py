"""Matching by Diffie-Hellman in ristretto255: both parties' keys on both parties' ids.

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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from thinwire.align.group import (
    POINT_SIZE,
    InvalidPoint,
    Tags,
    empty_tags,
    find_places,
    find_repeat,
    fresh_key,
    tag_size,
)
from thinwire.align.ids import Ids, RowNumbers, shuffle_rows
from thinwire.align.protocol import Conversation, Progress
from thinwire.align.worker_pool import Work, WorkerPool, open_worker_pool
from thinwire.base.errors import BadParameter
from thinwire.base.types import Kind, PartyName

CHUNK = 32_768  # ids a message: 1 MiB of points
_LAG = 2  # chunks that are tagged while the next ones are exchanged
_STAGE = "matching"


@dataclass(frozen=True, slots=True)
class RistrettoBackend:
    """A `Backend`. The parties of a simulation may share one."""

    crew: WorkerPool
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        if isinstance(self.chunk, bool) or not isinstance(self.chunk, int) or not 1 <= self.chunk <= 1 << 20:
            raise BadParameter(
                f"RistrettoBackend: chunk must be a whole number from 1 to {1 << 20}, got {self.chunk!r}"
            )

    @property
    def name(self) -> str:
        return f"ristretto255, {self.chunk} ids a message"

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
    """The default backend with workers of its own, for as long as the block lasts."""
    with open_worker_pool(workers) as crew:
        yield RistrettoBackend(crew, chunk)


class _End:
    """What both ends of a pair do: send points of their own, and put their key on the other's."""

    def __init__(
        self, backend: RistrettoBackend, talk: Conversation, ids: Ids, peer: PartyName, peer_ids: int
    ) -> None:
        self.peer = peer
        self.order = shuffle_rows(len(ids))
        self.tag_size = tag_size(len(ids), peer_ids)
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
            raise self._talk.build_error(self.peer, f"a blinded id, number {number}, that is no point") from None
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
