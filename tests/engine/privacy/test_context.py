"""A context's bytes say all of it, and nothing else has the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.base.errors import BadParameter
from thinwire.engine.privacy import Context, ring_modulus
from thinwire.engine.privacy.keys import frame_values

CONTEXT = Context(7, "ab12", 3, 0, 99, ("a", "bc"), 4, 16)

# Few letters and small numbers, so that values which only differ in where a field ends do come up.
texts = st.text("ab\0\1", max_size=4)
numbers = st.integers(0, 300) | st.integers(0, 2**64 - 1)


@st.composite
def contexts(draw: st.DrawFn) -> Context:
    parties = tuple(draw(st.lists(texts, min_size=2, max_size=4, unique=True)))
    trials = draw(st.integers(1, 5) | st.integers(1, 65535))
    run, round, attempt, rows = (draw(numbers) for _ in range(4))
    return Context(run, draw(texts), round, attempt, rows, parties, trials, ring_modulus(len(parties), trials))


@given(contexts(), contexts())
def test_equal_bytes_mean_equal_contexts(one: Context, other: Context) -> None:
    assert (one.to_bytes() == other.to_bytes()) == (one == other)
    assert replace(one).to_bytes() == one.to_bytes()


@given(contexts(), contexts())
def test_every_field_is_in_the_bytes(one: Context, other: Context) -> None:
    changed = [
        replace(one, **{field: getattr(other, field)})
        for field in ("run", "recipe", "round", "attempt", "rows_digest")
    ]
    changed.append(replace(one, top=other.top, modulus=ring_modulus(len(one.parties), other.top)))
    changed.append(replace(one, parties=one.parties[::-1]))
    for context in changed:
        assert (context.to_bytes() == one.to_bytes()) == (context == one)


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_framing_shows_where_a_value_ends(one: list[str], other: list[str]) -> None:
    assert (frame_values(*one) == frame_values(*other)) == (one == other)


def test_the_bytes_are_these() -> None:
    assert CONTEXT.to_bytes().hex() == (
        "00000015" + b"thinwire secure sum 1".hex() + "00000004" + b"ab12".hex()
        # run 7, round 3, attempt 0, rows 99, trials 4, modulus 16, two parties
        + "0000000107" + "0000000103" + "00000000" + "0000000163" + "0000000104" + "0000000110" + "0000000102"
        + "00000001" + b"a".hex() + "00000002" + b"bc".hex()
    )  # fmt: skip


@pytest.mark.parametrize("parties", range(2, 13))
@pytest.mark.parametrize("trials", [1, 3, 4, 16, 64, 255, 256, 65535])
def test_the_ring_is_the_smallest_that_holds_every_sum(parties: int, trials: int) -> None:
    modulus = ring_modulus(parties, trials)
    assert modulus & (modulus - 1) == 0
    assert modulus // 2 < parties * trials + 1 <= modulus


@pytest.mark.parametrize(("parties", "bits"), [(2, (4, 6, 8, 10)), (4, (5, 7, 9, 11)), (12, (6, 8, 10, 12))])
def test_bits_a_value(parties: int, bits: tuple[int, ...]) -> None:
    assert tuple(ring_modulus(parties, trials) for trials in (4, 16, 64, 256)) == tuple(2**k for k in bits)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"run": -1}, "run must be from 0"),
        ({"round": 1.5}, "round must be an integer"),
        ({"attempt": -1}, "attempt must be from 0"),
        ({"rows_digest": 2**256}, "rows_digest must be from 0"),
        ({"top": 0}, "top must be from 1"),
        ({"parties": ("a",)}, "two different names"),
        ({"parties": ("a", "a")}, "two different names"),
        ({"modulus": 8}, "modulus must be 16 for 2 parties of integers up to 4, got 8"),
    ],
)
def test_impossible_contexts_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        replace(CONTEXT, **changes)
