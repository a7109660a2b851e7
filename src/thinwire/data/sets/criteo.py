"""Criteo's display advertising challenge (2014): 13 counts, 26 hashed categories, click or not.

CELU-VFL: party A holds the categories, the label party the counts; a tenth of the rows is for testing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thinwire.data.blocks import TextStyle, table_blocks
from thinwire.data.finding import Source, find_or_fetch
from thinwire.data.hashing import Buckets
from thinwire.data.sampling import drawn
from thinwire.data.sets.fields import Labels, column_field, divided_fields, hashed_columns
from thinwire.data.sets.labels import class_labels
from thinwire.data.sets.request import Request
from thinwire.data.splits import ColumnsByPattern, Split
from thinwire.data.vertical import LABEL, VerticalData

__all__ = ["Criteo"]

COUNTS = tuple(f"I{k}" for k in range(1, 14))
CATEGORIES = tuple(f"C{k}" for k in range(1, 27))

_STYLE = TextStyle(delimiter="\t", header=("label", *COUNTS, *CATEGORIES), quoted=False)
_TEST_SHARE = 0.1


@dataclass(frozen=True)
class Criteo:
    """criteo/train.txt as published, or a Parquet or CSV file with the columns label, I1..I13, C1..C26."""

    buckets: Buckets = Buckets()
    name: str = "criteo"
    default_split: Split = ColumnsByPattern((("a", "C*"), (LABEL, "I*")))
    source: Source = Source(
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
        labels = class_labels(file, "label", ("0", "1"))
        train, test = drawn(blocks, labels, request.subset, _TEST_SHARE, self._encoded)
        fields = [column_field(name, train, test) for name in COUNTS]
        fields += [column_field(name, train, test, self.buckets.of(name)) for name in CATEGORIES]
        about = (
            f"Criteo ({file.name}), categories hashed into {self.buckets}, counts as log(1 + x) with 0 for missing "
            "ones and those below 0, test rows by a hash of the row number (a tenth)"
        )
        return divided_fields(self.name, fields, Labels(train.labels, test.labels), split, about)

    def _encoded(self, block: Any) -> Any:
        block = hashed_columns(CATEGORIES, self.buckets)(block)
        for name in COUNTS:
            counts: NDArray[np.float64] = block[name].to_numpy()
            logs = np.log1p(np.fmax(counts, 0.0)).astype(np.float32)  # a missing count is NaN, and fmax makes it 0
            block = block.set_column(block.schema.get_field_index(name), name, pa.array(logs))
        return block
