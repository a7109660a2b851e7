"""Which rows train follows from each id alone."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

from thinwire.align import intersect
from thinwire.job.id_table import UnmatchedRows, compare_ids
from thinwire.job.row_selection import TEST, TRAINING, VALIDATION, split_ids
from thinwire.job.schema import SplitSection

IDS = [f"customer {k}".encode() for k in range(20_000)]


def test_an_id_has_its_fate_wherever_it_stands() -> None:
    split = SplitSection(test=0.2, validation=0.1)
    whole = split_ids(IDS, split)
    some = np.random.default_rng(0).permutation(len(IDS))[:500]
    assert split_ids([IDS[row] for row in some], split).tolist() == whole[some].tolist()


def test_shares_are_kept_and_grow_from_one_end() -> None:
    found = split_ids(IDS, SplitSection(test=0.2, validation=0.1))
    assert np.mean(found == TEST) == pytest.approx(0.2, abs=0.01)
    assert np.mean(found == VALIDATION) == pytest.approx(0.1, abs=0.01)
    tests = split_ids(IDS, SplitSection(test=0.2)) == TEST
    assert (tests == (found == TEST)).all()
    assert (tests <= (split_ids(IDS, SplitSection(test=0.3)) == TEST)).all()
    assert (split_ids(IDS, SplitSection(test=0.0)) == TRAINING).all()


def test_rows_without_a_partner_are_counted_with_whoever_lacks_them() -> None:
    held = {"bank": [1, 2, 3, 4, 9], "shop": [2, 3, 4, 5], "post": [3, 4, 5, 6, 1]}
    found = compare_ids(held)
    assert found["bank"] == UnmatchedRows(3, 5, {"shop": 2, "post": 2}, 1)
    assert found["shop"] == UnmatchedRows(2, 4, {"bank": 1, "post": 1}, 0)
    told = found["bank"].describe("bank")
    assert told == (
        "bank: 3 of 5 rows have no match at the other parties and get no score (ids: 2 missing at shop, 2 missing "
        "at post, 1 held only by bank)"
    )
    assert compare_ids({"bank": [1, 2], "shop": [2, 1]})["bank"] == UnmatchedRows(0, 2, {}, 0)


def test_a_party_knows_who_lacks_its_ids_as_far_as_the_alignment_says() -> None:
    held = {"bank": ["1", "2", "3", "4", "9"], "shop": ["2", "3", "4", "5"]}
    two = {name: UnmatchedRows.outside_alignment(one) for name, one in intersect(held, "shop", workers=1).items()}
    assert two == {"bank": UnmatchedRows(2, 5, {"shop": 2}, 2), "shop": UnmatchedRows(1, 4, {"bank": 1}, 1)}
    three = intersect({**held, "post": ["3", "4", "5", "6", "1"]}, "shop", workers=1)
    among = {name: UnmatchedRows.outside_alignment(one) for name, one in three.items()}
    assert among["bank"] == UnmatchedRows(3, 5, {}, None)
    assert "missing at another party; an alignment does not tell which" in among["bank"].describe("bank")
    known = UnmatchedRows(2, 4, {"bank": 1, "post": 1}, None)
    assert among["shop"] == known, "the label party learns how many ids it shares with each"
    assert among["shop"] + UnmatchedRows(1, 5, {"bank": 1}, 1) == UnmatchedRows(3, 9, {"bank": 2, "post": 1}, None)


def test_another_key_is_another_split() -> None:
    ours, theirs = (split_ids(IDS, SplitSection(test=0.5, key=key)) == TEST for key in ("a", "b"))
    assert np.mean(ours == theirs) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    "key", ["2024", "a key that is longer than a block of the hash, which are 64 bytes, is hashed"]
)
def test_the_hash_is_the_one_that_is_documented(key: str) -> None:
    """HMAC-SHA256, its first 8 bytes as a fraction: other programs can follow it."""
    split = SplitSection(test=0.4, key=key)
    for one, found in zip(IDS[:200], split_ids(IDS[:200], split), strict=True):
        share = int.from_bytes(hmac.new(key.encode(), one, hashlib.sha256).digest()[:8], "big") / 2**64
        assert (found == TEST) == (share < 0.4)
