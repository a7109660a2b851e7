"""What was asked of a data set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from thinwire.data.finding import Source
from thinwire.data.sampling import Subset
from thinwire.data.splits import Split
from thinwire.data.vertical import VerticalData

__all__ = ["DataSet", "Request", "Scale"]


class Scale(Enum):
    """How bytes of pictures become floats."""

    UNIT = "unit"  # byte / 255
    NORMALISED = "normalised"  # (byte / 255 - mean) / deviation, the set's own


@dataclass(frozen=True)
class Request:
    """Where to look, which rows, and how to scale pictures."""

    folder: Path
    subset: Subset = Subset()
    scale: Scale | None = None  # None = the set's default
    download: bool = False


class DataSet(Protocol):
    """A frozen value: where its files are, how it is cut by default, how it becomes tensors."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> Source: ...

    @property
    def default_split(self) -> Split: ...

    def load(self, split: Split, request: Request) -> VerticalData: ...
