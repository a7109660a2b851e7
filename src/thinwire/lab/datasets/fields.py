"""Fields of tables and time series become parties' columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from thinwire.base.errors import BadInput, BadParameter
from thinwire.data.hashing import Buckets, code_known_words, hash_codes
from thinwire.lab.datasets.sampling import RowSample
from thinwire.lab.datasets.vertical import LABEL, ColumnSplit, Split, VerticalData

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


def column_hasher(columns: Sequence[str], buckets: Buckets) -> Callable[[Any], Any]:
    """A function that replaces a block's columns of words by their codes."""

    def encode(block: Any) -> Any:
        for name in columns:
            codes = hash_codes(name, block[name], buckets.of(name))
            block = block.set_column(block.schema.get_field_index(name), name, pa.array(codes))
        return block

    return encode


def make_field(name: str, train: RowSample, test: RowSample, categories: int = 0) -> Field:
    """A column that holds floats already."""
    return Field(name, train.table[name].to_numpy(), test.table[name].to_numpy(), categories)


def split_fields(name: str, fields: Sequence[Field], labels: ClassLabels, split: Split, about: str) -> VerticalData:
    """Each party's fields side by side: category codes first, then numbers."""
    if not isinstance(split, ColumnSplit):
        raise BadParameter(
            f"{name}: {split} cuts pictures; use ColumnsByCount, ColumnsByName or ColumnsByPattern over its fields"
        )
    by_name = {field.name: field for field in fields}
    held = {party: _sorted([by_name[one] for one in names]) for party, names in split.assign(list(by_name)).items()}
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


def _sorted(fields: list[Field]) -> list[Field]:
    return sorted(fields, key=lambda field: not field.categories)


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


HOURS = 48


def fill_forward(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """[N, T, F]: each NaN becomes the last value before it; what comes before the first value stays NaN."""
    hours = np.arange(x.shape[1])[None, :, None]
    last = np.maximum.accumulate(np.where(np.isnan(x), 0, hours), axis=1)
    filled: NDArray[np.float32] = np.take_along_axis(x, last, axis=1)
    return filled
