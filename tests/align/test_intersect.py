"""Alignments against plain set intersections."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from align.talking import CREW, LABEL, SMALL, Wire, aligned, common_ids
from thinwire import align
from thinwire.align import Alignment, RistrettoBackend, intersect, normalize_ids
from thinwire.base.errors import BadInput, BadParameter
from thinwire.base.types import Kind
from thinwire.engine.wire.frame import HEADER_SIZE

PARTIES = ["bank", "mill", "mine"]


def text_of(value: Any) -> str:
    """The oracle's own way to the text that counts."""
    plain = value.decode() if isinstance(value, bytes) else str(value)
    return normalize("NFC", plain).strip()


def ways_to_write(text: str) -> st.SearchStrategy[Any]:
    ways: list[Any] = [text, f" {text}\n", normalize("NFD", text), text.encode()]
    if text.isascii() and text.isdecimal() and str(int(text)) == text:
        ways += [int(text), np.int64(int(text) % 2**63)] if int(text) < 2**63 else [int(text)]
    return st.sampled_from(ways)


@st.composite
def id_sets(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Two to four parties; each writes the same id in its own way."""
    number = st.integers(0, 10**20).map(str)
    universe = draw(
        st.lists(st.one_of(number, st.text(min_size=1)).map(text_of).filter(bool), unique=True, min_size=1)
    )
    names = [*PARTIES[: draw(st.integers(1, 3))], LABEL]
    some = st.lists(st.sampled_from(universe), unique=True, min_size=1)
    return {name: [draw(ways_to_write(text)) for text in draw(some)] for name in draw(st.permutations(names))}


@settings(max_examples=100)
@given(id_sets(), st.sampled_from([1, 3, 100]))
def test_it_is_the_intersection_in_one_order(ids: dict[str, list[Any]], chunk: int) -> None:
    sets = {party: {text_of(value) for value in values} for party, values in ids.items()}
    expected = set.intersection(*sets.values())
    backend = RistrettoBackend(CREW, chunk)
    if not expected:
        with pytest.raises(align.NoOverlap):
            intersect(ids, LABEL, backend=backend)
        return
    found = intersect(ids, LABEL, backend=backend)
    texts = {party: list(map(text_of, values)) for party, values in common_ids(ids, found).items()}
    assert all(row == texts[LABEL] for row in texts.values())
    assert set(texts[LABEL]) == expected
    assert len(texts[LABEL]) == len(expected)
    assert len({alignment.digest for alignment in found.values()}) == 1
    assert list(found) == list(ids)
    for party, alignment in found.items():
        own = {party: len(ids[party])}
        assert alignment.sizes == (
            {name: len(sets[name]) for name in ids} if party == LABEL else own | {LABEL: len(sets[LABEL])}
        )
        assert alignment.rows.dtype == np.int64
        assert alignment.ids_digest == normalize_ids(ids[party]).digest()
        alignment.require_same_ids(normalize_ids(ids[party]))
        if party != LABEL:
            assert alignment.pairwise is None
    pairwise = {party: len(sets[party] & sets[LABEL]) for party in ids if party != LABEL}
    assert found[LABEL].pairwise == pairwise


def some_ids(first: int, count: int) -> list[str]:
    return [f"id {number}" for number in range(first, first + count)]


@pytest.mark.parametrize(("mine", "theirs"), [(1, 100), (100, 1), (8, 8), (9, 17), (64, 65), (100, 100)])
def test_sets_of_any_size_in_chunks(mine: int, theirs: int) -> None:
    ids = {LABEL: some_ids(0, mine), "bank": some_ids(0, theirs)[::-1], "mill": some_ids(0, 70)}
    found = aligned(ids)
    texts = common_ids(ids, found)
    assert texts[LABEL] == texts["bank"] == texts["mill"]
    assert set(texts[LABEL]) == set(ids[LABEL]) & set(ids["bank"]) & set(ids["mill"])


def test_what_is_on_the_way_stays_within_a_few_chunks() -> None:
    for mine, theirs in ((400, 400), (8, 800), (800, 8)):
        wire = Wire()
        aligned({LABEL: some_ids(0, mine), "bank": some_ids(0, theirs)}, wire=wire)
        assert len(wire.bodies(Kind.BLINDED_IDS)) == 2 * max(mine, theirs) / SMALL.chunk
        assert wire.most_unread <= 4
        assert max(len(message.body) for message in wire.messages) <= max(32 * SMALL.chunk, 64 + theirs / 8)


def test_the_ledger_counts_what_was_sent() -> None:
    ids = {LABEL: some_ids(0, 40), "bank": some_ids(10, 30)}
    wire = Wire()
    aligned(ids, wire=wire)
    found = intersect(ids, LABEL, backend=SMALL)
    assert found.ledger.total().bytes == sum(HEADER_SIZE + len(message.body) for message in wire.messages)
    assert found.ledger.total().messages == len(wire.messages)


def test_an_id_costs_at_most_its_points_and_tag() -> None:
    found = intersect({LABEL: some_ids(0, 2000), "bank": some_ids(1000, 2000)}, LABEL, workers=1)
    # 32 + 32 for the points, 8 for the tag, a bit for the row.
    assert found.ledger.total().bytes <= 2000 * (32 + 32 + 8 + 1 / 8) + 1000


def test_progress_goes_from_nothing_to_all() -> None:
    told: list[tuple[int, int, str]] = []
    ids = {LABEL: some_ids(0, 40), "bank": some_ids(10, 30), "mill": some_ids(0, 100)}
    intersect(ids, LABEL, backend=SMALL, on_progress=lambda *one: told.append(one))
    done = [one[0] for one in told]
    assert done == sorted(done)
    assert {one[1:] for one in told} == {(40 + 30 + 40 + 100, "matching")}
    assert done[-1] == 40 + 30 + 40 + 100
    assert done[0] < done[-1]


def test_the_order_is_another_each_time_and_says_nothing_of_the_tables() -> None:
    ids = {LABEL: some_ids(0, 60), "bank": some_ids(0, 60)}
    one, two = aligned(ids), aligned(ids)
    assert one[LABEL].rows.tolist() != two[LABEL].rows.tolist()
    assert one[LABEL].digest != two[LABEL].digest
    assert one[LABEL].rows.tolist() == one["bank"].rows.tolist()  # here the tables are the same


def test_order_and_digest_are_what_the_format_says() -> None:
    wire = Wire()
    ids: dict[str, list[Any]] = {LABEL: ["Zoe\u0308", " 7", "x"], "bank": [7, "Zo\u00eb", "y", "z"]}
    found = aligned(ids, wire=wire)
    (body,) = wire.bodies(Kind.COMMON_ROWS)
    nonce, digest, bits = body[:32], body[32:64], body[64:]
    keys = {
        hashlib.blake2b(text.encode(), digest_size=32, key=nonce, person=b"tw align row").digest(): text
        for text in ("Zo\u00eb", "7")
    }
    assert [text_of(value) for value in common_ids(ids, found)["bank"]] == [keys[key] for key in sorted(keys)]
    preimage = b"thinwire alignment 1" + nonce + (2).to_bytes(8, "big") + b"".join(sorted(keys))
    assert hashlib.sha256(preimage).hexdigest() == digest.hex() == found["bank"].digest
    assert len(bits) == 1
    assert bits[0].bit_count() == 2


def test_a_table_that_has_changed_is_refused() -> None:
    alignment = aligned({LABEL: ["a", "b", "c"], "bank": ["b", "c"]})[LABEL]
    for other in (["a", "c", "b"], ["a", "b"], ["a", "b", "d"]):
        with pytest.raises(
            BadInput, match=rf"ids of 'shop' differ from those that were aligned on .*3 then, {len(other)} now"
        ):
            alignment.require_same_ids(normalize_ids(other))


def test_bad_ids_and_parties_are_named() -> None:
    with pytest.raises(BadInput, match="ids of 'bank': 1 row has no id: row 2"):
        intersect({LABEL: ["a"], "bank": ["a", None]}, LABEL)
    with pytest.raises(BadParameter, match="label_party 'mill' is not among the parties, shop, bank"):
        intersect({LABEL: ["a"], "bank": ["a"]}, "mill")
    with pytest.raises(BadParameter, match="at least two parties, but there is only 'shop'"):
        intersect({LABEL: ["a"]}, LABEL)
    for me, features in (("mine", ["bank"]), (LABEL, []), (LABEL, ["bank", "bank"]), ("bank", ["bank", LABEL])):
        with pytest.raises(BadParameter, match="an alignment needs distinct parties"):
            align.Conversation(me, LABEL, features, None)  # type: ignore[arg-type]
    for chunk in (0, 1.0, True, 2**21):
        with pytest.raises(BadParameter, match="chunk must be an integer"):
            RistrettoBackend(CREW, chunk)  # type: ignore[arg-type]


def test_it_needs_neither_torch_nor_grpc() -> None:
    code = "import sys, thinwire.align; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "grpc"} & set(shown.stdout.split())


class Insecure:
    """The smallest backend: the feature party sends its ids as they are."""

    name = "plain text, for this test"

    def match_as_label(self, talk: Any, ids: Any, peer_ids: Any, on_progress: Any) -> dict[str, Any]:
        mine = ids.texts(np.arange(len(ids)))
        places = {}
        for peer in peer_ids:
            theirs = talk.receive(peer, Kind.BLINDED_IDS, 0).split(b"\n")
            places[peer] = np.array([theirs.index(text) if text in theirs else -1 for text in mine])
        return places

    def match_as_feature(self, talk: Any, ids: Any, peer_ids: int, on_progress: Any) -> Any:
        order = np.arange(len(ids))[::-1]
        talk.send(talk.label_party, Kind.BLINDED_IDS, 0, b"\n".join(ids.texts(order)))
        return order


def test_another_backend_plugs_in() -> None:
    ids = {LABEL: some_ids(0, 40), "bank": some_ids(10, 30), "mill": some_ids(20, 30)}
    found = common_ids(ids, intersect(ids, LABEL, backend=Insecure()))
    assert found[LABEL] == found["bank"] == found["mill"]
    assert set(found[LABEL]) == set(some_ids(20, 20))


def test_alignments_are_compared_by_value() -> None:
    found = aligned({LABEL: ["a", "b"], "bank": ["b", "a"]})
    alignment = found[LABEL]
    values = {name: getattr(alignment, name) for name in alignment.__slots__}
    assert alignment == Alignment(**values)
    assert alignment != Alignment(**values | {"rows": alignment.rows[::-1]})
    assert alignment != Alignment(**values | {"digest": "0" * 64})
    assert alignment != found["bank"]
    assert alignment != 1
