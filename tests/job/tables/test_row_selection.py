"""Which rows train follows from each id alone."""

from __future__ import annotations

import hashlib
import hmac

import numpy as np
import pytest

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


def test_another_key_is_another_split() -> None:
    ours, theirs = (split_ids(IDS, SplitSection(test=0.5, key=key)) == TEST for key in ("a", "b"))
    assert np.mean(ours == theirs) == pytest.approx(0.5, abs=0.02)


def test_the_hash_is_the_one_that_is_documented() -> None:
    """HMAC-SHA256, its first 8 bytes as a fraction: other programs can follow it."""
    split = SplitSection(test=0.4, key="2024")
    for one, found in zip(IDS[:200], split_ids(IDS[:200], split), strict=True):
        share = int.from_bytes(hmac.new(b"2024", one, hashlib.sha256).digest()[:8], "big") / 2**64
        assert (found == TEST) == (share < 0.4)
