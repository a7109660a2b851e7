"""Click-through-rate challenges: Avazu and Criteo (both 2014). CELU-VFL gives party A the categories or most fields.

Avazu: 22 categories of an advertisement's showing, click or not: 14 fields at party A, those that say where and to
whom, and C14 to C21 at the label party. Criteo: 13 counts, 26 hashed categories, click or not: party A holds the
categories, the label party the counts; a tenth of the rows is for testing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from thinwire.data.hashing import Buckets
from thinwire.lab.datasets.dataset_files import DataSource, TextStyle, find_or_fetch, table_blocks
from thinwire.lab.datasets.fields import column_hasher, label_reader, make_field, split_fields
from thinwire.lab.datasets.sampling import draw_rows
from thinwire.lab.datasets.vertical import LABEL, ColumnsByCount, ColumnsByPattern, Request, Split, VerticalData

FIELDS = (
    *("hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{k}" for k in range(14, 22)),
)
_TEST_SHARE = 0.1


@dataclass(frozen=True)
class Avazu:
    """avazu/train.gz as published, train.csv, or a Parquet file with the same columns."""

    buckets: Buckets = Buckets()
    name: str = "avazu"
    default_split: Split = ColumnsByCount((14, 8), ("a", LABEL))
    source: DataSource = DataSource(
        "Avazu",
        "https://www.kaggle.com/c/avazu-ctr-prediction/data",
        ("avazu/train.gz",),
        "the competition's rules have to be accepted on its page first",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        places = ["avazu/train.gz", "avazu/train.csv", "avazu/train.parquet", "ctr/avazu_14k.parquet"]
        file = find_or_fetch(self.source, request.folder, places, None)
        blocks = _with_hours_of_day(table_blocks(file, (), ("click", *FIELDS)))
        labels = label_reader(file, "click", ("0", "1"))
        encode = column_hasher(FIELDS, self.buckets)
        train, test = draw_rows(blocks, labels, request.subset, _TEST_SHARE, encode)
        fields = [make_field(name, train, test, self.buckets.of(name)) for name in FIELDS]
        about = (
            f"Avazu ({file.name}), every field hashed into {self.buckets}, hour as the hour of the day, "
            "test rows by a hash of the row number (a tenth)"
        )
        return split_fields(self.name, fields, (train.labels, test.labels), split, about)


def _with_hours_of_day(blocks: Iterable[Any]) -> Iterator[Any]:
    """YYMMDDHH -> HH: a date that is never seen again is no use as a category."""
    for block in blocks:
        place = block.schema.get_field_index("hour")
        hours = pc.utf8_slice_codeunits(block.column(place).cast(pa.string()), -2)
        yield block.set_column(place, "hour", hours)


COUNTS = tuple(f"I{k}" for k in range(1, 14))
CATEGORIES = tuple(f"C{k}" for k in range(1, 27))

_STYLE = TextStyle(delimiter="\t", header=("label", *COUNTS, *CATEGORIES), quoted=False)


@dataclass(frozen=True)
class Criteo:
    """criteo/train.txt as published, or a Parquet or CSV file with the columns label, I1..I13, C1..C26."""

    buckets: Buckets = Buckets()
    name: str = "criteo"
    default_split: Split = ColumnsByPattern((("a", "C*"), (LABEL, "I*")))
    source: DataSource = DataSource(
        "Criteo",
        "https://ailab.criteo.com/ressources/",
        ("criteo/train.txt",),
        "the publisher's terms have to be accepted on its page first",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        places = ["criteo/train.txt", "criteo/train.txt.gz", "criteo/train.csv", "criteo/train.parquet"]
        file = find_or_fetch(self.source, request.folder, [*places, "ctr/criteo_22k_dev.parquet"], None)
        style = _STYLE if ".txt" in file.suffixes else TextStyle()
        blocks = table_blocks(file, COUNTS, ("label", *CATEGORIES), style)
        labels = label_reader(file, "label", ("0", "1"))
        train, test = draw_rows(blocks, labels, request.subset, _TEST_SHARE, self._encoded)
        fields = [make_field(name, train, test) for name in COUNTS]
        fields += [make_field(name, train, test, self.buckets.of(name)) for name in CATEGORIES]
        about = (
            f"Criteo ({file.name}), categories hashed into {self.buckets}, counts as log(1 + x) with 0 for missing "
            "ones and those below 0, test rows by a hash of the row number (a tenth)"
        )
        return split_fields(self.name, fields, (train.labels, test.labels), split, about)

    def _encoded(self, block: Any) -> Any:
        block = column_hasher(CATEGORIES, self.buckets)(block)
        for name in COUNTS:
            counts: NDArray[np.float64] = block[name].to_numpy()
            logs = np.log1p(np.fmax(counts, 0.0)).astype(np.float32)  # a missing count is NaN, and fmax makes it 0
            block = block.set_column(block.schema.get_field_index(name), name, pa.array(logs))
        return block
