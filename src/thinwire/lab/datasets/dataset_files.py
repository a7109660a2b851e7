"""A data set's files: where they are, how to get them, and tables of numbers and words in blocks of rows.

What is known of each set stands in catalogue.toml.

A download is whole and has the published checksum, or there is none. Text may have any delimiter, gzipped or not;
unlike `data/readers/tables.py`, this keeps words and gaps, and never holds more than a block.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import tomllib
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.types
from pydantic import ConfigDict, TypeAdapter

from thinwire.base.errors import BadInput
from thinwire.data.readers.files import read_gzip, require_file
from thinwire.data.readers.tables import open_parquet
from thinwire.storage.atomic_file import stage_file

_PIECE = 1 << 20
_SILENCE_SECONDS = 30


@dataclass(frozen=True)
class Download:
    """Where a file is published, how long it is, and its MD5, which is what these publishers publish."""

    url: str
    size: int
    md5: str


def fetch(download: Download, file: Path) -> None:
    """Writes `file`, or raises and leaves nothing behind."""
    if not download.url.startswith(("https://", "http://")):
        raise BadInput(f"{download.url}: not an http address")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with stage_file(file) as part:
            with part.open("wb") as opened:
                digest = _copied(download, opened.fileno())
            if digest != download.md5:
                raise BadInput(f"{download.url}: the download has MD5 {digest}, expected {download.md5}")
    except urllib.error.HTTPError as error:
        error.close()
        raise BadInput(f"{download.url}: {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise BadInput(f"{download.url}: {getattr(error, 'reason', error)}") from None


def _copied(download: Download, out: int) -> str:
    """The MD5 of what came; never more than announced reaches the disk."""
    digest = hashlib.md5(usedforsecurity=False)
    size = 0
    with urllib.request.urlopen(download.url, timeout=_SILENCE_SECONDS) as answer:  # noqa: S310  http only: see fetch
        while piece := answer.read(_PIECE):
            size += len(piece)
            if size > download.size:
                raise BadInput(f"{download.url}: sends more than the {download.size} bytes of this file")
            os.write(out, piece)
            digest.update(piece)
    if size != download.size:
        raise BadInput(f"{download.url}: ended after {size} of {download.size} bytes")
    return digest.hexdigest()


VARIABLE = "THINWIRE_DATA"
CHECKED = ConfigDict(extra="forbid")  # for what is read from the catalogue: it has no other keys

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class DataSource:
    """Who publishes a data set, and why it is not downloaded where it is not."""

    __pydantic_config__ = CHECKED

    title: str
    page: str  # the publisher's
    files: tuple[str, ...]  # as published, each where it is looked for first
    others: tuple[str, ...] = ()  # where else to look, and for which other file, when the first one is not there
    terms: str = ""  # "" where anyone may download it

    @property
    def places(self) -> tuple[str, ...]:
        return (self.files[0], *self.others)


_CATALOGUE = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def read_catalogue(kind: type[Kind], name: str, key: str | None = None) -> Kind:
    """What the catalogue says of the data set of this name, under one key or in whole, as a value of this kind."""
    found = {"name": name, **_CATALOGUE[name]} if key is None else _CATALOGUE[name][key]
    return TypeAdapter(kind).validate_python(found)


def find_data_folder(folder: Path | None, source: DataSource) -> Path:
    """The folder that was named, else the one that THINWIRE_DATA names; without one, what has to be in it is said."""
    if folder is None and os.environ.get(VARIABLE):
        folder = Path(os.environ[VARIABLE])
    if folder is None:
        raise BadInput(
            f"no data folder: give --data DIR, folder=..., or set {VARIABLE} to one that holds {source.title}: "
            f"{', '.join(source.files)}, from {source.page}; {_why_not_downloaded(source)}"
        )
    return Path(folder)


def find(folder: Path, places: Sequence[str]) -> Path | None:
    """The first of these files or folders that is there."""
    return next((folder / place for place in places if (folder / place).exists()), None)


def find_or_fetch(source: DataSource, folder: Path, download: Download | None = None) -> Path:
    """The first of the source's places that is there; else the first one, downloaded if a download is given."""
    found = find(folder, source.places)
    if found is not None:
        return found
    if download is None:
        raise missing_file(source, folder)
    try:
        fetch(download, folder / source.files[0])
    except BadInput as error:
        raise missing_file(source, folder, f"downloading it was tried and failed: {error}") from None
    return folder / source.files[0]


def missing_file(source: DataSource, folder: Path, why: str = "") -> BadInput:
    """One message: the file, where to put it, whose it is, and why it was not downloaded."""
    wanted = folder / source.files[0]
    others = f" (or {', '.join(source.others)})" if source.others else ""
    return BadInput(
        f"{source.title}: there is no {wanted.name} in {wanted.parent}{others}. Get it from {source.page} and put it "
        f"there; {why or _why_not_downloaded(source)}"
    )


def _why_not_downloaded(source: DataSource) -> str:
    if source.terms:
        return f"thinwire does not download it: {source.terms}"
    return "it is downloaded only when asked for (download=True)"


# Tables of numbers and words, in blocks of rows: text with any delimiter, gzipped or not, and Parquet -------------


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
        with open_parquet(file) as opened:
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
    types = {**dict.fromkeys(numbers, pa.float64()), **dict.fromkeys(words, pa.string())}
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
    with open_parquet(file) as opened:
        try:
            for batch in opened.iter_batches(_BLOCK_ROWS, columns=list(columns), use_threads=False):
                yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise BadInput(f"{file}: a damaged Parquet file: {error}") from None


def _with_numbers(file: Path, block: Any, numbers: Sequence[str]) -> Any:
    for name in numbers:
        place = block.schema.get_field_index(name)
        kind = block.schema.field(place).type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise BadInput(f"{file}: column {name!r} holds {kind}, not numbers")
        block = block.set_column(place, name, block.column(place).cast(pa.float64()))
    return block
