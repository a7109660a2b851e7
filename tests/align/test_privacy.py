"""What travels, and what does not."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from align.talking import LABEL, Wire, aligned
from thinwire.align import ristretto
from thinwire.align.ristretto import hash_to_group
from thinwire.base.types import Kind

HASHES: list[Callable[[bytes], bytes]] = [
    lambda text: text,
    hash_to_group,
    *(
        lambda text, name=name: hashlib.new(name, text).digest()
        for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "sha3_256", "blake2b", "blake2s")
    ),
]


def named(first: int, count: int) -> list[str]:
    return [f"customer {number:07d}" for number in range(first, first + count)]


def everything(ids: dict[str, list[str]]) -> Wire:
    wire = Wire()
    aligned(ids, wire=wire)
    return wire


def test_neither_ids_nor_hashes_of_ids_travel() -> None:
    ids = {LABEL: named(0, 30), "bank": named(10, 30), "mill": named(15, 30)}
    wire = everything(ids)
    sent = b"|".join(bytes(message.body) for message in wire.messages)
    sent += sent.hex().encode()
    for text in {text for column in ids.values() for text in column}:
        for hashed in HASHES:
            data = hashed(text.encode())
            for part in (data, data[:10], data[::-1], data.hex().encode()):
                assert part not in sent


def shape(wire: Wire) -> list[tuple[str, str, Kind, int, int]]:
    return [(one.sender, one.receiver, one.kind, one.round, len(one.body)) for one in wire.messages]


def test_messages_depend_on_the_set_sizes_alone() -> None:
    one = everything({LABEL: named(0, 30), "bank": named(0, 20), "mill": named(0, 25)})
    two = everything({LABEL: named(0, 30), "bank": named(29, 20), "mill": named(5, 25)})
    long = everything({LABEL: [10 * text for text in named(0, 30)], "bank": [10 * text for text in named(10, 20)],
                       "mill": [10 * text for text in named(10, 25)]})  # fmt: skip
    assert shape(one) == shape(two) == shape(long)
    assert shape(one) != shape(everything({LABEL: named(0, 30), "bank": named(0, 21), "mill": named(0, 25)}))


def test_feature_parties_talk_to_the_label_party_alone() -> None:
    wire = everything({LABEL: named(0, 9), "bank": named(0, 9), "mill": named(0, 9)})
    assert all(LABEL in (message.sender, message.receiver) for message in wire.messages)


def test_a_feature_party_learns_the_common_rows_and_no_pairwise_ones() -> None:
    # All of the bank's ids are the shop's, two of them the mill's too.
    wire = everything({LABEL: named(0, 30), "bank": named(0, 10), "mill": named(8, 30)})
    (bank,) = wire.bodies(Kind.COMMON_ROWS, receiver="bank")
    (mill,) = wire.bodies(Kind.COMMON_ROWS, receiver="mill")
    for body in (bank, mill):
        assert sum(byte.bit_count() for byte in body[64:]) == 2
    assert bank[:64] == mill[:64]


def test_every_session_and_every_pair_has_keys_of_its_own() -> None:
    ids = {LABEL: named(0, 20), "bank": named(0, 20), "mill": named(0, 20)}
    one, two = everything(ids), everything(ids)
    points = [
        *(wire.points(sender=party) for wire in (one, two) for party in ("bank", "mill")),
        *(wire.points(sender=LABEL, receiver=party) for wire in (one, two) for party in ("bank", "mill")),
    ]
    assert [len(some) for some in points] == [20] * 8
    assert len({point for some in points for point in some}) == 20 * 8
    tags = [wire.bodies(Kind.MATCH_TAGS, sender=party)[0] for wire in (one, two) for party in ("bank", "mill")]
    assert len(set(tags)) == 4
    nonces = {body[:32] for wire in (one, two) for body in wire.bodies(Kind.COMMON_ROWS)}
    assert len(nonces) == 2


def test_points_are_shuffled() -> None:
    """The places of the bank's common rows, over many sessions, are spread over its whole list."""
    places: list[int] = []
    ids = {LABEL: named(0, 2), "bank": named(0, 64)}
    with ristretto(1) as backend:
        for _ in range(100):
            wire = Wire()
            aligned(ids, wire=wire, backend=backend)
            bits = int.from_bytes(wire.bodies(Kind.COMMON_ROWS)[0][64:], "little")
            places += [place for place in range(64) if bits >> place & 1]
    assert len(places) == 200
    # A uniform mean has a standard deviation of 1.3 over 200 draws.
    assert abs(sum(places) / 200 - 31.5) < 6.5
    assert len(set(places)) > 45
