"""Avazu's click-through-rate challenge (2014): 22 categories of an advertisement's showing, click or not.

CELU-VFL: 14 fields at party A, 8 at the label party; here the 14 that say where and to whom, and C14 to C21.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from thinwire.data.blocks import table_blocks
from thinwire.data.finding import Source, find_or_fetch
from thinwire.data.hashing import Buckets
from thinwire.data.sampling import drawn
from thinwire.data.sets.fields import Labels, column_field, divided_fields, hashed_columns
from thinwire.data.sets.labels import class_labels
from thinwire.data.sets.request import Request
from thinwire.data.splits import ColumnsByCount, Split
from thinwire.data.vertical import LABEL, VerticalData

__all__ = ["Avazu"]

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
    source: Source = Source(
        "Avazu",
        "https://www.kaggle.com/c/avazu-ctr-prediction/data",
        ("avazu/train.gz",),
        "the competition's rules have to be accepted on its page first",
    )

    def load(self, split: Split, request: Request) -> VerticalData:
        places = ["avazu/train.gz", "avazu/train.csv", "avazu/train.parquet", "ctr/avazu_14k.parquet"]
        file = find_or_fetch(self.source, request.folder, places, None)
        blocks = _with_hours_of_day(table_blocks(file, (), ("click", *FIELDS)))
        labels = class_labels(file, "click", ("0", "1"))
        encode = hashed_columns(FIELDS, self.buckets)
        train, test = drawn(blocks, labels, request.subset, _TEST_SHARE, encode)
        fields = [column_field(name, train, test, self.buckets.of(name)) for name in FIELDS]
        about = (
            f"Avazu ({file.name}), every field hashed into {self.buckets}, hour as the hour of the day, "
            "test rows by a hash of the row number (a tenth)"
        )
        return divided_fields(self.name, fields, Labels(train.labels, test.labels), split, about)


def _with_hours_of_day(blocks: Iterable[Any]) -> Iterator[Any]:
    """YYMMDDHH -> HH: a date that is never seen again is no use as a category."""
    for block in blocks:
        place = block.schema.get_field_index("hour")
        hours = pc.utf8_slice_codeunits(block.column(place).cast(pa.string()), -2)
        yield block.set_column(place, "hour", hours)
