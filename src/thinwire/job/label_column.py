"""A label party's labels: numbers as they stand, or a column of classes or quantities."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.data import read_labels
from thinwire.data.cells import Cells, read_cells
from thinwire.errors import BadColumn, BadLabels
from thinwire.job.held import Reader
from thinwire.job.messages import at
from thinwire.job.schema import ColumnSource, LabelSection
from thinwire.prepare import LabelCoding

__all__ = ["read_labels_of"]


def read_labels_of(reader: Reader, section: LabelSection) -> tuple[Tensor, Tensor | None, LabelCoding | None]:
    """Training labels, test labels where there are any, and what their numbers stand for where they have a task."""
    if section.labels.task is None and section.labels.classes is None:
        labels, tests = reader.divided(
            "labels", _numbers(reader, "labels", section.labels), lambda: _test_numbers(reader, section)
        )
        return labels, tests, None
    training, test = reader.divided(
        "labels", _cells(reader, "labels", section.labels), lambda: _test_cells(reader, section)
    )
    coding = _coding(section, training)
    with at("label_party.labels"):
        labels = coding.apply(training)
    if test is None:
        return labels, None, coding
    with at("label_party.labels" if reader.split else "label_party.test_labels"):
        return labels, coding.apply(test), coding


def _coding(section: LabelSection, training: Cells) -> LabelCoding:
    source = section.labels
    with at("label_party.labels"):
        classes = None if source.classes is None else tuple(source.classes)
        coding = LabelCoding.fit(training, str(source.column), source.task or "auto", classes)
    fitting = section.loss == "squared_error"
    if fitting != (coding.task == "regression"):
        right = "squared_error" if coding.task == "regression" else "cross_entropy"
        raise BadLabels(f"label_party.loss is {section.loss!r}, but {coding.says}; write loss = {right!r}")
    return coding


def _numbers(reader: Reader, field: str, source: ColumnSource) -> Tensor:
    with at(f"{reader.path}.{field}"):
        file = reader.folder / source.file
        return torch.as_tensor(read_labels(file, source.key, source.column, source.delimiter or ","))


def _test_numbers(reader: Reader, section: LabelSection) -> Tensor | None:
    return None if section.test_labels is None else _numbers(reader, "test_labels", section.test_labels)


def _cells(reader: Reader, field: str, source: ColumnSource) -> Cells:
    with at(f"{reader.path}.{field}"):
        if source.key is not None or source.column is None:
            raise BadColumn('task is for the column of a table: say which by column = "..."')
        return read_cells(reader.folder / source.file, [source.column], (), source.delimiter or ",")


def _test_cells(reader: Reader, section: LabelSection) -> Cells | None:
    return None if section.test_labels is None else _cells(reader, "test_labels", section.test_labels)
