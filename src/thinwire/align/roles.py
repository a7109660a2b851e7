"""One alignment, both ends in message order. What each party learns stands in `thinwire.align`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np

from thinwire.align.agreement import Step, announce_overlap, announced_overlap, ask_all, greet, tell
from thinwire.align.alignment import Alignment
from thinwire.align.backend import Backend, Progress
from thinwire.align.conversation import Conversation
from thinwire.align.errors import AlignmentsDiffer, NoOverlap, TooLittleOverlap
from thinwire.align.ids import Ids, RowNumbers
from thinwire.align.order import DIGEST_SIZE, NONCE_SIZE, fresh_nonce, in_common_order
from thinwire.align.terms import ANY_OVERLAP, Terms
from thinwire.types import Kind, PartyName

__all__ = ["align_feature_party", "align_label_party"]


def _silent(done: int, total: int, stage: str) -> None:
    """Nobody asked to be told."""


def align_label_party(
    ids: Ids, talk: Conversation, backend: Backend, terms: Terms = ANY_OVERLAP, on_progress: Progress = _silent
) -> Alignment:
    """The label party's half."""
    needed = terms.rows_needed(len(ids))
    peer_ids = greet(talk, talk.feature_parties, len(ids), backend.name, terms)
    sizes = peer_ids | {talk.me: len(ids)}
    smallest = min(sizes.values())
    _require_accepted(
        ask_all(talk, Step.SIZES_ACCEPTED, smallest >= needed), f"at most {smallest} ids can be in common", needed
    )

    places = backend.match_as_label(talk, ids, peer_ids, on_progress)
    pairwise = {peer: int(np.count_nonzero(found >= 0)) for peer, found in places.items()}
    common = np.flatnonzero(np.logical_and.reduce([found >= 0 for found in places.values()]))
    announce_overlap(talk, len(common))
    if not len(common):
        shared = ", ".join(f"{count} with {peer!r}" for peer, count in pairwise.items())
        raise _no_overlap(ids, f"no id is held by all parties ({shared})")
    accepts = len(common) >= needed
    _require_accepted(ask_all(talk, Step.OVERLAP_ACCEPTED, accepts), f"{len(common)} ids are in common", needed)

    nonce = fresh_nonce()
    rows, digest = in_common_order(ids, common, nonce)
    for peer, found in places.items():
        talk.send(peer, Kind.COMMON_ROWS, 0, nonce + digest + _bitmap(found[common], peer_ids[peer]))
    differing = ask_all(talk, Step.DIGEST_ACCEPTED, accepts=True)
    if differing:
        raise AlignmentsDiffer(differing)
    return _alignment(talk, ids, rows, digest, sizes, pairwise)


def align_feature_party(
    ids: Ids, talk: Conversation, backend: Backend, terms: Terms = ANY_OVERLAP, on_progress: Progress = _silent
) -> Alignment:
    """A feature party's half."""
    needed = terms.rows_needed(len(ids))
    sizes = greet(talk, [talk.label_party], len(ids), backend.name, terms) | {talk.me: len(ids)}
    smallest = min(sizes.values())
    _require_accepted(
        tell(talk, Step.SIZES_ACCEPTED, smallest >= needed), f"at most {smallest} ids can be in common", needed
    )

    order = backend.match_as_feature(talk, ids, sizes[talk.label_party], on_progress)
    size = announced_overlap(talk, at_most=smallest)
    if not size:
        raise _no_overlap(ids, "no id is held by all parties")
    _require_accepted(tell(talk, Step.OVERLAP_ACCEPTED, size >= needed), f"{size} ids are in common", needed)

    nonce, theirs, places = _common_rows(talk, len(ids), size)
    rows, digest = in_common_order(ids, order[places], nonce)
    differing = tell(talk, Step.DIGEST_ACCEPTED, accepts=digest == theirs)
    if differing:
        raise AlignmentsDiffer(differing)
    return _alignment(talk, ids, rows, digest, sizes, pairwise=None)


def _require_accepted(refusing: tuple[PartyName, ...], what: str, needed: int) -> None:
    if refusing:
        raise TooLittleOverlap(what, refusing, needed)


def _no_overlap(ids: Ids, what: str) -> NoOverlap:
    ways = ids.ways_of_writing()
    return NoOverlap(
        f"{what}; ids are compared as text: '007' is not '7', and 'A' is not 'a'. Compare how the parties write them"
        + (f" (here, {ways})" if ways else "")
    )


def _bitmap(places: RowNumbers, count: int) -> bytes:
    """A bit for each place of a party's list, lowest first."""
    bits = np.zeros(count, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _common_rows(talk: Conversation, count: int, size: int) -> tuple[bytes, bytes, RowNumbers]:
    """Nonce, the label party's digest, and the places in this party's list that all parties hold."""
    head = NONCE_SIZE + DIGEST_SIZE
    body = talk.receive_sized(talk.label_party, Kind.COMMON_ROWS, 0, head + -(-count // 8))
    bits = np.unpackbits(np.frombuffer(body, np.uint8, offset=head), bitorder="little")
    places = np.flatnonzero(bits)
    if len(places) != size or places[-1] >= count:
        raise talk.malformed(talk.label_party, f"{len(places)} common rows of {count}, after announcing {size}")
    return body[:NONCE_SIZE], body[NONCE_SIZE:head], places


def _alignment(
    talk: Conversation,
    ids: Ids,
    rows: RowNumbers,
    digest: bytes,
    sizes: Mapping[PartyName, int],
    pairwise: Mapping[PartyName, int] | None,
) -> Alignment:
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
    )
