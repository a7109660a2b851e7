"""An alignment of more ids than memory holds: the same matching, bucket by bucket, each bucket's result kept on disk.

::

    label party                                           feature party
    number of buckets, salt            ------->           (in the answer about set sizes)
                                       <-------           a token for each bucket that is done here
    a token for each bucket            ------->           those that are not the same at both are matched now
    the backend's messages             <------>           for each such bucket
    size of the overlap                ------->           as for small sets, with its vote
    nonce, which places are common     ------->           a message for each bucket
    digest                             ------->           and the vote

A salted hash of the id says which bucket it goes into, so that equal ids meet. All buckets of a party are filled up
to one size, which follows from the number of its ids and of buckets: sizes of buckets show nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from secrets import token_bytes
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from thinwire.align.bucket_files import (
    MOST_BUCKETS,
    NOT_DONE,
    SALT_SIZE,
    TOKEN_SIZE,
    Bucket,
    BucketFolder,
    BucketPlan,
    BucketSession,
    Workspace,
    plan_buckets,
)
from thinwire.align.ids import DIGEST_SIZE, NONCE_SIZE, Ids, RowNumbers, fresh_nonce
from thinwire.base.types import Kind, PartyName

if TYPE_CHECKING:
    from thinwire.align.protocol import Backend, Conversation, Progress

_TOKENS_STEP = 5  # the number of the messages of kind ALIGNMENT that hold tokens: protocol.Step.BUCKETS_DONE


def format_plan(plan: BucketPlan) -> bytes:
    """As the label party tells it."""
    return json.dumps({"buckets": plan.count, "salt": plan.salt.hex()}).encode()


def parse_plan(said: object) -> BucketPlan | None:
    """What a message says, read as JSON; None where it is no plan."""
    if not isinstance(said, dict) or said.keys() != {"buckets", "salt"}:
        return None
    count, salt = said["buckets"], said["salt"]
    is_count = isinstance(count, int) and not isinstance(count, bool) and 2 <= count <= MOST_BUCKETS
    if not is_count or count & (count - 1) or not isinstance(salt, str):
        return None
    try:
        return BucketPlan(count, bytes.fromhex(salt)) if len(salt) == 2 * SALT_SIZE else None
    except ValueError:
        return None


def choose_plan(workspace: Workspace | None, largest: int) -> BucketPlan | None:
    """At the label party: that of the folder, where an alignment was begun there; None for sets that fit at once."""
    if workspace is None:
        return None
    plan = plan_buckets(largest, workspace.bucket_ids, workspace.in_memory_ids)
    found = None if plan is None else BucketFolder(workspace).read_session()
    return plan if found is None else found.plan


class BucketedMatch:
    """One party's part of an alignment in buckets."""

    def __init__(
        self,
        talk: Conversation,
        backend: Backend,
        plan: BucketPlan,
        ids: Ids,
        sizes: Mapping[PartyName, int],
        workspace: Workspace,
    ) -> None:
        self.talk, self.sizes = talk, sizes
        self._backend, self._plan, self._workspace = backend, plan, workspace
        self._size = plan.padded_size(len(ids))
        self._peers = {peer: plan.padded_size(size) for peer, size in sizes.items() if peer != talk.me}
        self._folder = BucketFolder(workspace)
        self._ids = ids
        self._session = BucketSession(
            me=talk.me,
            parties=talk.parties,
            backend=backend.name,
            ids_digest=ids.digest(),
            sizes=dict(sizes),
            buckets=plan.count,
            salt=plan.salt.hex(),
        )
        self._folder.require_session(self._session)

    # Matching -----------------------------------------------------------------------------------------------------

    def run(self, on_progress: Progress) -> None:
        """Puts the ids into buckets, and matches each that is not done at all parties."""
        self._folder.begin(self._session)
        self._folder.split(self._ids, self._plan)
        kept = self._folder.list_tokens(self._plan)
        tokens = self._agree_on_tokens(kept)
        total = self._plan.count * sum(self._size + size for size in self._peers.values())
        for number, token in enumerate(tokens):
            if token != kept[number]:
                count = partial(_count_on, on_progress, total * number // self._plan.count, total)
                self._folder.keep(number, token, self._match_bucket(number, count))
                self._workspace.on_bucket()
        on_progress(total, total, "matching")

    def _agree_on_tokens(self, kept: Sequence[bytes]) -> list[bytes]:
        """A bucket is done where all parties hold it under one token; the label party draws one for the others."""
        talk, size = self.talk, self._plan.count * TOKEN_SIZE
        if talk.me != talk.label_party:
            talk.send(talk.label_party, Kind.ALIGNMENT, _TOKENS_STEP, b"".join(kept))
            told = _cut_tokens(talk.receive_exactly(talk.label_party, Kind.ALIGNMENT, _TOKENS_STEP, size))
            if NOT_DONE in told:
                raise talk.build_error(talk.label_party, "a bucket without a token")
            return told
        held = [_cut_tokens(talk.receive_exactly(peer, Kind.ALIGNMENT, _TOKENS_STEP, size)) for peer in self._peers]
        agreed = [
            ours if ours != NOT_DONE and all(theirs[number] == ours for theirs in held) else token_bytes(TOKEN_SIZE)
            for number, ours in enumerate(kept)
        ]
        for peer in self._peers:
            talk.send(peer, Kind.ALIGNMENT, _TOKENS_STEP, b"".join(agreed))
        self._report(kept, agreed)
        return agreed

    def _report(self, kept: Sequence[bytes], agreed: Sequence[bytes]) -> None:
        done = sum(one == other for one, other in zip(kept, agreed, strict=True))
        again = sum(one != NOT_DONE for one in kept) - done
        more = f"; {again} more are done here alone, and are matched again" if again else ""
        self._workspace.say(f"{done} of {self._plan.count} buckets are done{more}")

    def _match_bucket(self, number: int, on_progress: Progress) -> npt.NDArray[np.int32]:
        """At the label party the places of its ids at each peer, at a feature party the order of its list."""
        talk, bucket = self.talk.for_bucket(number, self._plan.count), self._folder.read(number)
        ids = bucket.pad(self._size)
        if talk.me != talk.label_party:
            order = self._backend.match_as_feature(talk, ids, self._peers[talk.label_party], on_progress)
            return order.astype(np.int32)
        places = self._backend.match_as_label(talk, ids, self._peers, on_progress)
        return np.stack([places[peer][: len(bucket.ids)] for peer in self._peers]).astype(np.int32)

    # The label party's end ----------------------------------------------------------------------------------------

    def count_pairwise(self) -> tuple[dict[PartyName, int], int]:
        """How many ids are in common with each of the others, and with all."""
        pairs, common = np.zeros(len(self._peers), np.int64), 0
        for number in range(self._plan.count):
            matched = self._read_places(number) >= 0
            pairs += np.count_nonzero(matched, axis=1)
            common += int(np.count_nonzero(matched.all(axis=0)))
        return dict(zip(self._peers, pairs.tolist(), strict=True)), common

    def _read_places(self, number: int) -> npt.NDArray[np.int32]:
        return self._folder.read_matches(number).reshape(len(self._peers), -1)

    def tell_common(self) -> tuple[RowNumbers, bytes]:
        """Tells each party which of its places are common; gives this party's rows in order, and their digest."""
        nonce = fresh_nonce()
        self._folder.begin_sort()
        for number in range(self._plan.count):
            places = self._read_places(number)
            common = np.flatnonzero((places >= 0).all(axis=0))
            for peer, found in zip(self._peers, places, strict=True):
                body = _pack_bits(found[common], self._peers[peer])
                self.talk.send(peer, Kind.COMMON_ROWS, number, body if number else nonce + body)
            self._folder.add_common(self._folder.read(number), common, nonce, self._plan)
        rows, digest = self._folder.sort_common(nonce, self._plan)
        for peer in self._peers:
            self.talk.send(peer, Kind.COMMON_ROWS, self._plan.count, digest)
        return rows, digest

    # A feature party's end ----------------------------------------------------------------------------------------

    def hear_common(self, size: int) -> tuple[RowNumbers, bytes, bytes]:
        """This party's rows in order, their digest, and the digest that the label party found."""
        talk, nonce, left = self.talk, b"", size
        self._folder.begin_sort()
        for number in range(self._plan.count):
            head = 0 if number else NONCE_SIZE
            expected = head + -(-self._size // 8)
            body = talk.receive_exactly(talk.label_party, Kind.COMMON_ROWS, number, expected)
            nonce = nonce or body[:head]
            bucket = self._folder.read(number)
            places = self._find_rows(number, bucket, np.frombuffer(body, np.uint8, offset=head))
            left -= len(places)
            self._folder.add_common(bucket, places, nonce, self._plan)
        if left:
            raise talk.build_error(talk.label_party, f"{size - left} common rows, after announcing {size}")
        theirs = talk.receive_exactly(talk.label_party, Kind.COMMON_ROWS, self._plan.count, DIGEST_SIZE)
        return *self._folder.sort_common(nonce, self._plan), theirs

    def _find_rows(self, number: int, bucket: Bucket, packed: npt.NDArray[np.uint8]) -> RowNumbers:
        """Which of the bucket's ids stand behind the places whose bit is set."""
        bits = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
        order = self._folder.read_matches(number)
        if np.any(bits >= len(order)) or np.any(order[bits] >= len(bucket.ids)):
            raise self.talk.build_error(self.talk.label_party, f"common rows of bucket {number} that are no ids")
        return order[bits].astype(np.int64)


def _count_on(on_progress: Progress, before: int, total: int, done: int, _: int, stage: str) -> None:
    on_progress(before + done, total, stage)


def _cut_tokens(body: bytes) -> list[bytes]:
    return [body[at : at + TOKEN_SIZE] for at in range(0, len(body), TOKEN_SIZE)]


def _pack_bits(places: npt.NDArray[np.int32], count: int) -> bytes:
    bits = np.zeros(count, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little").tobytes()
