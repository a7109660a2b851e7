"""Columns by name, by pattern, or all but some."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path

from thinwire.errors import BadColumn

__all__ = ["listed", "wanted"]

_PATTERN = "*?["


def wanted(
    file: Path | str, names: Sequence[str], columns: Sequence[str] | None, all_but: Sequence[str] = ()
) -> tuple[str, ...]:
    """Which columns to read: those named, in that order, or all; without those of `all_but`.

    A name with *, ? or [ is a pattern, unless a column is called so.
    """
    left_out = {name for one in all_but for name in _fitting(file, names, one)}
    if columns is None:
        found = [name for name in names if name not in left_out]
    else:
        plain = [one for one in columns if one in names or not _is_pattern(one)]
        if len(set(plain)) != len(plain):
            raise BadColumn(f"{file}: columns names one column twice: {', '.join(plain)}")
        every = [name for one in columns for name in _fitting(file, names, one)]
        found = [name for name in dict.fromkeys(every) if name not in left_out]
    if not found:
        raise BadColumn(f"{file}: no column is left to read")
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:8]))
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"


def _fitting(file: Path | str, names: Sequence[str], asked: str) -> list[str]:
    if asked in names:
        return [asked]
    found = [name for name in names if _is_pattern(asked) and fnmatchcase(name, asked)]
    if not found:
        what = f"no column fits {asked!r}" if _is_pattern(asked) else f"there is no column {asked!r}"
        near = get_close_matches(asked, names, n=1) or get_close_matches(asked.lower(), names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise BadColumn(f"{file}: {what}, it has {listed(names)}{hint}")
    return found


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in _PATTERN)
