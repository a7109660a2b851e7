"""Advertisements and films: what is published and what is compact give the same tensors, and models take them."""

from __future__ import annotations

import gzip
import math
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lab.datasets.layouts import AVAZU_HEADER, MOVIES, RATINGS, avazu_rows, criteo_lines, movielens, table, written
from thinwire.base.errors import BadInput, BadParameter
from thinwire.data.hashing import Buckets
from thinwire.engine.models import DeepTower, WideAndDeep
from thinwire.lab.datasets import Avazu, Criteo, MovieLens, load_split
from thinwire.lab.datasets.vertical import ColumnsByCount, ColumnsByName, Quadrants, VerticalData

COUNTS = [f"I{k}" for k in range(1, 14)]
WORDS = [f"C{k}" for k in range(1, 27)]


def same(one: VerticalData, other: VerticalData) -> bool:
    tensors = [
        [*data.features, *data.test_features, data.labels, data.test_labels, data.label_features]
        for data in (one, other)
    ]
    return one.categories == other.categories and all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(*tensors, strict=True)
    )


def parquet(file: Path, header: list[str], rows: list[list[object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[k] for row in rows] for k, name in enumerate(header)}
    pq.write_table(pa.table(columns), file)


# Criteo ---------------------------------------------------------------------------------------------------


def typed(row: list[str]) -> list[object]:
    return [int(row[0]), *(int(x) if x else None for x in row[1:14]), *(x or None for x in row[14:])]


def test_criteo_as_published_gzipped_and_compact_are_the_same(tmp_path: Path) -> None:
    rows = criteo_lines(400)
    text = table(None, rows, "\t")
    written(tmp_path / "a" / "criteo" / "train.txt", text)
    written(tmp_path / "b" / "criteo" / "train.txt.gz", gzip.compress(text.encode()))
    parquet(tmp_path / "c" / "ctr" / "criteo_22k_dev.parquet", ["label", *COUNTS, *WORDS], [typed(r) for r in rows])
    header = ["label", *COUNTS, *WORDS]
    written(tmp_path / "d" / "criteo" / "train.csv", table(header, rows))
    first, *others = (load_split("criteo", folder=tmp_path / one) for one in "abcd")
    assert all(same(first, other) for other in others)
    assert len(first.labels) + len(first.test_labels) == 400
    assert 15 < len(first.test_labels) < 75


def test_criteo_by_hand(tmp_path: Path) -> None:
    rows = criteo_lines(300)
    written(tmp_path / "criteo" / "train.txt", table(None, rows, "\t"))
    data = load_split("criteo", folder=tmp_path)
    assert data.names == ("a",)
    assert data.categories == {"a": (1000,) * 26}
    assert data.features[0].shape[1] == 26
    assert data.label_features is not None
    # Rows stay in the file's order, so counts find their row back.
    logs = [tuple(math.log1p(max(int(x), 0)) if x else 0.0 for x in row[1:14]) for row in rows]
    found = 0
    for k, values in enumerate(logs):
        if found < len(data.labels) and torch.allclose(data.label_features[found], torch.tensor(values)):
            assert data.labels[found] == int(rows[k][0])
            zeros = [x == "" for x in rows[k][14:]]
            assert (data.features[0][found] == 0).tolist() == zeros
            found += 1
    assert found == len(data.labels)


def test_criteo_and_the_models(tmp_path: Path) -> None:
    written(tmp_path / "criteo" / "train.txt", table(None, criteo_lines(100), "\t"))
    data = load_split(Criteo(Buckets(20, {"C2": 500})), folder=tmp_path)
    assert data.categories["a"] == (20, 500, *(20,) * 24)
    assert DeepTower(data.categories["a"], 0, 4, [8], 16)(data.features[0]).shape[1] == 16
    assert data.label_features is not None
    assert WideAndDeep(None, 13, 4, [8], 16)(data.label_features).shape[1] == 17
    mixed = load_split("criteo", ColumnsByName({"a": ["I1", "C5", "I2", "C6"]}), tmp_path)
    assert mixed.features[0][:, :2].frac().abs().max() == 0  # codes come first
    assert mixed.categories == {"a": (1000, 1000)}
    assert mixed.label_features is None
    assert "without I3, " in mixed.about
    assert DeepTower(mixed.categories["a"], 2, 4, [8], 16)(mixed.features[0]).shape[1] == 16


def test_a_subset_of_criteo_does_not_depend_on_how_it_is_stored(tmp_path: Path) -> None:
    rows = criteo_lines(400)
    written(tmp_path / "a" / "criteo" / "train.txt", table(None, rows, "\t"))
    parquet(tmp_path / "b" / "criteo" / "train.parquet", ["label", *COUNTS, *WORDS], [typed(r) for r in rows])
    one, other = (load_split("criteo", folder=tmp_path / x, rows=80, test_rows=12, seed=4) for x in "ab")
    assert same(one, other)
    whole = load_split("criteo", folder=tmp_path / "a")
    assert abs(int(one.labels.sum()) - 80 * whole.labels.float().mean().item()) < 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-40], "train.txt: CSV parse error: Row #50: Expected 40 columns, got"),
        (lambda text: text.replace("\t", "\tx", 1), "conversion error to double: invalid value 'x"),
        (lambda text: "2" + text[1:], "row 1, column 'label' holds '2'; a label is one of 0, 1"),
        (lambda text: text + "\t" * 39 + "\n", "row 51, column 'label' holds None"),
        (lambda text: text[:0], "is empty"),
    ],
)
def test_damaged_criteo(tmp_path: Path, change: object, message: str) -> None:
    rows = criteo_lines(50)
    rows[0][1] = "5"
    text = table(None, rows, "\t")
    written(tmp_path / "criteo" / "train.txt", change(text))  # type: ignore[operator]
    with pytest.raises(BadInput, match=re.escape(message)) as refused:
        load_split("criteo", folder=tmp_path)
    assert "train.txt" in str(refused.value)


def test_a_cut_off_gzip_names_the_byte(tmp_path: Path) -> None:
    packed = gzip.compress(table(None, criteo_lines(500), "\t").encode())
    written(tmp_path / "criteo" / "train.txt.gz", packed[: len(packed) // 2])
    with pytest.raises(BadInput, match=rf"train.txt.gz: truncated at byte {len(packed) // 2}"):
        load_split("criteo", folder=tmp_path)
    written(tmp_path / "criteo" / "train.txt.gz", b"not gzipped at all")
    with pytest.raises(BadInput, match=r"train.txt.gz: damaged, or not gzip-compressed: Not a gzipped file"):
        load_split("criteo", folder=tmp_path)


def test_a_table_without_a_column(tmp_path: Path) -> None:
    written(tmp_path / "criteo" / "train.csv", "label,I1\n0,1\n")
    with pytest.raises(BadInput, match=r"there is no column 'I2'; it has label, I1"):
        load_split("criteo", folder=tmp_path)
    written(tmp_path / "criteo" / "train.csv", ",".join(["label", *COUNTS, *WORDS]) + "\n")
    with pytest.raises(BadInput, match=r"train.csv has no rows"):
        load_split("criteo", folder=tmp_path)


def test_counts_that_are_words(tmp_path: Path) -> None:
    rows = [typed(row) for row in criteo_lines(10)]
    for row in rows:
        row[3] = "three"
    parquet(tmp_path / "criteo" / "train.parquet", ["label", *COUNTS, *WORDS], rows)
    with pytest.raises(BadInput, match="column 'I3' holds string, not numbers"):
        load_split("criteo", folder=tmp_path)
    written(tmp_path / "criteo" / "train.parquet", b"PAR1 not really PAR1")
    with pytest.raises(BadInput, match="not a Parquet file, or damaged"):
        load_split("criteo", folder=tmp_path)


# Avazu ----------------------------------------------------------------------------------------------------


def test_avazu_as_published_and_compact_are_the_same(tmp_path: Path) -> None:
    rows = avazu_rows(300)
    text = table(AVAZU_HEADER, rows)
    written(tmp_path / "a" / "avazu" / "train.gz", gzip.compress(text.encode()))
    written(tmp_path / "b" / "avazu" / "train.csv", text)
    parquet(tmp_path / "c" / "ctr" / "avazu_14k.parquet", AVAZU_HEADER, rows)
    first, *others = (load_split("avazu", folder=tmp_path / one) for one in "abc")
    assert all(same(first, other) for other in others)
    assert first.features[0].shape[1] == 14
    assert first.label_features is not None
    assert first.label_features.shape[1] == 8
    assert first.categories == {"a": (1000,) * 14, "label": (1000,) * 8}


def test_avazu_knows_the_hour_of_the_day_only(tmp_path: Path) -> None:
    rows = avazu_rows(240)
    other_day = [[*row[:2], row[2] + 100, *row[3:]] for row in rows]
    for name, some in (("a", rows), ("b", other_day)):
        written(tmp_path / name / "avazu" / "train.csv", table(AVAZU_HEADER, some))
    one, other = (load_split(Avazu(Buckets(5000)), folder=tmp_path / name) for name in "ab")
    assert same(one, other)
    assert len(one.features[0][:, 0].unique()) == 24


# MovieLens ------------------------------------------------------------------------------------------------


def test_movielens_by_hand(tmp_path: Path) -> None:
    movielens(tmp_path / "ml-1m")
    data = load_split("movielens", folder=tmp_path)
    assert data.names == ("users",)
    ratings = [line.split("::") for line in RATINGS.splitlines()]
    assert len(data.labels) + len(data.test_labels) == len(ratings)
    assert data.label_features is not None
    assert data.categories == {"users": (65536, 3, 4, 4, 16384), "label": (32768, 3)}
    users, items = data.features[0], data.label_features
    assert len(users.unique(dim=0)) == 3
    assert len(items.unique(dim=0)) == 4
    # 60 rows are one cycle of users, films and ratings: the label must follow from both and the row.
    liked = sum(int(rating) >= 4 for _, _, rating, _ in ratings)
    assert int(data.labels.sum() + data.test_labels.sum()) == liked
    genres = items[:, 2:].unique(dim=0).sum(dim=1)
    assert sorted(genres.tolist()) == [2, 3, 3, 3]
    assert DeepTower(data.categories["label"], 18, 4, [8], 16)(items[:9]).shape == (9, 16)


def test_every_rating_has_its_user_film_and_label(tmp_path: Path) -> None:
    """A film's year, a user's age and the rating are made to say the same thing."""
    users = "".join(f"{k}::M::{k}::0::{k}\n" for k in range(1, 6))
    movies = "".join(f"{k}::Film {k} ({1990 + k})::Drama\n" for k in range(1, 6))
    ratings = "".join(f"{k}::{k}::{k}::0\n" for k in (1, 2, 3, 4, 5, 5, 4, 2, 1, 3) * 20)
    for name, text in (("users", users), ("movies", movies), ("ratings", ratings)):
        written(tmp_path / "movielens" / f"{name}.dat", text)
    split = ColumnsByName({"users": ["age"], "label": ["release_year"]})
    data = load_split("movielens", split, tmp_path)
    assert data.label_features is not None
    assert torch.equal(data.features[0], data.label_features)  # both vocabularies count up
    assert torch.equal(data.labels, (data.features[0][:, 0] >= 4).long())


def test_movielens_published_and_compact_agree_but_for_ids(tmp_path: Path) -> None:
    movielens(tmp_path / "a" / "ml-1m")
    ratings = [line.split("::") for line in RATINGS.splitlines()]
    films = [line.split("::") for line in MOVIES.splitlines()]
    titles = {film: title for film, title, _ in films}
    parquet(
        tmp_path / "b" / "ctr" / "ml1m_inter.parquet",
        ["user_id", "item_id", "rating", "timestamp"],
        [[f"1m_{user}", titles[film], int(rating), int(time)] for user, film, rating, time in ratings],
    )
    parquet(
        tmp_path / "b" / "ctr" / "ml1m_user.parquet",
        ["user_id", "age", "gender", "occupation", "zip_code"],
        [["1m_1", 1, "F", 10, "48067"], ["1m_2", 56, "M", 16, "70072"], ["1m_3", 25, "M", 15, "55117"]],
    )
    parquet(
        tmp_path / "b" / "ctr" / "ml1m_item.parquet",
        ["item_id", "movie_title", "release_year", "genre"],
        [[title, title[:-7], int(title[-5:-1]), genres.replace("|", " ")] for _, title, genres in films],
    )
    split = ColumnsByName({"users": ["gender", "age", "occupation", "zip_code"], "label": ["release_year", "genre"]})
    assert same(load_split("movielens", split, tmp_path / "a"), load_split("movielens", split, tmp_path / "b"))
    both = [load_split("movielens", folder=tmp_path / one).features[0][:, 0] for one in "ab"]
    assert [len(ids.unique()) for ids in both] == [3, 3]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("ratings.dat", RATINGS + "9::1::5::0\n", "rates user_id '9', which is not in users.dat"),
        ("ratings.dat", RATINGS + "1::77::5::0\n", "rates item_id '77', which is not in movies.dat"),
        ("ratings.dat", RATINGS + "1::1::6::0\n", "row 601 holds rating 6.0; there are 1 to 5"),
        (
            "ratings.dat",
            RATINGS + "1::1::good::0\n",
            "Row #601: CSV conversion error to double: invalid value 'good'",
        ),
        ("ratings.dat", RATINGS + "1::1\n", "ratings.dat: CSV parse error"),
        ("movies.dat", MOVIES.replace("Drama", "Manga"), "row 2 has the genre 'Manga'"),
        ("users.dat", "", "users.dat is empty"),
    ],
)
def test_damaged_movielens(tmp_path: Path, file: str, text: str, message: str) -> None:
    movielens(tmp_path / "ml-1m")
    written(tmp_path / "ml-1m" / file, text.encode("latin-1"))
    with pytest.raises(BadInput, match=re.escape(message)):
        load_split("movielens", folder=tmp_path)


def test_other_buckets_and_splits_that_do_not_fit(tmp_path: Path) -> None:
    movielens(tmp_path / "ml-1m")
    data = load_split(replace(MovieLens(), buckets=Buckets(50)), folder=tmp_path)
    assert data.categories["users"][0] == data.categories["label"][0] == 50
    with pytest.raises(BadParameter, match=r"movielens: Quadrants\(\) cuts pictures; use ColumnsByCount"):
        load_split("movielens", Quadrants(), tmp_path)
    with pytest.raises(BadParameter, match=r"4 \+ 3 = 7 fields, the data set has 8"):
        load_split("movielens", ColumnsByCount((4, 3)), tmp_path)
