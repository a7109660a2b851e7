"""A data set cut by columns: what each party holds of the same rows, in the same order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from thinwire.base.errors import BadTensor
from thinwire.lab.datasets.download import DataSource
from thinwire.lab.datasets.sampling import Subset
from thinwire.lab.datasets.splits import LABEL, Split


@dataclass(frozen=True, eq=False)
class VerticalData:
    """Training and test rows of every party. A party's category codes are its first columns, then its numbers."""

    names: tuple[str, ...]  # the feature parties
    features: tuple[Tensor, ...]  # float32 [N, ...] each
    test_features: tuple[Tensor, ...]
    labels: Tensor  # int64 classes, or float32
    test_labels: Tensor
    label_features: Tensor | None = None  # what the label party holds itself
    test_label_features: Tensor | None = None
    categories: dict[str, tuple[int, ...]] = field(default_factory=dict)  # party -> codes of each category column
    about: str = ""  # one sentence for reports

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.features) == len(self.test_features):
            raise BadTensor(
                f"{len(self.names)} feature parties, {len(self.features)} tensors of training features and "
                f"{len(self.test_features)} of test features; there must be one of each a party"
            )
        train = {**dict(zip(self.names, self.features, strict=True)), LABEL: self.label_features}
        test = {**dict(zip(self.names, self.test_features, strict=True)), LABEL: self.test_label_features}
        _check("training", train, len(self.labels))
        _check("test", test, len(self.test_labels))


def _check(part: str, held: dict[str, Tensor | None], rows: int) -> None:
    for name, x in held.items():
        if x is None:
            continue
        if x.dtype != torch.float32:
            raise BadTensor(f"party {name!r}: its {part} features are {x.dtype}, expected torch.float32")
        if len(x) != rows:
            raise BadTensor(f"party {name!r}: {len(x)} {part} rows of features, but {rows} labels")


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
    def source(self) -> DataSource: ...

    @property
    def default_split(self) -> Split: ...

    def load(self, split: Split, request: Request) -> VerticalData: ...
