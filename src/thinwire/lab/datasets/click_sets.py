"""Who clicked on what, who liked what: Avazu and Criteo (both 2014), and MovieLens-1M (Harper and Konstan, 2015).

Avazu: 22 categories of an advertisement's showing, click or not: 14 fields at party A, those that say where and to
whom, and C14 to C21 at the label party. Criteo: 13 counts, 26 hashed categories, click or not: party A holds the
categories, the label party the counts. Both as CELU-VFL has it. MovieLens: a film is liked that is rated 4 or 5; the
users' fields are at one party, the films' fields and the ratings at the label party. A tenth of the rows is for
testing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from thinwire.base.errors import BadInput
from thinwire.data.hashing import Buckets, hash_codes
from thinwire.data.readers.files import read_bytes
from thinwire.lab.datasets.dataset_files import DataSource, TextStyle, find_or_fetch, read_catalogue, table_blocks
from thinwire.lab.datasets.sampling import RowSample, code_words, draw_rows
from thinwire.lab.datasets.vertical import (
    LABEL,
    ColumnsByCount,
    ColumnsByName,
    ColumnsByPattern,
    Field,
    Request,
    Split,
    VerticalData,
    label_reader,
    split_fields,
)

_TEST_SHARE = 0.1


@dataclass(frozen=True)
class ClickLog:
    """One table of counts and categories: categories are hashed, counts become log(1 + x)."""

    buckets: Buckets = Buckets()

    name: ClassVar[str]
    source: ClassVar[DataSource]
    default_split: ClassVar[Split]
    label: ClassVar[str]
    counts: ClassVar[tuple[str, ...]] = ()
    categories: ClassVar[tuple[str, ...]]
    coding: ClassVar[str]  # in words, for reports

    def load(self, split: Split, request: Request) -> VerticalData:
        file = find_or_fetch(self.source, request.folder)
        header = (self.label, *self.counts, *self.categories)
        style = TextStyle(delimiter="\t", header=header, quoted=False) if ".txt" in file.suffixes else TextStyle()
        blocks = table_blocks(file, self.counts, (self.label, *self.categories), style)
        labels = label_reader(file, self.label, ("0", "1"))
        train, test = draw_rows(blocks, labels, request.subset, _TEST_SHARE, self.encode)
        sizes = {**dict.fromkeys(self.counts, 0), **{name: self.buckets.of(name) for name in self.categories}}
        fields = [
            Field(name, train.table[name].to_numpy(), test.table[name].to_numpy(), size)
            for name, size in sizes.items()
        ]
        about = (
            f"{self.source.title} ({file.name}), {self.coding.format(self.buckets)}, test rows by a hash of the row "
            "number (a tenth)"
        )
        return split_fields(self.name, fields, (train.labels, test.labels), split, about)

    def encode(self, block: Any) -> Any:
        """A block's words as their codes, and its counts as their logarithms."""
        for name in self.categories:
            block = _replace(block, name, pa.array(hash_codes(name, block[name], self.buckets.of(name))))
        for name in self.counts:
            counts: NDArray[np.float64] = block[name].to_numpy()
            logs = np.log1p(np.fmax(counts, 0.0)).astype(np.float32)  # a missing count is NaN, and fmax makes it 0
            block = _replace(block, name, pa.array(logs))
        return block


class Avazu(ClickLog):
    """avazu/train.gz as published, train.csv, or a Parquet file with the same columns."""

    name = "avazu"
    source = read_catalogue(DataSource, "avazu", "source")
    default_split = ColumnsByCount((14, 8), ("a", LABEL))
    label = "click"
    categories = read_catalogue(tuple[str, ...], "avazu", "fields")
    coding = "every field hashed into {}, hour as the hour of the day"

    def encode(self, block: Any) -> Any:
        """YYMMDDHH -> HH: a date that is never seen again is no use as a category."""
        hours = pc.utf8_slice_codeunits(block["hour"].cast(pa.string()), -2)
        return super().encode(_replace(block, "hour", hours))


class Criteo(ClickLog):
    """criteo/train.txt as published, or a Parquet or CSV file with the columns label, I1..I13, C1..C26."""

    name = "criteo"
    source = read_catalogue(DataSource, "criteo", "source")
    default_split = ColumnsByPattern((("a", "C*"), (LABEL, "I*")))
    label = "label"
    counts = tuple(f"I{k}" for k in range(1, 14))
    categories = tuple(f"C{k}" for k in range(1, 27))
    coding = "categories hashed into {}, counts as log(1 + x) with 0 for missing ones and those below 0"


def _replace(block: Any, name: str, column: Any) -> Any:
    return block.set_column(block.schema.get_field_index(name), name, column)


# MovieLens: three tables, of ratings, users and films -------------------------------------------------------------


USER_FIELDS = ("user_id", "gender", "age", "occupation", "zip_code")
ITEM_FIELDS = ("item_id", "release_year", "genre")
GENRES = read_catalogue(tuple[str, ...], "movielens", "genres")
_HASHED = ("user_id", "item_id", "zip_code")  # the others have few values, and a vocabulary
_LIKED = 4

Places: TypeAlias = NDArray[np.int32]


class _Tables(NamedTuple):
    ratings: Iterator[Any]
    users: Any
    items: Any  # with genre as words with spaces between
    files: tuple[Path, Path, Path]


@dataclass(frozen=True)
class MovieLens:
    """ml-1m/{ratings,users,movies}.dat as published, or the compact Parquet files."""

    buckets: Buckets = Buckets(16_384, {"user_id": 65_536, "item_id": 32_768})
    name: str = "movielens"
    default_split: Split = ColumnsByName((("users", USER_FIELDS), (LABEL, ITEM_FIELDS)))
    source: DataSource = read_catalogue(DataSource, "movielens", "source")

    def load(self, split: Split, request: Request) -> VerticalData:
        tables = _tables(find_or_fetch(self.source, request.folder))
        ids = (tables.users["user_id"], tables.items["item_id"])
        blocks = (_places(block, tables.files, *ids) for block in tables.ratings)
        train, test = draw_rows(blocks, _liked(tables.files[0]), request.subset, _TEST_SHARE)
        users, items = _rated("user_id", train, test), _rated("item_id", train, test)
        genres = _genres(tables)
        fields = [
            *(self._field(name, tables.users[name], users) for name in USER_FIELDS),
            *(self._field(name, tables.items[name], items) for name in ITEM_FIELDS[:-1]),
            Field("genre", genres[items[0]], genres[items[1]]),
        ]
        about = (
            f"MovieLens-1M ({tables.files[0].name}), liked = rating 4 or 5, ids and zip codes hashed into "
            f"{self.buckets}, 18 genres as 0 or 1, time left out, test rows by a hash of the row number (a tenth)"
        )
        return split_fields(self.name, fields, (train.labels, test.labels), split, about)

    def _field(self, name: str, values: Any, rated: tuple[Places, Places]) -> Field:
        """A user's or film's code for every rating."""
        if name in _HASHED:
            buckets = self.buckets.of(name)
            codes = hash_codes(name, values, buckets)
            return Field(name, codes[rated[0]], codes[rated[1]], buckets)
        train, test = (values.dictionary_encode().take(pa.array(rows)) for rows in rated)
        return Field(name, *code_words(train, test))


def _tables(ratings: Path) -> _Tables:
    if ratings.suffix == ".dat":
        return _official(ratings, *(ratings.with_name(name) for name in ("users.dat", "movies.dat")))
    users, items = (ratings.with_name(name) for name in ("ml1m_user.parquet", "ml1m_item.parquet"))
    return _Tables(
        table_blocks(ratings, ("rating",), ("user_id", "item_id")),
        pa.concat_tables(table_blocks(users, (), USER_FIELDS)),
        pa.concat_tables(table_blocks(items, (), ITEM_FIELDS)),
        (ratings, users, items),
    )


def _rated(key: str, train: RowSample, test: RowSample) -> tuple[Places, Places]:
    """The user's or film's place in its table, for every rating."""
    return train.table[key].to_numpy(), test.table[key].to_numpy()


def _places(block: Any, files: tuple[Path, Path, Path], users: Any, items: Any) -> Any:
    """Ids as row numbers in the tables of users and films."""
    columns = {"rating": block["rating"]}
    for key, there, file in (("user_id", users, files[1]), ("item_id", items, files[2])):
        asked = block[key].cast(there.type)
        found = pc.index_in(asked, value_set=there.combine_chunks())
        if found.null_count:
            unknown = asked[pc.is_null(found).index(True).as_py()].as_py()
            raise BadInput(f"{files[0]}: rates {key} {unknown!r}, which is not in {file.name}")
        columns[key] = found
    return pa.table(columns)


def _liked(file: Path) -> Any:
    def labels(block: Any, start: int) -> NDArray[np.int64]:
        ratings: NDArray[np.float64] = block["rating"].to_numpy()
        wrong = ~np.isin(ratings, (1, 2, 3, 4, 5))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BadInput(f"{file}: row {start + row + 1} holds rating {ratings[row]}; there are 1 to 5")
        return (ratings >= _LIKED).astype(np.int64)

    return labels


def _genres(tables: _Tables) -> NDArray[np.float32]:
    """[films, genres], 1 where a film is of a genre."""
    there = np.zeros((tables.items.num_rows, len(GENRES)), dtype=np.float32)
    for row, words in enumerate(tables.items["genre"].to_pylist()):
        for word in (words or "").split():
            if word not in GENRES:
                raise BadInput(f"{tables.files[2]}: row {row + 1} has the genre {word!r}, which MovieLens-1M has not")
            there[row, GENRES.index(word)] = 1
    return there


# As published: lines with :: between fields, in Latin-1 -----------------------------------------------------


def _official(ratings: Path, users: Path, movies: Path) -> _Tables:
    films = _dat(movies, ("item_id", "title", "genre"))
    years = pc.struct_field(pc.extract_regex(films["title"], r"\((?P<year>\d{4})\)\s*$"), "year")
    genres = pc.replace_substring(films["genre"], "|", " ")
    return _Tables(
        iter([_dat(ratings, ("user_id", "item_id", "rating", "timestamp"), rating=pa.float64())]),
        _dat(users, ("user_id", "gender", "age", "occupation", "zip_code")),
        pa.table({"item_id": films["item_id"], "release_year": years, "genre": genres}),
        (ratings, users, movies),
    )


def _dat(file: Path, names: Sequence[str], **types: Any) -> Any:
    """A table of words, but for the columns whose types are given."""
    text = read_bytes(file).replace(b"::", b"\t")
    try:
        return pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(column_names=list(names), encoding="latin1", use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=pa.csv.ConvertOptions(column_types={**dict.fromkeys(names, pa.string()), **types}),
        )
    except pa.ArrowInvalid as error:
        raise BadInput(f"{file}: {error}") from None
