"""What the parties tell each other around the matching: set sizes, verdicts, and the size of the overlap."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum

from thinwire.align.conversation import Conversation
from thinwire.align.terms import Terms
from thinwire.errors import TooLarge, UnknownTag
from thinwire.types import Kind, PartyName

__all__ = ["Step", "announce_overlap", "announced_overlap", "ask_all", "greet", "tell"]

VERSION = 1
_GREETING = struct.Struct("<BQ")  # version, number of ids; the backend's name follows
_COUNT = struct.Struct("<Q")
_ACCEPTS, _REFUSES = b"\x01", b"\x00"


class Step(IntEnum):
    """The numbers of the messages of kind ALIGNMENT."""

    GREETING = 0
    SIZES_ACCEPTED = 1
    OVERLAP = 2
    OVERLAP_ACCEPTED = 3
    DIGEST_ACCEPTED = 4


def greet(
    talk: Conversation, peers: Sequence[PartyName], ids: int, backend: str, terms: Terms
) -> dict[PartyName, int]:
    """Tells the peers how many ids there are here, and learns how many each of them has."""
    for peer in peers:
        talk.send(peer, Kind.ALIGNMENT, Step.GREETING, _GREETING.pack(VERSION, ids) + backend.encode())
    return {peer: _greeted(talk, peer, backend, terms) for peer in peers}


def _greeted(talk: Conversation, peer: PartyName, backend: str, terms: Terms) -> int:
    body = talk.receive(peer, Kind.ALIGNMENT, Step.GREETING)
    if len(body) < _GREETING.size:
        raise talk.malformed(peer, f"a greeting of {len(body)} bytes, it has {_GREETING.size} at least")
    version, ids = _GREETING.unpack_from(body)
    if version != VERSION:
        raise UnknownTag(
            f"alignment: {peer!r} speaks version {version}, this party {VERSION}; bring both to one version"
        )
    if body[_GREETING.size :] != backend.encode():
        named = body[_GREETING.size :][:64].decode("ascii", "replace")
        raise UnknownTag(f"alignment: {peer!r} matches by {named!r}, this party by {backend!r}; use the same at all")
    if ids < 1:
        raise talk.malformed(peer, "word that it has no ids")
    if ids > terms.max_peer_ids:
        raise TooLarge(f"alignment: {peer!r} has {ids} ids, over this party's max_peer_ids, {terms.max_peer_ids}")
    return int(ids)


def ask_all(talk: Conversation, step: Step, accepts: bool) -> tuple[PartyName, ...]:
    """At the label party: who refuses, itself included; everybody is told."""
    verdicts: Mapping[PartyName, bool] = {party: _verdict(talk, party, step) for party in talk.feature_parties}
    refusing = [party for party, accepted in verdicts.items() if not accepted]
    if not accepts:
        refusing.append(talk.me)
    for party in talk.feature_parties:
        talk.send(party, Kind.ALIGNMENT, step, json.dumps(refusing).encode())
    return tuple(refusing)


def tell(talk: Conversation, step: Step, accepts: bool) -> tuple[PartyName, ...]:
    """At a feature party: gives its verdict, and learns who refuses."""
    talk.send(talk.label_party, Kind.ALIGNMENT, step, _ACCEPTS if accepts else _REFUSES)
    body = talk.receive(talk.label_party, Kind.ALIGNMENT, step)
    try:
        refusing = json.loads(body)
    except (ValueError, RecursionError):
        refusing = None
    if not isinstance(refusing, list) or not all(party in talk.parties for party in refusing):
        raise talk.malformed(talk.label_party, f"{body[:80]!r}, expected the names of those who refuse")
    if not accepts and talk.me not in refusing:
        raise talk.malformed(talk.label_party, f"an agreement that {talk.me!r} has refused")
    return tuple(refusing)


def _verdict(talk: Conversation, party: PartyName, step: Step) -> bool:
    body = talk.receive_sized(party, Kind.ALIGNMENT, step, 1)
    if body not in (_ACCEPTS, _REFUSES):
        raise talk.malformed(party, f"the verdict {body!r}")
    return body == _ACCEPTS


def announce_overlap(talk: Conversation, size: int) -> None:
    """The size alone: whoever finds it too small learns nothing else."""
    for party in talk.feature_parties:
        talk.send(party, Kind.ALIGNMENT, Step.OVERLAP, _COUNT.pack(size))


def announced_overlap(talk: Conversation, at_most: int) -> int:
    """What the label party says; no more than the smaller of the two sets."""
    (size,) = _COUNT.unpack(talk.receive_sized(talk.label_party, Kind.ALIGNMENT, Step.OVERLAP, _COUNT.size))
    if size > at_most:
        raise talk.malformed(talk.label_party, f"an overlap of {size} ids, at most {at_most} can be")
    return int(size)
