"""What a peer tells: how much of it is taken, and how it is shown."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

__all__ = ["Count", "Text", "printable"]

Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Text = Annotated[str, Field(max_length=4096)]

_LONGEST_SENTENCE = 1500


def printable(text: Any) -> str:
    """What comes from a peer must not write lines of its own, or steer a terminal."""
    short = str(text)[:_LONGEST_SENTENCE]
    return short if short.isprintable() else ascii(short)
