"""A data set cut by columns: what each party holds of the same rows, regions of pictures or fields of tables.

A party called "label" is the label party; what nobody is given is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadInput, BadParameter, BadTensor
from thinwire.base.format import did_you_mean, quote_names
from thinwire.data.hashing import code_known_words
from thinwire.lab.datasets.dataset_files import DataSource
from thinwire.lab.datasets.sampling import Subset

LABEL = "label"  # the label party's name in splits and in `categories`

Region: TypeAlias = tuple[slice, slice, slice]  # of one row's [channels or views, H, W]
Named: TypeAlias = Mapping[str, Sequence[str]] | Sequence[tuple[str, Sequence[str]]]

_ALL = slice(None)


@runtime_checkable
class ImageSplit(Protocol):
    """Cuts pictures [N, C, H, W] into one region per party."""

    def regions(self, shape: tuple[int, int, int]) -> dict[str, Region]: ...


@runtime_checkable
class ColumnSplit(Protocol):
    """Gives each party some of the fields."""

    def assign(self, fields: Sequence[str]) -> dict[str, tuple[str, ...]]: ...


Split: TypeAlias = ImageSplit | ColumnSplit


@dataclass(frozen=True)
class Quadrants:
    """Four parties, in reading order."""

    def regions(self, shape: tuple[int, int, int]) -> dict[str, Region]:
        upper, lower = _halves(shape[1])
        left, right = _halves(shape[2])
        return {
            "upper_left": (_ALL, upper, left),
            "upper_right": (_ALL, upper, right),
            "lower_left": (_ALL, lower, left),
            "lower_right": (_ALL, lower, right),
        }


@dataclass(frozen=True)
class Halves:
    """Two parties, left and right."""

    def regions(self, shape: tuple[int, int, int]) -> dict[str, Region]:
        left, right = _halves(shape[2])
        return {"left": (_ALL, _ALL, left), "right": (_ALL, _ALL, right)}


@dataclass(frozen=True)
class Views:
    """`per_party` neighbouring camera views of an object for each party."""

    per_party: int

    def __post_init__(self) -> None:
        if self.per_party < 1:
            raise BadParameter(f"Views: per_party must be 1 or more, got {self.per_party}")

    def regions(self, shape: tuple[int, int, int]) -> dict[str, Region]:
        views, each = shape[0], self.per_party
        if views % each:
            raise BadParameter(f"Views: {views} views cannot be split {each} per party; use a divisor of {views}")
        return {self._party(first): (slice(first, first + each), _ALL, _ALL) for first in range(0, views, each)}

    def _party(self, first: int) -> str:
        last = first + self.per_party
        return f"view_{last}" if self.per_party == 1 else f"views_{first + 1}_to_{last}"


@dataclass(frozen=True)
class ColumnsByCount:
    """The first fields to the first party, and so on, in the data set's order."""

    counts: tuple[int, ...]
    names: tuple[str, ...] = ()  # party_1, party_2 ... unless given

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", tuple(self.counts))
        object.__setattr__(
            self, "names", tuple(self.names) or tuple(f"party_{k + 1}" for k in range(len(self.counts)))
        )
        if len(self.names) != len(self.counts):
            raise BadParameter(f"ColumnsByCount: {len(self.counts)} counts, but {len(self.names)} names")

    def assign(self, fields: Sequence[str]) -> dict[str, tuple[str, ...]]:
        if sum(self.counts) != len(fields):
            raise BadParameter(
                f"ColumnsByCount: {' + '.join(map(str, self.counts))} = {sum(self.counts)} fields, the data set has "
                f"{len(fields)}"
            )
        ends = list(accumulate(self.counts))
        starts = [0, *ends[:-1]]
        pairs = zip(self.names, (tuple(fields[a:b]) for a, b in zip(starts, ends, strict=True)), strict=True)
        return _checked("ColumnsByCount", list(pairs), fields)


@dataclass(frozen=True)
class ColumnsByName:
    """Each party's fields, by name."""

    parties: Named

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", tuple((name, tuple(fields)) for name, fields in _pairs(self.parties)))

    def assign(self, fields: Sequence[str]) -> dict[str, tuple[str, ...]]:
        return _checked("ColumnsByName", list(_pairs(self.parties)), fields)


@dataclass(frozen=True)
class ColumnsByPattern:
    """Each party's fields, by a pattern such as "C*" or several, in the data set's order."""

    parties: Named

    def __post_init__(self) -> None:
        patterns = ((name, (some,) if isinstance(some, str) else tuple(some)) for name, some in _pairs(self.parties))
        object.__setattr__(self, "parties", tuple(patterns))

    def assign(self, fields: Sequence[str]) -> dict[str, tuple[str, ...]]:
        found = []
        for name, patterns in _pairs(self.parties):
            for pattern in patterns:
                if not any(fnmatchcase(field, pattern) for field in fields):
                    raise BadParameter(
                        f"ColumnsByPattern: party {name!r}: no field fits {pattern!r}; there are "
                        f"{quote_names(fields)}"
                    )
            found.append((name, tuple(field for field in fields if any(fnmatchcase(field, one) for one in patterns))))
        return _checked("ColumnsByPattern", found, fields)


SPLITS: dict[str, Callable[..., Split]] = {
    "quadrants": Quadrants,
    "halves": Halves,
    "views": Views,
    "columns_by_count": ColumnsByCount,
    "columns_by_name": ColumnsByName,
    "columns_by_pattern": ColumnsByPattern,
}


def _halves(size: int) -> tuple[slice, slice]:
    return slice(0, size // 2), slice(size // 2, size)


def _pairs(parties: Named) -> Iterator[tuple[str, Sequence[str]]]:
    yield from parties.items() if isinstance(parties, Mapping) else parties


def _checked(
    split: str, parties: Sequence[tuple[str, Sequence[str]]], fields: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    owner: dict[str, str] = {}
    for name, held in parties:
        if not held:
            raise BadParameter(f"{split}: party {name!r} is given no field")
        for one in held:
            if one not in fields:
                hint = did_you_mean(one, fields)
                raise BadParameter(
                    f"{split}: party {name!r}: there is no field {one!r}, there are {quote_names(fields)}{hint}"
                )
            if one in owner:
                raise BadParameter(f"{split}: field {one!r} is given twice, to {owner[one]!r} and {name!r}")
            owner[one] = name
    found = {name: tuple(held) for name, held in parties}
    if len(found) != len(parties):
        raise BadParameter(f"{split}: two parties have the same name among {', '.join(name for name, _ in parties)}")
    if not found.keys() - {LABEL}:
        raise BadParameter(f"{split}: no feature party; give some fields to a party with another name than {LABEL!r}")
    return found


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
                f"{len(self.test_features)} of test features; there must be one of each per party"
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


# Fields of tables and time series become parties' columns ---------------------------------------------------------


ClassLabels: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]  # of training rows, and of test rows


@dataclass(frozen=True, eq=False)
class Field:
    """One field of training and test rows: a column, or several that belong together."""

    name: str
    train: NDArray[np.float32]  # [N] or [N, ..., columns]
    test: NDArray[np.float32]
    categories: int = 0  # how many codes it has; 0 = it holds numbers

    def array(self, part: str) -> NDArray[np.float32]:
        array: NDArray[np.float32] = getattr(self, part)
        return array[:, None] if array.ndim == 1 else array


def split_fields(name: str, fields: Sequence[Field], labels: ClassLabels, split: Split, about: str) -> VerticalData:
    """Each party's fields side by side: category codes first, then numbers."""
    if not isinstance(split, ColumnSplit):
        raise BadParameter(
            f"{name}: {split} cuts pictures; use ColumnsByCount, ColumnsByName or ColumnsByPattern over its fields"
        )
    by_name = {field.name: field for field in fields}
    held = {
        party: sorted((by_name[one] for one in names), key=lambda field: not field.categories)
        for party, names in split.assign(list(by_name)).items()
    }
    own = held.pop(LABEL, None)
    left_out = by_name.keys() - {field.name for some in (*held.values(), own or []) for field in some}
    without = f", without {', '.join(one for one in by_name if one in left_out)}" if left_out else ""
    return VerticalData(
        names=tuple(held),
        features=tuple(_joined(some, "train") for some in held.values()),
        test_features=tuple(_joined(some, "test") for some in held.values()),
        labels=torch.from_numpy(labels[0]),
        test_labels=torch.from_numpy(labels[1]),
        label_features=_joined(own, "train") if own else None,
        test_label_features=_joined(own, "test") if own else None,
        categories={
            party: sizes
            for party, some in {**held, LABEL: own or []}.items()
            if (sizes := tuple(field.categories for field in some if field.categories))
        },
        about=f"{about}{without}; {len(labels[0])} training and {len(labels[1])} test rows",
    )


def _joined(fields: list[Field], part: str) -> Tensor:
    return torch.from_numpy(np.concatenate([field.array(part) for field in fields], axis=-1))


def label_reader(file: Path, column: str, words: Sequence[str]) -> Callable[[Any, int], NDArray[np.int64]]:
    """A function that reads a block's column: the place of each label among `words`."""
    places = {word: place for place, word in enumerate(words)}

    def labels(block: Any, start: int) -> NDArray[np.int64]:
        found = code_known_words(block[column], places, -1, -1).astype(np.int64)
        if len(found) and found.min() < 0:
            row = int(np.argmin(found))
            raise BadInput(
                f"{file}: row {start + row + 1}, column {column!r} holds {block[column][row].as_py()!r}; a label "
                f"is one of {', '.join(words)}"
            )
        return found

    return labels
