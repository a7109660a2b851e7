"""Row numbers as people write them: 0-99,250,300-."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from thinwire.errors import BadInput

__all__ = ["chosen_rows", "parsed_ranges", "ranges_text"]

RowNumbers = npt.NDArray[np.int64]


def chosen_rows(text: str, count: int) -> RowNumbers:
    """The rows of "3,10-19,90-" of a table of `count` rows, in that order; each once."""
    found: list[RowNumbers] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        if not first.isdecimal() or (last and not last.isdecimal()) or len(first) > 18 or len(last) > 18:
            raise BadInput(f"--rows {part.strip()!r}: write row numbers from 0 and ranges, such as 3,10-19,90-")
        begin = int(first)
        end = (int(last) if last else count - 1) if dash else begin
        if begin >= count or end >= count:
            raise BadInput(f"--rows {part.strip()!r}: there are {count} rows, numbered from 0 to {count - 1}")
        if end < begin:
            raise BadInput(f"--rows {part.strip()!r}: a range goes from the lower number to the higher")
        found.append(np.arange(begin, end + 1))
    rows = np.concatenate(found)
    if len(np.unique(rows)) != len(rows):
        raise BadInput(f"--rows {text!r} names a row twice")
    return rows


def ranges_text(rows: npt.NDArray[np.integer]) -> str:
    """Rows in order as few ranges: 0-99,250."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    starts, ends = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(rows)])) - 1
    pairs = zip(rows[starts].tolist(), rows[ends].tolist(), strict=True)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def parsed_ranges(text: str) -> Sequence[RowNumbers]:
    """What `ranges_text` wrote."""
    found = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.append(np.arange(int(first), int(last or first) + 1))
    return found
