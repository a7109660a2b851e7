"""What a party's section names: its data, read; its models, built. One way for the simulator and for the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.errors import BadInput
from thinwire.job.calls import optimizer_of
from thinwire.job.held import Held, Reader
from thinwire.job.job import embedding_width
from thinwire.job.label_column import read_labels_of
from thinwire.job.messages import at, did_you_mean
from thinwire.job.modules import module_of, weight_seed
from thinwire.job.schema import LabelEntry, LabelSection, PartySection, SplitSection
from thinwire.models import LOSSES, fused_width
from thinwire.models.losses import Loss
from thinwire.party import FeatureParty, LabelParty
from thinwire.prepare import LabelCoding, Preparation

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
    preparation: Preparation | None = None
    coding: LabelCoding | None = None  # where the labels have a task


@dataclass(frozen=True)
class Sections:
    """Reads what sections name, from the job file's folder; first weights follow from the seed."""

    folder: Path
    seed: int
    split: SplitSection | None = None

    def feature_party(self, section: PartySection) -> FeatureParty:
        path = f"party.{section.name}"
        held = Reader(path, section, self.folder, self.split).features(section.features)
        return FeatureParty(
            section.name,
            held.features,
            self.bottom(path, section.name, section.model, held),
            held.test_features,
            None if section.optimizer is None else optimizer_of(f"{path}.optimizer", section.optimizer),
            held.preparation,
        )

    def label_data(self, section: LabelSection) -> LabelData:
        path = "label_party"
        loss_of(section)
        reader = Reader(path, section, self.folder, self.split)
        labels, test_labels, coding = read_labels_of(reader, section)
        if section.features is None:
            return LabelData(labels, test_labels, coding=coding)
        if section.model is None:
            raise BadInput(f"{path}.model is missing: features need a bottom model")
        own = section.labels.column if reader.is_same_file(section.labels.file, section.features.file) else None
        held = reader.features(section.features, [] if own is None else [own])
        bottom = self.bottom(path, section.name, section.model, held)
        features = torch.as_tensor(held.features)
        return LabelData(
            labels,
            test_labels,
            features,
            None if held.test_features is None else torch.as_tensor(held.test_features),
            bottom,
            embedding_width(f"{path}.model:", bottom, features),
            held.preparation,
            coding,
        )

    def label_party(self, section: LabelSection, data: LabelData, widths: Sequence[int]) -> LabelParty:
        """The label party whose top model takes embeddings of the feature parties' `widths`, and its own last."""
        top = self.top(section, widths if data.width is None else [*widths, data.width], data.coding)
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
                preparation=data.preparation,
                coding=data.coding,
            )

    def top(self, section: LabelEntry, widths: Sequence[int], coding: LabelCoding | None = None) -> nn.Module:
        """The same first weights wherever it is built; how many classes there are follows from the labels' coding."""
        with at("label_party.fusion"):
            width = fused_width(section.fusion, widths)
        if section.top is None:
            raise BadInput("label_party.top is missing")
        seed = weight_seed(self.seed, section.name, "top")
        follows = {} if coding is None else {"classes": coding.outputs(section.loss)}
        with at("label_party"):
            return module_of("top", section.top, [width], seed, self.folder, follows)

    def bottom(self, path: str, name: str, table: dict[str, Any], held: Held) -> nn.Module:
        seed = weight_seed(self.seed, name, "bottom")
        shape = held.features.shape[1:]
        return module_of(f"{path}.model", table, shape, seed, self.folder, held.follows)


def loss_of(section: LabelEntry) -> Loss:
    """By its name, without class weights."""
    if section.loss not in LOSSES:
        hint = did_you_mean(section.loss, LOSSES)
        raise BadInput(f"label_party.loss must be one of {', '.join(LOSSES)}, got {section.loss!r}{hint}")
    return LOSSES[section.loss]
