"""Which rows are kept: the same ones for the same seed, every class in its share, from a stream as from memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from thinwire.base.errors import BadParameter
from thinwire.data.hashing import BUCKETS, Buckets, hash_codes, row_keys
from thinwire.data.prepare.settings import Settings
from thinwire.lab.datasets import sampling
from thinwire.lab.datasets.sampling import Subset, choose_rows, code_words, draw_rows, mark_test_rows, standardize


def splitmix(state: int) -> int:
    """Steele, Lea and Flood's finaliser, in Python's own integers."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def test_row_keys_are_splitmix() -> None:
    start = xxhash.xxh3_64_intdigest(b"3\x1fsubset") >> 1
    wanted = [splitmix((start + row * 0x9E3779B97F4A7C15) % 2**64) for row in (0, 1, 10**12)]
    assert row_keys(np.array([0, 1, 10**12]), 3, "subset").tolist() == wanted


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.data())
def test_every_class_has_its_share(classes: list[int], data: st.DataObject) -> None:
    labels = np.array(classes)
    rows = data.draw(st.integers(1, len(labels)))
    taken = choose_rows(labels, rows, seed=1)
    assert len(taken) == len(set(taken.tolist())) == rows
    assert (np.diff(taken) > 0).all()
    for value in set(classes):
        share = rows * (labels == value).mean()
        assert abs((labels[taken] == value).sum() - share) < 1


def test_seeds_choose_other_rows_and_one_seed_the_same() -> None:
    labels = np.arange(1000) % 3
    assert choose_rows(labels, 100, 0).tolist() == choose_rows(labels, 100, 0).tolist()
    common = set(choose_rows(labels, 100, 0).tolist()) & set(choose_rows(labels, 100, 1).tolist())
    assert len(common) < 40
    assert choose_rows(labels, None, 0).tolist() == list(range(1000))
    with pytest.raises(BadParameter, match="rows=1001, but there are only 1000"):
        choose_rows(labels, 1001, 0)


def in_blocks(labels: NDArray[np.int64], sizes: list[int]) -> list[pa.Table]:
    cuts = np.cumsum([0, *sizes])
    whole = pa.table({"label": labels, "number": np.arange(len(labels))})
    return [whole.slice(a, b - a) for a, b in zip(cuts, [*cuts[1:], len(labels)], strict=True)]


@pytest.mark.parametrize(("rows", "test_rows"), [(None, None), (50, 20), (1, 1), (700, None)])
@pytest.mark.parametrize("sizes", [[1000], [100] * 9, [1, 500, 0, 20]])
def test_a_stream_gives_what_memory_gives(
    monkeypatch: pytest.MonkeyPatch, rows: int | None, test_rows: int | None, sizes: list[int]
) -> None:
    monkeypatch.setattr(sampling, "_PENDING", 30)  # thinned out many times
    labels = (np.random.default_rng(0).random(1000) ** 2 * 3).astype(np.int64)
    parts = draw_rows(
        in_blocks(labels, sizes), lambda block, _: block["label"].to_numpy(), Subset(rows, test_rows, seed=5), 0.2
    )
    tested = mark_test_rows(np.arange(1000), 0.2)
    for part, mask, count in zip(parts, (~tested, tested), (rows, test_rows), strict=True):
        own = np.flatnonzero(mask)
        keys = row_keys(own, 5, "subset")
        quota = {value: (labels[own] == value).sum() * (count or len(own)) / len(own) for value in range(3)}
        for value in range(3):
            ordered = own[labels[own] == value][np.argsort(keys[labels[own] == value])]
            got = part.numbers[part.labels == value]
            assert abs(len(got) - quota[value]) < 1
            assert got.tolist() == sorted(ordered[: len(got)].tolist())
        assert len(part.labels) == (count or len(own))
        assert part.table["number"].to_pylist() == part.numbers.tolist()
        assert labels[part.numbers].tolist() == part.labels.tolist()


def test_a_stream_holds_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_PENDING", 1000)
    held = []

    class Watched(sampling._Draw):
        def add(self, *args: object) -> None:
            super().add(*args)  # type: ignore[arg-type]
            held.append(sum(len(part.labels) for part in self._kept))

    monkeypatch.setattr(sampling, "_Draw", Watched)
    labels = np.arange(100_000) % 2
    train, _ = draw_rows(in_blocks(labels, [500] * 199), lambda b, _: b["label"].to_numpy(), Subset(100, 10), 0.1)
    assert len(train.labels) == 100
    assert max(held) < 2500


def test_test_rows_are_the_share_asked_for_and_the_same_for_any_seed() -> None:
    tested = mark_test_rows(np.arange(100_000), 0.1)
    assert tested.mean() == pytest.approx(0.1, abs=0.005)
    assert mark_test_rows(np.arange(50_000, 100_000), 0.1).tolist() == tested[50_000:].tolist()


def test_hashed_categories_follow_from_column_and_value_alone() -> None:
    words = ["a", None, "b", "a"]
    codes = hash_codes("C1", pa.array(words), 1000)
    assert codes.tolist() == hash_codes("C1", pa.array(words).dictionary_encode(), 1000).tolist()
    assert codes.tolist() == hash_codes("C1", pa.chunked_array([words[:1], words[1:]]), 1000).tolist()
    assert codes[0] == 1 + xxhash.xxh3_64_intdigest(b"a", xxhash.xxh3_64_intdigest(b"C1")) % 999
    assert codes[1] == 0
    assert hash_codes("C2", pa.array(words), 1000)[0] != codes[0]
    assert hash_codes("C", pa.array([7]), 1000) == hash_codes("C", pa.array(["7"]), 1000)
    many = hash_codes("C", pa.array([str(k) for k in range(5000)]), 50)
    assert set(many.tolist()) == set(range(1, 50))


def test_buckets_by_column() -> None:
    buckets = Buckets(10, {"C3": 500})
    assert (buckets.of("C1"), buckets.of("C3")) == (10, 500)
    assert buckets == Buckets(10, (("C3", 500),))
    assert str(buckets) == "10 codes (500 for C3)"
    for wrong in (1, 2**24 + 1):
        with pytest.raises(BadParameter, match="must be from 2 to"):
            Buckets(wrong)
        with pytest.raises(BadParameter, match="C3 must be from 2 to"):
            Buckets(10, {"C3": wrong})


def test_numbers_are_standardised_by_the_training_rows() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.normal(5, 3, (200, 4, 2)), rng.normal(9, 1, (50, 4, 2))
    train[..., 1] = 7.0
    scaled, scaled_test = standardize(train, test)
    assert scaled[..., 0].mean() == pytest.approx(0, abs=1e-6)
    assert scaled[..., 0].std() == pytest.approx(1, abs=1e-6)
    assert (scaled[..., 1] == 0).all()
    wanted = (test[..., 0] - train[..., 0].mean()) / train[..., 0].std()
    np.testing.assert_allclose(scaled_test[..., 0], wanted, rtol=1e-5)
    train[:, 0, 0] = np.nan
    scaled, _ = standardize(train, test)
    assert np.isnan(scaled[:, 0, 0]).all()
    assert np.nanmean(scaled[..., 0]) == pytest.approx(0, abs=1e-6)


def test_words_of_the_test_rows_alone_have_no_code() -> None:
    codes, test_codes, size = code_words(pa.array(["b", "a", None, "b"]), pa.array(["c", "a", "b"]))
    assert codes.tolist() == [2, 1, 0, 2]
    assert test_codes.tolist() == [0, 1, 2]
    assert size == 3


def test_a_subset_of_nothing() -> None:
    with pytest.raises(BadParameter, match="test_rows must be 1 or more, or None for all, got 0"):
        Subset(None, 0)


@pytest.mark.parametrize("count", [BUCKETS[0] - 1, BUCKETS[-1] + 1])
def test_a_column_has_as_many_buckets_in_a_data_set_as_in_a_prepared_table(count: int) -> None:
    assert Buckets(BUCKETS[-1]).default == Settings(buckets=BUCKETS[-1]).buckets
    with pytest.raises(BadParameter, match="must be from 2 to"):
        Buckets(count)
    with pytest.raises(ValidationError, match=r"than or equal to"):
        Settings(buckets=count)
