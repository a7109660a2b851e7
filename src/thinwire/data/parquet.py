"""Columns of a Parquet file, as pyarrow reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from thinwire.data.files import require_file
from thinwire.errors import BadFile

__all__ = ["read_columns"]


def read_columns(file: Path, chosen: Callable[[Sequence[str]], Sequence[str]]) -> Any:
    """A pyarrow table of the columns that are `chosen` of those there are."""
    require_file(file)
    try:
        with pa.parquet.ParquetFile(file) as opened:
            return opened.read(columns=list(chosen(opened.schema_arrow.names)), use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise BadFile(f"{file}: not a Parquet file, or a damaged one: {error}") from None
