"""Tables of numbers and words, in blocks of rows: text with any delimiter, gzipped or not, and Parquet.

Unlike `data/readers/tables.py`, which reads a party's whole file of numbers, this keeps words and gaps, and never
holds more than a block.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyarrow.types

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_gzip, require_file

_BLOCK_BYTES = 16 << 20
_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class TextStyle:
    """How a text table is written. `header` names the columns where the first line does not."""

    delimiter: str = ","
    header: tuple[str, ...] | None = None
    quoted: bool = True


def column_names(file: Path, style: TextStyle) -> tuple[str, ...]:
    """The names that the file, or the style, gives its columns."""
    require_file(file)
    if file.suffix == ".parquet":
        with _parquet(file) as opened:
            return tuple(opened.schema_arrow.names)
    if style.header is not None:
        return style.header
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            first = opened.readline(_BLOCK_BYTES).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInput(f"{file}: its first line cannot be read: {error}") from None
    return tuple(next(csv.reader([first], delimiter=style.delimiter), []))


def table_blocks(
    file: Path, numbers: Sequence[str], words: Sequence[str], style: TextStyle | None = None
) -> Iterator[Any]:
    """pyarrow tables of these columns: numbers as float64, words as they come; gaps stay null."""
    style = style or TextStyle()
    there = column_names(file, style)
    for name in (*numbers, *words):
        if name not in there:
            raise BadInput(f"{file}: there is no column {name!r}; it has {', '.join(there[:50])}")
    parquet = file.suffix == ".parquet"
    rows = 0
    for block in _parquet_blocks(file, [*numbers, *words]) if parquet else _text_blocks(file, numbers, words, style):
        yield _with_numbers(file, block, numbers)
        rows += block.num_rows
    if not rows:
        raise BadInput(f"{file} has no rows")


def _text_blocks(file: Path, numbers: Sequence[str], words: Sequence[str], style: TextStyle) -> Iterator[Any]:
    types = {
        **dict.fromkeys(numbers, pa.float64()),
        **dict.fromkeys(words, pa.string()),
    }
    zipped = file.suffix == ".gz"
    try:
        with pa.input_stream(str(file), compression="gzip" if zipped else None) as stream:
            reader = pa.csv.open_csv(
                stream,
                read_options=pa.csv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=list(style.header or ()) or None
                ),
                parse_options=pa.csv.ParseOptions(
                    delimiter=style.delimiter, quote_char='"' if style.quoted else False
                ),
                convert_options=pa.csv.ConvertOptions(
                    column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=True
                ),
            )
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except (pa.ArrowInvalid, OSError) as error:
        for _ in read_gzip(file) if zipped else ():  # says so, where the compression is what is wrong
            pass
        raise BadInput(f"{file}: {error}") from None


def _parquet_blocks(file: Path, columns: Sequence[str]) -> Iterator[Any]:
    with _parquet(file) as opened:
        try:
            for batch in opened.iter_batches(_BLOCK_ROWS, columns=list(columns), use_threads=False):
                yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{file}: a damaged Parquet file: {error}") from None


def _parquet(file: Path) -> Any:
    try:
        return pa.parquet.ParquetFile(file, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise BadInput(f"{file}: not a Parquet file, or a damaged one: {error}") from None


def _with_numbers(file: Path, block: Any, numbers: Sequence[str]) -> Any:
    for name in numbers:
        place = block.schema.get_field_index(name)
        kind = block.schema.field(place).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadInput(f"{file}: column {name!r} holds {kind}, not numbers")
        block = block.set_column(place, name, block.column(place).cast(pa.float64()))
    return block
