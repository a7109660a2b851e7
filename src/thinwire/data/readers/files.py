"""Files that are read whole: is there one at all, and what is in it, gzipped or not."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from thinwire.base.errors import BadFile

_PIECE = 1 << 20


def require_file(file: Path) -> None:
    """Refuses what cannot be opened or is empty, and says why."""
    if file.is_dir():
        raise BadFile(f"{file} is a folder, not a file")
    if not file.exists():
        raise BadFile(f"{file} does not exist; paths in a job file start from the job file's folder")
    if not os.access(file, os.R_OK):
        raise BadFile(f"{file} may not be read by this user")
    if file.stat().st_size == 0:
        raise BadFile(f"{file} is empty")


def read_bytes(file: Path) -> bytes:
    """The file's content, without its compression where it ends in .gz."""
    require_file(file)
    return b"".join(read_gzip(file)) if file.suffix == ".gz" else file.read_bytes()


def read_gzip(file: Path) -> Iterator[bytes]:
    """The content of a gzipped file, in pieces."""
    try:
        with gzip.open(file) as opened:
            while piece := opened.read(_PIECE):
                yield piece
    except EOFError:
        raise BadFile(f"{file}: cut off at byte {file.stat().st_size}; copy it again") from None
    except (OSError, zlib.error) as error:
        raise BadFile(f"{file}: damaged, or not gzipped: {error}; copy it again") from None
