"""An alignment of more ids than memory holds: the same matching, bucket by bucket, each bucket's result kept on disk.

::

    label party                                           feature party
                                       <-------           a faster engine, where there is one (with its verdict)
    number of buckets, salt, engine    ------->           (in the answer about set sizes)
                                       <-------           a token for each bucket that is done here
    a token for each bucket            ------->           those that are not the same at both are matched now
    the backend's messages             <------>           for each such bucket
    size of the overlap                ------->           as for small sets, with its vote
    nonce, keys of common ids          ------->           a message for each bucket
    digest                             ------->           and the vote

A salted hash of the id says which bucket it goes into, so that equal ids meet. All buckets of a party are filled up
to one size, which follows from the number of its ids and of buckets: sizes of buckets show nothing. A feature party
finds the common ids by the first bytes of their keys, which ids.py sorts common rows by: it holds those ids, so that
a key shows it nothing else, and no engine needs to name places of lists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
    BucketFolder,
    BucketPlan,
    BucketSession,
    Workspace,
    plan_buckets,
)
from thinwire.align.ids import DIGEST_SIZE, NONCE_SIZE, Ids, RowNumbers, fresh_nonce, hash_rows, tag_size
from thinwire.base.types import Kind, PartyName, Progress

if TYPE_CHECKING:
    from thinwire.align.conversation import Backend, Conversation

_TOKENS_STEP = 5  # the number of the messages of kind ALIGNMENT that hold tokens: protocol.Step.BUCKETS_DONE


def format_plan(plan: BucketPlan) -> bytes:
    """As the label party tells it."""
    return json.dumps({"buckets": plan.count, "salt": plan.salt.hex(), "engine": plan.engine}).encode()


def parse_plan(said: object) -> BucketPlan | None:
    """What a message says, read as JSON; None where it is no plan."""
    if not isinstance(said, dict) or said.keys() != {"buckets", "salt", "engine"}:
        return None
    count, salt, engine = said["buckets"], said["salt"], said["engine"]
    is_count = isinstance(count, int) and not isinstance(count, bool) and 2 <= count <= MOST_BUCKETS
    if not is_count or count & (count - 1) or not isinstance(salt, str) or not isinstance(engine, str):
        return None
    try:
        return BucketPlan(count, bytes.fromhex(salt), engine) if len(salt) == 2 * SALT_SIZE else None
    except ValueError:
        return None


def name_engine(workspace: Workspace | None) -> bytes:
    """What a feature party offers with its verdict on the sizes; nothing where there is none."""
    return b"" if workspace is None or workspace.engine is None else workspace.engine.name.encode()


def plan_alignment(
    workspace: Workspace | None, sizes: Mapping[PartyName, int], offers: Mapping[PartyName, bytes]
) -> BucketPlan | None:
    """At the label party: the folder's plan, where an alignment was begun there; None for sets that fit at once."""
    plan = None
    if workspace is not None:
        plan = plan_buckets(max(sizes.values()), workspace.bucket_ids, workspace.in_memory_ids)
    if plan is None or workspace is None:
        return None
    folder = BucketFolder(workspace)
    found = folder.read_session()
    if found is not None and found.sizes != sizes:
        folder.require_nothing_done(found, ["sizes"])
        found = None
    return _choose_engine(plan if found is None else found.plan, workspace, offers)


def _choose_engine(plan: BucketPlan, workspace: Workspace, offers: Mapping[PartyName, bytes]) -> BucketPlan:
    """With the faster one, where every party has the same; says so where one has not."""
    if workspace.engine is None:
        return plan
    lacking = [party for party, offer in offers.items() if offer != name_engine(workspace)]
    if lacking:
        workspace.say(f"{', '.join(lacking)} cannot match by {workspace.engine.name}: all match by the default")
        return plan
    return replace(plan, engine=workspace.engine.name)


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
        self._backend, self._plan, self._workspace = self._choose_backend(plan, backend, workspace), plan, workspace
        self._size = plan.bucket_size(len(ids))
        self._peers = {peer: plan.bucket_size(size) for peer, size in sizes.items() if peer != talk.me}
        self._folder = BucketFolder(workspace)
        self._ids = ids
        self._session = BucketSession(
            me=talk.me,
            parties=talk.parties,
            ids_digest=ids.digest(),
            sizes=dict(sizes),
            buckets=plan.count,
            salt=plan.salt.hex(),
        )
        self._folder.require_session(self._session)

    def _choose_backend(self, plan: BucketPlan, backend: Backend, workspace: Workspace) -> Backend:
        if not plan.engine:
            return backend
        if workspace.engine is None or workspace.engine.name != plan.engine:
            what = f"a plan to match by {plan.engine[:64]!r}, which this party has not offered"
            raise self.talk.build_error(self.talk.label_party, what)
        return workspace.engine

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

    def _match_bucket(self, number: int, on_progress: Progress) -> npt.NDArray[np.bool_]:
        """Which of the label party's ids each peer has, [peers, ids]; nothing at a feature party."""
        talk, bucket = self.talk.for_bucket(number, self._plan.count), self._folder.read(number)
        ids = bucket.pad(self._size)
        if talk.me != talk.label_party:
            self._backend.match_as_feature(talk, ids, self._peers[talk.label_party], on_progress)
            return np.empty(0, np.bool_)
        places = self._backend.match_as_label(talk, ids, self._peers, on_progress)
        return np.stack([places[peer][: len(bucket.ids)] >= 0 for peer in self._peers])

    # The label party's end ----------------------------------------------------------------------------------------

    def count_pairwise(self) -> tuple[dict[PartyName, int], int]:
        """How many ids are in common with each of the others, and with all."""
        pairs, common = np.zeros(len(self._peers), np.int64), 0
        for number in range(self._plan.count):
            matched = self._read_matched(number)
            pairs += np.count_nonzero(matched, axis=1)
            common += int(np.count_nonzero(matched.all(axis=0)))
        return dict(zip(self._peers, pairs.tolist(), strict=True)), common

    def _read_matched(self, number: int) -> npt.NDArray[np.bool_]:
        return self._folder.read_matches(number).reshape(len(self._peers), -1)

    def tell_common(self) -> tuple[RowNumbers, bytes]:
        """Tells each party the keys of common ids; gives this party's rows in order, and their digest."""
        nonce = fresh_nonce()
        self._folder.begin_sort()
        for number in range(self._plan.count):
            bucket, common = self._folder.read(number), np.flatnonzero(self._read_matched(number).all(axis=0))
            keys = hash_rows(bucket.ids, common, nonce)
            for peer, size in self._peers.items():
                body = np.sort(_cut_keys(keys, self._size_key(size))).tobytes()
                self.talk.send(peer, Kind.COMMON_ROWS, number, body if number else nonce + body)
            self._folder.add_common(bucket.rows[common], keys, self._plan)
        rows, digest = self._folder.sort_common(nonce, self._plan)
        for peer in self._peers:
            self.talk.send(peer, Kind.COMMON_ROWS, self._plan.count, digest)
        return rows, digest

    def _size_key(self, peer_size: int) -> int:
        return tag_size(self._size, peer_size, self._plan.count)

    # A feature party's end ----------------------------------------------------------------------------------------

    def hear_common(self, size: int) -> tuple[RowNumbers, bytes, bytes]:
        """This party's rows in order, their digest, and the digest that the label party found."""
        talk, nonce, left = self.talk, b"", size
        self._folder.begin_sort()
        for number in range(self._plan.count):
            body = talk.receive(talk.label_party, Kind.COMMON_ROWS, number)
            if not number:
                nonce, body = body[:NONCE_SIZE], body[NONCE_SIZE:]
            bucket = self._folder.read(number)
            keys = hash_rows(bucket.ids, np.arange(len(bucket.ids)), nonce)
            common = self._find_common(number, keys, body)
            left -= len(common)
            self._folder.add_common(bucket.rows[common], keys[common], self._plan)
        if left:
            raise talk.build_error(talk.label_party, f"{size - left} common rows, after announcing {size}")
        theirs = talk.receive_exactly(talk.label_party, Kind.COMMON_ROWS, self._plan.count, DIGEST_SIZE)
        return *self._folder.sort_common(nonce, self._plan), theirs

    def _find_common(self, number: int, keys: npt.NDArray[np.uint8], body: bytes) -> RowNumbers:
        """Which of a bucket's ids have the keys of a message, of which each must be there once."""
        size = self._size_key(self._peers[self.talk.label_party])
        if len(body) % size or len(body) > size * len(keys):
            what = f"keys of bucket {number} in {len(body)} bytes, but at most {len(keys)} of {size} are possible"
            raise self.talk.build_error(self.talk.label_party, what)
        told = np.frombuffer(body, f"S{size}")
        common = np.flatnonzero(np.isin(_cut_keys(keys, size), told))
        if len(common) != len(told):
            what = f"{len(told)} keys of bucket {number}, of which {len(common)} are those of ids"
            raise self.talk.build_error(self.talk.label_party, what)
        return common


def _count_on(on_progress: Progress, before: int, total: int, done: int, _: int, stage: str) -> None:
    on_progress(before + done, total, stage)


def _cut_tokens(body: bytes) -> list[bytes]:
    return [body[at : at + TOKEN_SIZE] for at in range(0, len(body), TOKEN_SIZE)]


def _cut_keys(keys: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.bytes_]:
    """The first bytes of each, as one value."""
    return np.ascontiguousarray(keys[:, :size]).view(f"S{size}")[:, 0]
