"""From a job file to a job: its sections' data read and models built, for the simulator and for one party alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.data.prepare import LabelCoding, Preparation
from thinwire.engine.channel.link import Link
from thinwire.engine.models import LOSSES, fusion_width
from thinwire.engine.models.losses import Loss
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.job.checks import check_outputs, find_embedding_width
from thinwire.job.job import Job
from thinwire.job.job_file import read_text, resolve_document, toml_text
from thinwire.job.messages import at, within
from thinwire.job.party_tables import PartyTables, TableReader, read_label_column
from thinwire.job.registry import build_module, build_optimizer, build_recipe, build_settings, derive_weight_seed
from thinwire.job.row_selection import RowSource, require_one_alignment, require_same_rows
from thinwire.job.schema import JobFile, LabelEntry, LabelSection, LinkSection, PartySection, SplitSection
from thinwire.job.settings import RunSettings


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
class PartyLoader:
    """Reads what sections name, from the job file's folder; first weights follow from the seed."""

    folder: Path
    seed: int
    split: SplitSection | None = None

    def load_feature_party(self, section: PartySection) -> FeatureParty:
        path = f"party.{section.name}"
        held = TableReader(path, section, self.folder, self.split).read_features(section.features)
        return FeatureParty(
            section.name,
            held.features,
            self.build_bottom(path, section.name, section.model, held),
            held.test_features,
            None if section.optimizer is None else build_optimizer(f"{path}.optimizer", section.optimizer),
            held.preparation,
        )

    def load_label_data(self, section: LabelSection) -> LabelData:
        path = "label_party"
        find_loss(section)
        reader = TableReader(path, section, self.folder, self.split)
        labels, test_labels, coding = read_label_column(reader, section)
        if section.features is None:
            return LabelData(labels, test_labels, coding=coding)
        if section.model is None:
            raise BadInput.of(f"{path}.model", "is missing: features need a bottom model")
        own = section.labels.column if reader.is_same_file(section.labels.file, section.features.file) else None
        held = reader.read_features(section.features, [] if own is None else [own])
        bottom = self.build_bottom(path, section.name, section.model, held)
        features = torch.as_tensor(held.features)
        return LabelData(
            labels,
            test_labels,
            features,
            None if held.test_features is None else torch.as_tensor(held.test_features),
            bottom,
            find_embedding_width(f"{path}.model:", bottom, features),
            held.preparation,
            coding,
        )

    def load_label_party(self, section: LabelSection, data: LabelData, widths: Sequence[int]) -> LabelParty:
        """The label party whose top model takes embeddings of the feature parties' `widths`, and its own last."""
        top = self.build_top(section, widths if data.width is None else [*widths, data.width], data.coding)
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
                optimizer=None if section.optimizer is None else build_optimizer("optimizer", section.optimizer),
                preparation=data.preparation,
                coding=data.coding,
            )

    def build_top(self, section: LabelEntry, widths: Sequence[int], coding: LabelCoding | None = None) -> nn.Module:
        """The same first weights wherever it is built; how many classes there are follows from the labels' coding."""
        with at("label_party.fusion"):
            width = fusion_width(section.fusion, widths)
        if section.top is None:
            raise BadInput.of("label_party.top", "is missing")
        seed = derive_weight_seed(self.seed, section.name, "top")
        follows = {} if coding is None else {"classes": coding.outputs(section.loss)}
        with at("label_party"):
            return build_module("top", section.top, [width], seed, self.folder, follows)

    def build_bottom(self, path: str, name: str, table: dict[str, Any], held: PartyTables) -> nn.Module:
        seed = derive_weight_seed(self.seed, name, "bottom")
        shape = held.features.shape[1:]
        return build_module(f"{path}.model", table, shape, seed, self.folder, held.follows)


def find_loss(section: LabelEntry) -> Loss:
    """By its name, without class weights."""
    if section.loss not in LOSSES:
        hint = did_you_mean(section.loss, LOSSES)
        raise BadInput.of("label_party.loss", f"must be one of {', '.join(LOSSES)}, got {section.loss!r}{hint}")
    return LOSSES[section.loss]


class JobSource:
    """A job file with `key=value` settings on top, read once."""

    def __init__(self, path: str | Path, overrides: Sequence[str] = ()) -> None:
        path = Path(path)
        self._folder = path.resolve().parent
        with within(str(path)):
            self._text = read_text(path, overrides)
        with self._text.locate_errors():
            self._file = self._text.validate(JobFile)
            self._recipe = build_recipe("recipe", self._file.recipe)
            self._optimizer = build_optimizer("optimizer", self._file.optimizer)

    def resolve(self) -> str:
        """The job file as it was meant: settings applied, defaults said, paths absolute; runs from anywhere."""
        return toml_text(resolve_document(self._file, self._folder))

    def load(self) -> Job:
        """With data and models; refuses whatever cannot run."""
        with self._text.locate_errors():
            return self._load(self._file, build_settings(self._file.job, self._folder))

    def _load(self, file: JobFile, settings: RunSettings) -> Job:
        _require_one_alignment(file, self._folder)
        sections = PartyLoader(self._folder, settings.seed, file.job.split)
        parties = [sections.load_feature_party(section) for section in file.party]
        data = sections.load_label_data(file.label_party)
        widths = {
            party.name: find_embedding_width(f"party.{party.name}.model:", party.bottom, party.features)
            for party in parties
        }
        label_party = sections.load_label_party(file.label_party, data, list(widths.values()))
        if data.width is not None:
            widths[label_party.name] = data.width
        with at("job"):
            settings.divide_rows(len(label_party.labels))
        job = Job(
            parties,
            label_party,
            self._recipe,
            self._optimizer,
            link=None if file.link is None else _link(file.link, [party.name for party in parties]),
            encryption_key=None if file.encryption is None else self._folder / file.encryption.key,
            **vars(settings),
        )
        job.check(widths, from_file=True)
        with at("job.budget"):
            job.limit_rounds(widths)
        check_outputs(label_party, list(widths.values()), settings)
        return job


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """The job of a file, with `key=value` settings on top; refuses whatever cannot run."""
    return JobSource(path, overrides).load()


def resolve_job(path: str | Path, overrides: Sequence[str] = ()) -> str:
    """The job file as it was meant, without its data."""
    return JobSource(path, overrides).resolve()


def _require_one_alignment(file: JobFile, folder: Path) -> None:
    sections = [(f"party.{party.name}", party) for party in file.party] + [("label_party", file.label_party)]
    for kind in (RowSource.training, RowSource.test):
        every = [kind(path, section, folder) for path, section in sections]
        require_one_alignment(every)
        require_same_rows(every)


def _link(section: LinkSection, names: Sequence[PartyName] = ()) -> Link:
    for name in section.parties or {}:
        if name not in names:
            known = f"there are {', '.join(names)}{did_you_mean(name, names)}"
            raise BadInput(f"no feature party has this name; {known}").at(f"link.parties.{name}")
    given = section.model_dump(exclude_none=True, exclude={"parties"})
    return Link(**given, parties={name: _link(part, names) for name, part in (section.parties or {}).items()})
