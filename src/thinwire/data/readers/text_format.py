"""How a text file writes its cells: its delimiter and encoding, its decimal sign and what groups thousands."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from thinwire.base.errors import BadInput, BadTable

Decimal = Literal[".", ","]
Thousands = Literal[".", ",", "'", " "]
_GROUPING = {
    ".": r"\.",
    ",": ",",
    "'": "['\u2019]",
    " ": "[ \u00a0\u2009\u202f]",
}  # with what typesetters use for them


@dataclass(frozen=True)
class TextFormat:
    """The defaults are those of a plain CSV file."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        try:
            TextIOWrapper(BytesIO(), encoding=self.encoding)
        except (LookupError, ValueError):
            raise BadInput(
                f"encoding {self.encoding!r} is unknown; use the name of a text encoding, such as "
                '"utf-8", "latin-1", "cp1252" or "utf-16"'
            ) from None
        if len(self.delimiter) != 1 or not self.delimiter.isascii():
            raise BadInput(f"delimiter must be one ASCII character, got {self.delimiter!r}")
        if self.decimal not in (".", ","):
            raise BadInput(f"decimal must be '.' or ',', got {self.decimal!r}")
        if self.thousands not in (None, *_GROUPING):
            raise BadInput(f"thousands must be one of {', '.join(map(repr, _GROUPING))}, got {self.thousands!r}")
        if self.decimal == self.thousands:
            raise BadInput(f"decimal and thousands are both {self.decimal!r}; they must differ")

    @property
    def changes(self) -> dict[str, str]:
        """What differs from a plain CSV file, as a job file writes it."""
        return {key: getattr(self, key) for key in _FIELDS if getattr(self, key) != getattr(PLAIN, key)}

    @property
    def has_plain_numbers(self) -> bool:
        return self.decimal == "." and self.thousands is None

    @cached_property
    def _codec(self) -> str:
        return codecs.lookup(self.encoding).name

    @property
    def python_encoding(self) -> str:
        """For `open`; a byte order mark of UTF-8 is no part of the first name."""
        return "utf-8-sig" if self._codec == "utf-8" else self._codec

    @property
    def arrow_encoding(self) -> str:
        """For pyarrow, which reads UTF-8 with or without a byte order mark as it stands."""
        return "utf8" if self._codec in ("utf-8", "utf-8-sig") else self._codec

    @property
    def holds_nul_bytes(self) -> bool:
        return self._codec.startswith(("utf-16", "utf-32"))

    @cached_property
    def _number(self) -> str:
        """Thousands are grouped by three, or not at all: 1.5 is no number where a point groups thousands."""
        point = r"\." if self.decimal == "." else ","
        digits = r"\d+" if self.thousands is None else rf"(\d{{1,3}}({_GROUPING[self.thousands]}\d{{3}})+|\d+)"
        return rf"^[+-]?({digits}{point}?\d*|{point}\d+)([eE][+-]?\d+)?$"

    def spell_number(self, text: str) -> str | None:
        """Trimmed text as 1234.5; None where it is no number."""
        if re.match(self._number, text, re.ASCII) is None:
            return None
        digits = text if self.thousands is None else re.sub(_GROUPING[self.thousands], "", text)
        return digits.replace(self.decimal, ".")

    def spell_numbers(self, text: Any) -> Any:
        """The same of a pyarrow column; null where there is no number."""
        fits = pc.match_substring_regex(text, self._number)
        if self.thousands is not None:
            text = pc.replace_substring_regex(text, _GROUPING[self.thousands], "")
        if self.decimal != ".":
            text = pc.replace_substring(text, self.decimal, ".")
        return pc.if_else(fits, text, pa.scalar(None, pa.string()))

    def explain_bytes(self, file: Path, error: UnicodeError) -> BadTable:
        """Which byte of the file is not of this encoding."""
        content = file.read_bytes()
        try:
            content.decode(self.python_encoding)
        except UnicodeDecodeError as found:
            line, byte = content.count(b"\n", 0, found.start) + 1, content[found.start]
            what = f"line {line} holds the byte 0x{byte:02X} (byte {found.start} of the file), which is not "
            return BadTable(f"{file}: {what}{self.encoding.upper()}; {_SAY_ENCODING}, or save it as UTF-8")
        return BadTable(f"{file}: not {self.encoding.upper()} text ({error}); {_SAY_ENCODING}, or save it as UTF-8")


_SAY_ENCODING = 'set encoding = "latin-1" next to the file (in `thinwire init`: --encoding latin-1)'
_FIELDS = ("delimiter", "encoding", "decimal", "thousands")
PLAIN = TextFormat()


def guess_delimiter(file: Path, encoding: str) -> str:
    """The sign that cuts the first line into most names."""
    try:
        with file.open(encoding=TextFormat(encoding=encoding).python_encoding, errors="replace") as opened:
            first = next((line for line in opened if line.strip()), "")
    except UnicodeError:  # UTF-16 without its mark; whoever reads the file says so
        return PLAIN.delimiter
    return max(",;\t|", key=lambda sign: len(next(csv.reader([first], delimiter=sign), [])))


_SIGNS = "".join(mark.strip("[]\\") for mark in _GROUPING.values())
_LIKE_A_NUMBER = rf"^[+-]?[\d{_SIGNS}]+([eE][+-]?\d+)?$"
_COMMAS: tuple[tuple[str, str | None], ...] = ((",", None), (",", "."))
_POINTS: tuple[tuple[str, str | None], ...] = ((".", ","),)
_OTHERS: tuple[tuple[str, str | None], ...] = ((".", "'"), (".", " "), (",", " "), (",", "'"))


def guess_numbers(
    columns: Iterable[Any], form: TextFormat, decimal: str | None = None, thousands: str | None = None
) -> TextFormat:
    """The decimal sign and the grouping under which most of these columns of trimmed text are numbers throughout.

    What is given stays. "1,234" is a decimal where commas do not delimit the file, and a thousand where they do.
    """
    words = [column for column in map(_select_numbers, columns) if len(column)]
    likely = _POINTS + _COMMAS if form.delimiter == "," else _COMMAS + _POINTS
    ways = [
        replace(form, decimal=point, thousands=group)
        for point, group in ((".", None), *likely, *_OTHERS)
        if decimal in (None, point) and thousands in (None, group)
    ]
    if not ways:
        return replace(form, decimal=decimal or ".", thousands=thousands)  # which says what is wrong
    for way in ways:  # most files are written in one way
        if all(way.spell_numbers(column).null_count == 0 for column in words):
            return way
    return max(ways, key=lambda way: sum(way.spell_numbers(column).null_count == 0 for column in words))


def _select_numbers(words: Any) -> Any:
    """The words that tell how a column writes numbers, those with a sign in them; none where it is not of numbers."""
    telling = words.filter(pc.match_substring_regex(words, f"[{_SIGNS}]"))
    return telling if pc.all(pc.match_substring_regex(telling, _LIKE_A_NUMBER)).as_py() else telling[:0]
