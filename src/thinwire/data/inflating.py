"""A gzipped file as bytes; where it is damaged, the error says at which byte."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from thinwire.data.files import require_file
from thinwire.errors import BadInput

__all__ = ["file_bytes", "inflated"]

_PIECE = 65_536
_GZIP = 31  # zlib's word for a gzip header and 32 KiB of window


def file_bytes(file: Path) -> bytes:
    """The file's content, without its compression where it ends in .gz."""
    require_file(file)
    return b"".join(inflated(file)) if file.suffix == ".gz" else file.read_bytes()


def inflated(file: Path) -> Iterator[bytes]:
    """The content of a gzipped file, in pieces."""
    inflater = zlib.decompressobj(_GZIP)
    start = 0
    with file.open("rb") as opened:
        while piece := opened.read(_PIECE):
            if inflater.eof:
                raise BadInput(f"{file}: goes on after its end, at byte {start}")
            try:
                yield inflater.decompress(piece)
            except zlib.error as error:
                end = start + len(piece)
                raise BadInput(f"{file}: damaged between byte {start} and {end}: {error}") from None
            start += len(piece)
            if inflater.unused_data:
                raise BadInput(f"{file}: goes on after its end, at byte {start - len(inflater.unused_data)}")
    if not inflater.eof:
        raise BadInput(f"{file}: cut off at byte {start}; copy it again")
