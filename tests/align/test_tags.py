"""Tags are long enough, and are found."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.align.ids import tag_size
from thinwire.align.ristretto import Tags, find_places, find_repeat


@pytest.mark.parametrize("ids", [1, 2, 1000, 2**20, 10**6, 10**8])
@pytest.mark.parametrize("peer_ids", [1, 3, 999, 10**6, 10**8, 2**31])
def test_a_false_match_is_rarer_than_one_in_two_to_the_40(ids: int, peer_ids: int) -> None:
    size = tag_size(ids, peer_ids)
    assert Fraction(ids * peer_ids, 256**size) <= Fraction(1, 2**40)
    assert Fraction(ids * peer_ids, 256 ** (size - 1)) > Fraction(1, 2**40)  # and no byte longer
    assert size == tag_size(peer_ids, ids)


# Few values, zeros among them: numpy pads texts with zeros, which must not make two tags one.
few_tags = st.lists(st.binary(min_size=3, max_size=3).map(lambda tag: bytes(byte % 3 for byte in tag)), min_size=1)


def as_tags(tags: list[bytes]) -> Tags:
    return np.frombuffer(b"".join(tags), np.uint8).reshape(-1, 3)


@given(few_tags, few_tags)
def test_places_are_those_of_a_dictionary(tags: list[bytes], among: list[bytes]) -> None:
    among = list(dict.fromkeys(among))
    expected = {tag: place for place, tag in enumerate(among)}
    assert find_places(as_tags(tags), as_tags(among)).tolist() == [expected.get(tag, -1) for tag in tags]


@given(few_tags)
def test_a_repeated_tag_is_found(tags: list[bytes]) -> None:
    found = find_repeat(as_tags(tags))
    assert (found is None) == (len(set(tags)) == len(tags))
    if found is not None:
        assert found[0] != found[1]
        assert tags[found[0]] == tags[found[1]]
