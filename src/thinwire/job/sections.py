"""What a party's section names: its data, read; its models, built. One way for the simulator and for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.data import Values, read_features, read_labels
from thinwire.errors import BadInput
from thinwire.job.aligned import RowsOf
from thinwire.job.calls import optimizer_of
from thinwire.job.job import embedding_width
from thinwire.job.messages import at, did_you_mean
from thinwire.job.modules import module_of, weight_seed
from thinwire.job.schema import ColumnSource, LabelEntry, LabelSection, PartyEntry, PartySection, Source
from thinwire.models import LOSSES, fused_width
from thinwire.models.losses import Loss
from thinwire.party import FeatureParty, LabelParty

__all__ = ["LabelData", "Sections", "loss_of"]


@dataclass(frozen=True, eq=False)
class LabelData:
    """All that a label party holds but its top model, which waits for the embeddings' widths."""

    labels: Tensor  # [N]
    test_labels: Tensor | None = None
    features: Tensor | None = None  # [N, ...]
    test_features: Tensor | None = None
    bottom: nn.Module | None = None
    width: int | None = None  # of the bottom model's embedding


@dataclass(frozen=True)
class Sections:
    """Reads what sections name, from the job file's folder; first weights follow from the seed."""

    folder: Path
    seed: int

    def feature_party(self, section: PartySection) -> FeatureParty:
        path = f"party.{section.name}"
        features = self._features(f"{path}.features", section.features)
        rows = RowsOf.training(path, section)
        return FeatureParty(
            section.name,
            rows.taken(features.array, rows.read(self.folder), "features"),
            self.bottom(path, section.name, section.model, features),
            self._test_features(path, section, features),
            None if section.optimizer is None else optimizer_of(f"{path}.optimizer", section.optimizer),
        )

    def label_data(self, section: LabelSection) -> LabelData:
        path = "label_party"
        loss_of(section)
        rows, test_rows = RowsOf.training(path, section), RowsOf.test(path, section)
        alignment, test_alignment = rows.read(self.folder), test_rows.read(self.folder)
        labels = rows.taken(self._labels(f"{path}.labels", section.labels), alignment, "labels")
        tests = None
        if section.test_labels is not None:
            every = self._labels(f"{path}.test_labels", section.test_labels)
            tests = test_rows.taken(every, test_alignment, "test_labels")
        if section.features is None:
            return LabelData(labels, tests)
        values = self._features(f"{path}.features", section.features)
        _require_no_label_among(section, values)
        if section.model is None:
            raise BadInput(f"{path}.model is missing: features need a bottom model")
        bottom = self.bottom(path, section.name, section.model, values)
        test_features = self._test_features(path, section, values)
        features = torch.as_tensor(rows.taken(values.array, alignment, "features"))
        return LabelData(
            labels,
            tests,
            features,
            None if test_features is None else torch.as_tensor(test_features),
            bottom,
            embedding_width(f"{path}.model:", bottom, features),
        )

    def label_party(self, section: LabelSection, data: LabelData, widths: Sequence[int]) -> LabelParty:
        """The label party whose top model takes embeddings of the feature parties' `widths`, and its own last."""
        top = self.top(section, widths if data.width is None else [*widths, data.width])
        with at("label_party"):
            return LabelParty(
                section.name,
                data.labels,
                top,
                data.test_labels,
                data.features,
                data.test_features,
                data.bottom,
                fusion=section.fusion,
                loss=LOSSES[section.loss],
                class_weights=section.class_weights,
                optimizer=None if section.optimizer is None else optimizer_of("optimizer", section.optimizer),
            )

    def top(self, section: LabelEntry, widths: Sequence[int]) -> nn.Module:
        """The same first weights wherever it is built."""
        with at("label_party.fusion"):
            width = fused_width(section.fusion, widths)
        if section.top is None:
            raise BadInput("label_party.top is missing")
        with at("label_party"):
            return module_of("top", section.top, [width], weight_seed(self.seed, section.name, "top"), self.folder)

    def bottom(self, path: str, name: str, table: dict[str, Any], features: Values) -> nn.Module:
        seed = weight_seed(self.seed, name, "bottom")
        return module_of(f"{path}.model", table, features.array.shape[1:], seed, self.folder)

    def _features(self, path: str, source: Source) -> Values:
        with at(path):
            return read_features(
                self.folder / source.file, source.key, source.columns, source.all_but or (), source.delimiter or ","
            )

    def _test_features(self, path: str, section: PartyEntry, training: Values) -> Any:
        source = section.test_features
        if source is None:
            return None
        test = self._features(f"{path}.test_features", source)
        if test.columns != training.columns and None not in (test.columns, training.columns):
            missing = [name for name in training.columns or () if name not in (test.columns or ())]
            extra = [name for name in test.columns or () if name not in (training.columns or ())]
            what = f"lacks {missing}" if missing else f"has {extra} too" if extra else "has them in another order"
            raise BadInput(f"{path}.test_features {what}; name the same columns as in features")
        if test.array.shape[1:] != training.array.shape[1:]:
            raise BadInput(
                f"{path}.test_features has rows of shape {list(test.array.shape[1:])}, features "
                f"{list(training.array.shape[1:])}"
            )
        rows = RowsOf.test(path, section)
        return rows.taken(test.array, rows.read(self.folder), "test_features")

    def _labels(self, path: str, source: ColumnSource) -> Tensor:
        with at(path):
            file = self.folder / source.file
            return torch.as_tensor(read_labels(file, source.key, source.column, source.delimiter or ","))


def loss_of(section: LabelEntry) -> Loss:
    """By its name, without class weights."""
    if section.loss not in LOSSES:
        hint = did_you_mean(section.loss, LOSSES)
        raise BadInput(f"label_party.loss must be one of {', '.join(LOSSES)}, got {section.loss!r}{hint}")
    return LOSSES[section.loss]


def _require_no_label_among(section: LabelSection, features: Values) -> None:
    """A label among the features would be learned by heart."""
    if section.features is None or section.features.file != section.labels.file:
        return
    column = section.labels.column
    if column is not None and column in (features.columns or ()):
        raise BadInput(f"label_party.features holds the label {column!r}; write all_but = [{column!r}]")
