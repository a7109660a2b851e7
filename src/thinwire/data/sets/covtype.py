"""Forest cover type (Blackard and Dean, 1999): seven kinds of forest from maps, 581,012 places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from thinwire.data.blocks import TextStyle
from thinwire.data.finding import Source
from thinwire.data.libsvm import read_libsvm
from thinwire.data.sets.tabular import TabularSet
from thinwire.data.splits import ColumnsByName

__all__ = ["COVTYPE"]

TERRAIN = (
    *("Elevation", "Aspect", "Slope", "Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology"),
    *("Horizontal_Distance_To_Roadways", "Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm"),
    "Horizontal_Distance_To_Fire_Points",
)
LAND = (*(f"Wilderness_Area{k}" for k in range(1, 5)), *(f"Soil_Type{k}" for k in range(1, 41)))
_LABEL = "Cover_Type"


def _libsvm(file: Path) -> Iterator[Any]:
    x, labels = read_libsvm(file, len(TERRAIN) + len(LAND))
    columns = {name: x[:, k].astype(np.float64) for k, name in enumerate((*TERRAIN, *LAND))}
    yield pa.table({**columns, _LABEL: labels.astype(np.int64)})


COVTYPE = TabularSet(
    name="covtype",
    source=Source(
        "Forest cover type",
        "https://archive.ics.uci.edu/dataset/31/covertype",
        ("covtype/covtype.data.gz",),
        "the publisher offers it inside an archive on its page",
    ),
    places=(
        "covtype/covtype.data.gz",
        "covtype/covtype.data",
        "covtype/covtype.bz2",
        "covtype/covtype",
        "covtype/covtype.libsvm",
        "covtype/covtype.parquet",
        "tabular/covtype.parquet",
    ),
    fields=(*TERRAIN, *LAND),
    words=(),
    indicators=LAND,
    label=(_LABEL,),
    classes=tuple("1234567"),
    default_split=ColumnsByName((("terrain", TERRAIN), ("land", LAND))),
    style=TextStyle(header=(*TERRAIN, *LAND, _LABEL)),
    other=(("", ".bz2", ".libsvm"), _libsvm),
    note=", soil and wilderness columns as 0 or 1",
)
