"""An alignment between parties: its messages in order, and each role's half."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.align.alignment import Alignment, AlignmentsDiffer, NoOverlap, Terms, TooLittleOverlap
from thinwire.align.bucket_files import BucketPlan, Workspace, open_workspace
from thinwire.align.bucketed import BucketedMatch, format_plan, name_engine, parse_plan, plan_alignment
from thinwire.align.conversation import Backend, Conversation
from thinwire.align.ids import (
    DIGEST_SIZE,
    NONCE_SIZE,
    Ids,
    OwnerIds,
    RowNumbers,
    digest_rows,
    fresh_nonce,
    sort_common_rows,
)
from thinwire.base.errors import BadParameter, TooLarge, UnknownTag
from thinwire.base.numbering import number_by_appearance
from thinwire.base.types import Kind, PartyName, Progress

ANY_OVERLAP = Terms()
NO_GROUPS: Mapping[PartyName, OwnerIds] = MappingProxyType({})


# The messages of an alignment, in order: who talks, what both sides agree on, and each role's half ----------------


VERSION = 2  # 1 had no buckets
_GREETING = struct.Struct("<BQ")  # version, number of ids; the backend's name follows
_COUNT = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")  # rows, and owners of rows
_ACCEPTS, _REFUSES = b"\x01", b"\x00"
_LONGEST_VERDICT = 256  # bytes, with the name of an engine
_ROWS_A_MESSAGE = 1 << 22  # whose owners one message tells


class Step(IntEnum):
    """The numbers of the messages of kind ALIGNMENT."""

    GREETING = 0
    SIZES_ACCEPTED = 1
    OVERLAP = 2
    OVERLAP_ACCEPTED = 3
    DIGEST_ACCEPTED = 4
    BUCKETS_DONE = 5


def greet(talk: Conversation, counts: Mapping[PartyName, int], backend: str, terms: Terms) -> dict[PartyName, int]:
    """Tells each peer how many ids are brought here to be matched with its own, and learns how many it has."""
    backend = talk.name_backend(backend)
    for peer, ids in counts.items():
        talk.send(peer, Kind.ALIGNMENT, Step.GREETING, _GREETING.pack(VERSION, ids) + backend.encode())
    return {peer: _greeted(talk, peer, backend, terms) for peer in counts}


def _greeted(talk: Conversation, peer: PartyName, backend: str, terms: Terms) -> int:
    body = talk.receive(peer, Kind.ALIGNMENT, Step.GREETING)
    if len(body) < _GREETING.size:
        raise talk.build_error(peer, f"a greeting of {len(body)} bytes; it needs at least {_GREETING.size}")
    version, ids = _GREETING.unpack_from(body)
    if version != VERSION:
        raise UnknownTag(
            f"alignment: {peer!r} speaks version {version}, this party {VERSION}; use the same version at "
            "both parties"
        )
    if body[_GREETING.size :] != backend.encode():
        named = body[_GREETING.size :][:64].decode("ascii", "replace")
        raise UnknownTag(
            f"alignment: {peer!r} matches by {named!r}, this party by {backend!r}; use the same at all parties"
        )
    if ids < 1:
        raise talk.build_error(peer, "a message that it has no ids")
    if ids > terms.max_peer_ids:
        raise TooLarge(
            f"alignment: {peer!r} has {ids} ids, more than this party's max_peer_ids of {terms.max_peer_ids}"
        )
    return int(ids)


def vote(talk: Conversation, step: Step, accepts: bool) -> tuple[PartyName, ...]:
    """Who refuses: each feature party gives its verdict, and the label party, with its own, tells everybody."""
    if talk.me == talk.label_party:
        refusing = [party for party in talk.feature_parties if not _verdict(talk, party, step)]
        refusing += [] if accepts else [talk.me]
        _tell_all(talk, step, json.dumps(refusing).encode())
        return tuple(refusing)
    talk.send(talk.label_party, Kind.ALIGNMENT, step, _ACCEPTS if accepts else _REFUSES)
    return _hear_refusals(talk, step, accepts)[0]


def _tell_all(talk: Conversation, step: Step, body: bytes) -> None:
    for party in talk.feature_parties:
        talk.send(party, Kind.ALIGNMENT, step, body)


def _hear_refusals(talk: Conversation, step: Step, accepts: bool) -> tuple[tuple[PartyName, ...], BucketPlan | None]:
    """Who refuses, by the label party's word; or, of sizes that nobody refuses, its plan, where there is one."""
    body = talk.receive(talk.label_party, Kind.ALIGNMENT, step)
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        told = None
    plan = parse_plan(told) if step is Step.SIZES_ACCEPTED else None
    told = told if plan is None else []
    if not isinstance(told, list) or not all(party in talk.parties for party in told):
        raise talk.build_error(talk.label_party, f"{body[:80]!r}, expected the names of the parties that refuse")
    if not accepts and talk.me not in told:
        raise talk.build_error(talk.label_party, f"an agreement that {talk.me!r} has refused")
    return tuple(told), plan


def _verdict(talk: Conversation, party: PartyName, step: Step) -> bool:
    return _parse_verdict(talk, party, talk.receive_exactly(party, Kind.ALIGNMENT, step, 1))


def _parse_verdict(talk: Conversation, party: PartyName, body: bytes) -> bool:
    if body[:1] not in (_ACCEPTS, _REFUSES) or len(body) > _LONGEST_VERDICT:
        raise talk.build_error(party, f"the verdict {body[:80]!r}")
    return body[:1] == _ACCEPTS


def announce_overlap(talk: Conversation, size: int, owners: Mapping[PartyName, int]) -> None:
    """The size alone: whoever finds it too small learns nothing else. `owners` of these rows, where there are any."""
    for party in talk.feature_parties:
        body = _COUNTS.pack(size, owners[party]) if party in owners else _COUNT.pack(size)
        talk.send(party, Kind.ALIGNMENT, Step.OVERLAP, body)


def receive_overlap(talk: Conversation, at_most: int) -> int:
    """What the label party says; no more than the smaller of the two sets."""
    (size,) = _COUNT.unpack(talk.receive_exactly(talk.label_party, Kind.ALIGNMENT, Step.OVERLAP, _COUNT.size))
    if size > at_most:
        raise talk.build_error(talk.label_party, f"an overlap of {size} ids, of at most {at_most}")
    return int(size)


def receive_owners(talk: Conversation, at_most: int, terms: Terms) -> tuple[int, int]:
    """At a party that holds owners of rows: how many rows are common, and how many of its own they belong to."""
    body = talk.receive_exactly(talk.label_party, Kind.ALIGNMENT, Step.OVERLAP, _COUNTS.size)
    rows, owners = _COUNTS.unpack(body)
    if owners > min(at_most, rows) or (rows and not owners):
        raise talk.build_error(talk.label_party, f"{rows} rows of {owners} owners; at most {at_most} are possible")
    if rows > terms.max_peer_ids:
        raise TooLarge(
            f"alignment: {rows} rows are shared, more than this party's max_peer_ids of {terms.max_peer_ids}"
        )
    return int(rows), int(owners)


def _silent(done: int, total: int, stage: str) -> None:
    """Nobody asked to be told."""


def align_label_party(
    ids: Ids,
    talk: Conversation,
    backend: Backend,
    terms: Terms = ANY_OVERLAP,
    on_progress: Progress = _silent,
    groups: Mapping[PartyName, OwnerIds] = NO_GROUPS,
    workspace: Workspace | None = None,
) -> Alignment:
    """Runs the label party's half of the alignment.

    Args:
        ids: this party's ids.
        talk: who takes part, and the channel between them.
        backend: the matching protocol, the same at both ends.
        terms: smallest overlap and largest peer that this party accepts.
        on_progress: called with ids done, ids in all, and the stage.
        groups: owners of its rows, for each party that holds owners.
        workspace: folder for buckets: sets too large for it are matched there, unless there are groups.

    Raises:
        NoOverlap: no id is held by all parties.
        TooLittleOverlap: fewer common rows than some party's `terms` require.
    """
    _require_groups(talk, len(ids), groups)
    brought = {peer: len(groups[peer].ids) if peer in groups else len(ids) for peer in talk.feature_parties}
    peer_ids = greet(talk, brought, backend.name, terms)
    sizes = peer_ids | {talk.me: len(ids)}
    compared = {name: size for name, size in sizes.items() if name not in groups}
    plan = _agree_on_sizes(talk, compared, terms, None if groups else workspace)
    if plan is not None and workspace is not None:
        match = BucketedMatch(talk, backend, plan, ids, sizes, workspace)
        return _align_buckets_as_label(ids, match, terms, on_progress)
    ids.require_different()

    places = _match(talk, ids, backend, peer_ids, on_progress, groups)
    pairwise = {peer: int(np.count_nonzero(found >= 0)) for peer, found in places.items()}
    common = np.flatnonzero(np.logical_and.reduce([found >= 0 for found in places.values()]))
    owners = {peer: len(np.unique(group.index[common])) for peer, group in groups.items()}
    announce_overlap(talk, len(common), owners)
    _require_overlap(ids, len(common), pairwise)
    _agree_on_overlap(talk, len(ids), len(common), terms)

    nonce = fresh_nonce()
    rows, digest = sort_common_rows(ids, common, nonce)
    for peer, found in places.items():
        if peer in groups:
            check = digest_rows(groups[peer].ids, groups[peer].index[rows], nonce)
            _send_owners(talk, peer, nonce + digest + check, found[rows].astype(_choose_width(peer_ids[peer])))
        else:
            talk.send(peer, Kind.COMMON_ROWS, 0, nonce + digest + _bitmap(found[common], peer_ids[peer]))
    numbered = {peer: number_by_appearance(group.index[rows])[1] for peer, group in groups.items()}
    return _alignment(talk, ids, rows, digest, sizes, pairwise=pairwise, owners=numbered)


def _require_groups(talk: Conversation, rows: int, groups: Mapping[PartyName, OwnerIds]) -> None:
    if set(groups) != set(talk.grouped):
        raise BadParameter(f"owners of rows are given for {sorted(groups)}, and held by {sorted(talk.grouped)}")
    for peer, group in groups.items():
        if len(group.index) != rows:
            raise BadParameter(f"{len(group.index)} rows have an owner at {peer!r}, and there are {rows} ids")


def _match(
    talk: Conversation,
    ids: Ids,
    backend: Backend,
    peer_ids: Mapping[PartyName, int],
    on_progress: Progress,
    groups: Mapping[PartyName, OwnerIds],
) -> dict[PartyName, RowNumbers]:
    """For each feature party the place of each of our rows, or of its owner, in that party's list; -1 for none."""
    alike = {peer: count for peer, count in peer_ids.items() if peer not in groups}
    places = backend.match_as_label(talk, ids, alike, on_progress) if alike else {}
    for peer, group in groups.items():
        found = backend.match_as_label(talk, group.ids, {peer: peer_ids[peer]}, on_progress)[peer]
        places[peer] = found[group.index]
    return {peer: places[peer] for peer in peer_ids}


def align_feature_party(
    ids: Ids,
    talk: Conversation,
    backend: Backend,
    terms: Terms = ANY_OVERLAP,
    on_progress: Progress = _silent,
    workspace: Workspace | None = None,
) -> Alignment:
    """Runs a feature party's half of the alignment.

    Args:
        ids: this party's ids.
        talk: who takes part, and the channel between them.
        backend: the matching protocol, the same at both ends.
        terms: smallest overlap and largest peer that this party accepts.
        on_progress: called with ids done, ids in all, and the stage.
        workspace: folder for buckets, where the label party asks for them.

    Raises:
        NoOverlap: no id is held by all parties.
        TooLittleOverlap: fewer common rows than some party's `terms` require.
    """
    is_grouped = talk.me in talk.grouped
    sizes = greet(talk, {talk.label_party: len(ids)}, backend.name, terms) | {talk.me: len(ids)}
    plan = _agree_on_sizes(talk, sizes, terms, workspace)
    if plan is not None:
        with open_workspace(workspace) as room:
            match = BucketedMatch(talk, backend, plan, ids, sizes, room)
            return _align_buckets_as_feature(ids, match, terms, on_progress)
    ids.require_different()

    order = backend.match_as_feature(talk, ids, sizes[talk.label_party], on_progress)
    if is_grouped:
        rows_in_common, size = receive_owners(talk, min(sizes.values()), terms)
    else:
        rows_in_common = size = receive_overlap(talk, at_most=min(sizes.values()))
    _require_overlap(ids, size)
    _agree_on_overlap(talk, len(ids), size, terms)

    if is_grouped:
        nonce, digest, check, places = _owners_of_rows(talk, len(ids), rows_in_common, size)
        rows = order[places]
        return _alignment(talk, ids, rows, digest, sizes, accepts=digest_rows(ids, rows, nonce) == check)
    nonce, theirs, places = _common_rows(talk, len(ids), size)
    rows, digest = sort_common_rows(ids, order[places], nonce)
    return _alignment(talk, ids, rows, digest, sizes, accepts=digest == theirs)


def _align_buckets_as_label(ids: Ids, match: BucketedMatch, terms: Terms, on_progress: Progress) -> Alignment:
    """From the matching on, as above; rows are sorted on disk."""
    talk = match.talk
    match.run(on_progress)
    pairwise, common = match.count_pairwise()
    announce_overlap(talk, common, {})
    _require_overlap(ids, common, pairwise)
    _agree_on_overlap(talk, len(ids), common, terms)
    rows, digest = match.tell_common()
    return _alignment(talk, ids, rows, digest, match.sizes, pairwise=pairwise)


def _align_buckets_as_feature(ids: Ids, match: BucketedMatch, terms: Terms, on_progress: Progress) -> Alignment:
    match.run(on_progress)
    size = receive_overlap(match.talk, at_most=min(match.sizes.values()))
    _require_overlap(ids, size)
    _agree_on_overlap(match.talk, len(ids), size, terms)
    rows, digest, theirs = match.hear_common(size)
    return _alignment(match.talk, ids, rows, digest, match.sizes, accepts=digest == theirs)


def _agree_on_sizes(
    talk: Conversation, sizes: Mapping[PartyName, int], terms: Terms, workspace: Workspace | None
) -> BucketPlan | None:
    """The label party's plan, where sets are so large that there is one; else as `vote`."""
    needed, smallest = terms.minimum_rows(sizes[talk.me]), min(sizes.values())
    accepts, step = smallest >= needed, Step.SIZES_ACCEPTED
    if talk.me != talk.label_party:
        verdict = _ACCEPTS if accepts else _REFUSES
        talk.send(talk.label_party, Kind.ALIGNMENT, step, verdict + name_engine(workspace))
        refusing, plan = _hear_refusals(talk, step, accepts)
    else:
        said = {party: talk.receive(party, Kind.ALIGNMENT, step) for party in talk.feature_parties}
        refusing = tuple(party for party, body in said.items() if not _parse_verdict(talk, party, body))
        refusing += () if accepts else (talk.me,)
        plan = (
            None if refusing else plan_alignment(workspace, sizes, {party: body[1:] for party, body in said.items()})
        )
        _tell_all(talk, step, json.dumps(refusing).encode() if plan is None else format_plan(plan))
    if refusing:
        raise TooLittleOverlap(f"the parties share at most {smallest} ids", refusing, needed)
    return plan


def _agree_on_overlap(talk: Conversation, own: int, size: int, terms: Terms) -> None:
    needed = terms.minimum_rows(own)
    if refusing := vote(talk, Step.OVERLAP_ACCEPTED, size >= needed):
        raise TooLittleOverlap(f"the parties share {size} ids", refusing, needed)


def _require_overlap(ids: Ids, size: int, pairwise: Mapping[PartyName, int] | None = None) -> None:
    if size:
        return
    shared = ", ".join(f"{count} with {peer!r}" for peer, count in (pairwise or {}).items())
    ways = ids.ways_of_writing()
    raise NoOverlap(
        f"no id is held by all parties{f' ({shared})' if shared else ''}; ids are compared as text: '007' is not "
        "'7', and 'A' is not 'a'. Compare how the parties format them" + (f" (here, {ways})" if ways else "")
    )


def _bitmap(places: RowNumbers, count: int) -> bytes:
    """A bit for each place of a party's list, lowest first."""
    bits = np.zeros(count, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _common_rows(talk: Conversation, count: int, size: int) -> tuple[bytes, bytes, RowNumbers]:
    """Nonce, the label party's digest, and the places in this party's list that all parties hold."""
    head = NONCE_SIZE + DIGEST_SIZE
    body = talk.receive_exactly(talk.label_party, Kind.COMMON_ROWS, 0, head + -(-count // 8))
    bits = np.unpackbits(np.frombuffer(body, np.uint8, offset=head), bitorder="little")
    places = np.flatnonzero(bits)
    if len(places) != size or places[-1] >= count:
        raise talk.build_error(talk.label_party, f"{len(places)} common rows of {count}, after announcing {size}")
    return body[:NONCE_SIZE], body[NONCE_SIZE:head], places


def _choose_width(count: int) -> np.dtype[Any]:
    """Of a place in a list of so many: 1, 2 or 4 bytes."""
    return np.dtype("<u1" if count <= 1 << 8 else "<u2" if count <= 1 << 16 else "<u4")


def _send_owners(talk: Conversation, peer: PartyName, head: bytes, places: npt.NDArray[Any]) -> None:
    """In several messages where there are many rows."""
    for number, start in enumerate(range(0, len(places), _ROWS_A_MESSAGE)):
        part = places[start : start + _ROWS_A_MESSAGE].tobytes()
        talk.send(peer, Kind.COMMON_ROWS, number, part if number else head + part)


def _owners_of_rows(talk: Conversation, count: int, rows: int, owners: int) -> tuple[bytes, bytes, bytes, RowNumbers]:
    """Nonce, the alignment's digest, that of the owners' ids row by row, and the place of each row's owner."""
    head, width = NONCE_SIZE + 2 * DIGEST_SIZE, _choose_width(count)
    sizes = [min(_ROWS_A_MESSAGE, rows - start) * width.itemsize for start in range(0, rows, _ROWS_A_MESSAGE)]
    sizes[0] += head
    body = b"".join(
        talk.receive_exactly(talk.label_party, Kind.COMMON_ROWS, number, size) for number, size in enumerate(sizes)
    )
    places = np.frombuffer(body, width, offset=head).astype(np.int64)
    if int(places.max()) >= count or len(np.unique(places)) != owners:
        what = f"rows of {len(np.unique(places))} owners, up to number {places.max()} of {count}"
        raise talk.build_error(talk.label_party, f"{what}, after announcing {owners}")
    digests = body[NONCE_SIZE:head]
    return body[:NONCE_SIZE], digests[:DIGEST_SIZE], digests[DIGEST_SIZE:], places


def _alignment(
    talk: Conversation,
    ids: Ids,
    rows: RowNumbers,
    digest: bytes,
    sizes: Mapping[PartyName, int],
    *,
    accepts: bool = True,
    pairwise: Mapping[PartyName, int] | None = None,
    owners: Mapping[PartyName, RowNumbers] | None = None,
) -> Alignment:
    """What all parties accept; raises AlignmentsDiffer where one does not."""
    if differing := vote(talk, Step.DIGEST_ACCEPTED, accepts):
        raise AlignmentsDiffer(differing)
    return Alignment(
        me=talk.me,
        label_party=talk.label_party,
        parties=talk.parties,
        rows=rows,
        digest=digest.hex(),
        sizes={party: sizes[party] for party in talk.parties if party in sizes},
        pairwise=pairwise,
        ids_digest=ids.digest(),
        when=datetime.now(UTC).replace(microsecond=0),
        grouped=tuple(talk.grouped),
        owners=owners or {},
    )
