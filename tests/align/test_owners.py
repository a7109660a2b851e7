"""Alignments of owners with the rows of others: one to many, against plain joins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from align.talking import LABEL, SMALL, Wire, aligned, changed_body
from thinwire import align
from thinwire.align import (
    AlignmentResult,
    AlignmentsDiffer,
    Terms,
    intersect,
    protocol,
    read_alignment,
    write_alignment,
)
from thinwire.base.errors import BadIds, BadInput, BadParameter, Malformed, ThinwireError, TooLarge, UnknownTag
from thinwire.base.types import Kind

USERS = ["ann", "bob", "cid", "dee", "eve"]
FILMS = ["x", "y", "z"]


@st.composite
def ratings(draw: st.DrawFn) -> dict[str, Any]:
    """Ratings by users of films, and the users, films and ratings that parties know."""
    count = draw(st.integers(1, 12))
    rated = {f"r{i}": (draw(st.sampled_from(USERS)), draw(st.sampled_from(FILMS))) for i in range(count)}
    known = draw(st.lists(st.sampled_from([*rated, "other"]), unique=True, min_size=1))
    users, films = (draw(st.lists(st.sampled_from(all_), unique=True, min_size=1)) for all_ in (USERS, FILMS))
    return {"rated": rated, "users": users, "films": films, "known": known}


def join(case: dict[str, Any]) -> AlignmentResult:
    rated = case["rated"]
    return intersect(
        {"people": case["users"], "studio": case["films"], "bank": case["known"], LABEL: list(rated)},
        LABEL,
        backend=SMALL,
        groups={"people": [user for user, _ in rated.values()], "studio": [film for _, film in rated.values()]},
    )


@settings(max_examples=40)
@given(ratings())
def test_it_is_the_join_in_one_order(case: dict[str, Any]) -> None:
    rated = case["rated"]
    expected = {
        rating
        for rating, (user, film) in rated.items()
        if user in case["users"] and film in case["films"] and rating in case["known"]
    }
    if not expected:
        with pytest.raises(align.NoOverlap):
            join(case)
        return
    found = join(case)
    order = [list(rated)[row] for row in found[LABEL].rows]
    assert set(order) == expected
    assert len(order) == len(expected)
    assert [case["known"][row] for row in found["bank"].rows] == order
    assert [case["users"][row] for row in found["people"].rows] == [rated[rating][0] for rating in order]
    assert [case["films"][row] for row in found["studio"].rows] == [rated[rating][1] for rating in order]
    numbers = {user: number for number, user in enumerate(dict.fromkeys(rated[rating][0] for rating in order))}
    assert found[LABEL].owners["people"].tolist() == [numbers[rated[rating][0]] for rating in order]
    assert len({one.digest for one in found.values()}) == 1


CASE: dict[str, Any] = {
    "rated": {"r1": ("ann", "x"), "r2": ("ann", "y"), "r3": ("bob", "x"), "r4": ("eve", "x")},
    "users": ["bob", "ann", "zoe"],
    "films": ["x", "y"],
    "known": ["r1", "r2", "r3", "r4"],
}


def test_a_party_of_owners_learns_of_its_own_alone() -> None:
    found = join(CASE)
    people = found["people"]
    assert people.match_count == 2
    assert people.sizes == {"people": 3, LABEL: 3}  # the label party's owners: ann, bob and eve
    assert people.pairwise is None
    assert people.owners == {}
    assert found[LABEL].pairwise == {"people": 3, "studio": 4, "bank": 4}
    sent = {e["receiver"]: e["bytes"] for e in found.ledger.entries() if e["kind"] == Kind.COMMON_ROWS.name}
    assert sent["people"] - sent["bank"] == 32 + 3 - 1  # a digest, a byte a row, and no bits


IDS: dict[str, list[Any]] = {"people": list(range(10)), LABEL: [f"r{row}" for row in range(30)]}
OWNERS = {"people": [2 + row % 6 for row in range(30)]}  # 2 to 7
HEAD = 3 * 32


def another(place: int, value: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:place] + bytes([value]) + body[place + 1 :]


def swapped(body: bytes) -> bytes:
    """Two rows with each other's owners."""
    places = list(body[HEAD:])
    other = next(place for place, owner in enumerate(places) if owner != places[0])
    places[0], places[other] = places[other], places[0]
    return body[:HEAD] + bytes(places)


TAMPERED: dict[str, tuple[Kind, int, Callable[[bytes], bytes], type[ThinwireError], str]] = {
    "greeting": (Kind.ALIGNMENT, 0, lambda body: body[:-8], UnknownTag, "owners at"),
    "more owners than ids": (Kind.ALIGNMENT, 2, another(8, 11), Malformed, "30 rows of 11 owners; at most 6"),
    "no owners": (Kind.ALIGNMENT, 2, another(8, 0), Malformed, "30 rows of 0 owners"),
    "too many rows": (Kind.ALIGNMENT, 2, another(5, 1), TooLarge, "more than this party's max_peer_ids"),
    "short": (Kind.COMMON_ROWS, 0, lambda body: body[:-1], Malformed, "of 125 bytes, expected 126"),
    "a place that is not there": (Kind.COMMON_ROWS, 0, another(HEAD, 10), Malformed, "up to number 10 of 10"),
    "fewer owners": (Kind.COMMON_ROWS, 0, lambda body: body[:HEAD] + bytes(30), Malformed, "rows of 1 owners"),
    "other owners": (Kind.COMMON_ROWS, 0, swapped, AlignmentsDiffer, "the rows of 'people' do not match"),
    "another nonce": (Kind.COMMON_ROWS, 0, another(0, 0), AlignmentsDiffer, "the rows of 'people' do not match"),
}


@pytest.mark.parametrize(("kind", "number", "change", "error", "says"), TAMPERED.values(), ids=TAMPERED.keys())
def test_a_message_that_cannot_be_is_refused(
    kind: Kind, number: int, change: Callable[[bytes], bytes], error: type[ThinwireError], says: str
) -> None:
    with pytest.raises(error, match=says):
        aligned(IDS, groups=OWNERS, changes={LABEL: changed_body(kind, change, number)})


def test_owners_of_many_rows_travel_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_ROWS_A_MESSAGE", 8)
    wire = Wire()
    found = aligned(IDS, groups=OWNERS, wire=wire)
    assert [len(body) for body in wire.bodies(Kind.COMMON_ROWS)] == [HEAD + 8, 8, 8, 6]
    owners = [OWNERS["people"][row] for row in found[LABEL].rows]
    assert [IDS["people"][row] for row in found["people"].rows] == owners


def test_too_few_owners_are_refused_before_anybody_is_told() -> None:
    with pytest.raises(align.TooLittleOverlap, match="the parties share 25 ids, too few for 'people'"):
        aligned({**IDS, "people": list(range(3, 10))}, groups=OWNERS, terms={"people": Terms(min_overlap=0.8)})


def test_the_files_come_back(tmp_path: Path) -> None:
    for name, alignment in join(CASE).items():
        write_alignment(tmp_path / name, alignment)
        assert read_alignment(tmp_path / name) == alignment


def damaged(alignment: align.Alignment) -> list[align.Alignment]:
    owners = alignment.owners["people"]
    return [
        replace(alignment, owners={}),
        replace(alignment, owners={**alignment.owners, "people": owners + 1}),
        replace(alignment, owners={**alignment.owners, "people": owners[:-1]}),
        replace(alignment, rows=np.zeros_like(alignment.rows)),
        replace(alignment, grouped=("people",)),
    ]


@pytest.mark.parametrize("place", range(5))
def test_a_file_whose_owners_cannot_be_is_refused(place: int, tmp_path: Path) -> None:
    write_alignment(tmp_path / "a", damaged(join(CASE)[LABEL])[place])
    with pytest.raises(BadInput, match="align again"):
        read_alignment(tmp_path / "a")


def test_owners_are_there_once_and_every_row_has_one() -> None:
    with pytest.raises(BadIds, match="row 4 repeats the id of row 1"):
        join({**CASE, "users": ["bob", "ann", "zoe", "bob"]})
    with pytest.raises(BadIds, match="owners of rows at 'people': 1 row has no id: row 2"):
        intersect({"people": ["ann"], LABEL: [1, 2]}, LABEL, backend=SMALL, groups={"people": ["ann", None]})
    with pytest.raises(BadParameter, match="'peple' is not a feature party"):
        intersect({"people": ["ann"], LABEL: [1, 2]}, LABEL, backend=SMALL, groups={"peple": ["ann", "ann"]})
    with pytest.raises(BadParameter, match="1 rows have an owner at 'people', and there are 2 ids"):
        intersect({"people": ["ann"], LABEL: [1, 2]}, LABEL, backend=SMALL, groups={"people": ["ann"]})
