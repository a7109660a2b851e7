"""From a job file to a job: tables read, rows selected and prepared, models built.

For the simulator and for one party alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName, Progress
from thinwire.data.prepare import LabelCoding, Preparation
from thinwire.data.readers.sources import TableStore
from thinwire.engine.channel.link import Link
from thinwire.engine.models import LOSSES, BiasTop, fusion_width
from thinwire.engine.models.losses import Loss, find_base_rate
from thinwire.engine.programs.parties import FeatureParty, LabelParty, accepts_gaps
from thinwire.engine.protocols.context import Groups
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import RowOwners
from thinwire.job.checks import check_outputs, find_embedding_width, may_use_base_rate
from thinwire.job.job import Job
from thinwire.job.job_file import read_text, resolve_document, toml_text
from thinwire.job.messages import at, within
from thinwire.job.own_code import CodeSources
from thinwire.job.registry import (
    build_module,
    build_optimizer,
    build_recipe,
    build_settings,
    complete_model,
    complete_top,
    count_outputs,
    derive_weight_seed,
)
from thinwire.job.row_selection import RowSelection, RowSet, RowSource, require_one_alignment, require_same_rows
from thinwire.job.schema import JobFile, LabelEntry, LabelSection, LinkSection, PartyEntry, PartySection, SplitSection
from thinwire.job.settings import RunSettings
from thinwire.job.table_reader import PartyTables, TableReader, read_label_column


@dataclass(frozen=True, eq=False)
class LabelData:
    """All that a label party holds but its top model, which waits for the embeddings' widths."""

    labels: Tensor  # [N]
    validation_labels: Tensor | None = None
    test_labels: Tensor | None = None
    features: Tensor | None = None  # [N, ...]
    validation_features: Tensor | None = None
    test_features: Tensor | None = None
    bottom: nn.Module | None = None
    width: int | None = None  # of the bottom model's embedding
    preparation: Preparation | None = None
    coding: LabelCoding | None = None  # where the labels have a task
    unaligned_features: Tensor | None = None
    owners: Mapping[PartyName, Groups] = field(default_factory=dict)  # of its rows, at parties with a group


def list_owners(rows: RowSelection) -> dict[PartyName, Groups]:
    """Of the label party's rows, at each party that holds owners."""
    held_out = {which: rows.select(RowSet(which)) for which in HeldOut}
    for some in held_out.values():
        if some is not None and rows.training.owners and not some.owners and rows.section.test_source is not None:
            says = "is missing, but a group needs it: name a file here, and run `thinwire align --test`"
            raise BadInput.of(some.source.locate("alignment"), says)
    return {
        party: Groups(
            RowOwners.of(torch.from_numpy(index)),
            {
                which: RowOwners.of(torch.from_numpy(some.owners[party]))
                for which, some in held_out.items()
                if some is not None and party in some.owners
            },
        )
        for party, index in rows.training.owners.items()
    }


def require_groups(found: Collection[PartyName], asked: Collection[PartyName]) -> None:
    """The label party's alignment is with the owners that the job names."""
    if set(found) != set(asked):
        held, named = (", ".join(sorted(names)) or "none" for names in (found, asked))
        says = f"has owners of rows at {held}, the job names a group at {named}; run `thinwire align` again"
        raise BadInput.of("label_party.alignment", says)


@dataclass(frozen=True)
class PartyLoader:
    """Reads what sections name, from the job file's folder; first weights follow from the seed."""

    folder: Path
    seed: int
    recipe: Recipe
    split: SplitSection | None = None
    code: CodeSources = CodeSources()  # whose modules may be built
    pretrains: bool = False
    owner_columns: Sequence[str] = ()  # of parties with a group, in the label party's table
    tables: TableStore = field(default_factory=TableStore, compare=False, repr=False)
    on_progress: Progress | None = None  # of the tables' columns

    def load_feature_party(self, section: PartySection) -> FeatureParty:
        held = self._open_tables(section).read_features(section.features)
        return FeatureParty(
            section.name,
            held.features,
            self.build_bottom(section, held),
            held.test_features,
            None if section.optimizer is None else build_optimizer(f"{section.path}.optimizer", section.optimizer),
            held.preparation,
            held.validation_features,
            held.unaligned_features,
            **held.groups,
        )

    def _open_tables(self, section: PartyEntry) -> TableReader:
        learns_alone = self.pretrains or section.has_encoder
        columns = self.owner_columns if isinstance(section, LabelEntry) else ()
        return TableReader(section, self.folder, self.split, learns_alone, columns, self.tables, self.on_progress)

    def load_label_data(self, section: LabelSection) -> LabelData:
        reader = self._open_tables(section)
        find_loss(section)
        owners = list_owners(reader.rows)
        labels, validation_labels, test_labels, coding = read_label_column(reader, section)
        if section.features is None:
            return LabelData(labels, validation_labels, test_labels, coding=coding, owners=owners)
        if section.model is None:
            raise BadInput.of(f"{section.path}.model", "is missing: features need a bottom model")
        own = section.labels.column if reader.is_same_table(section.labels, section.features) else None
        held = reader.read_features(section.features, [] if own is None else [own])
        outputs = count_label_outputs(section, labels, coding)
        bottom = self.build_bottom(complete_model(section, section, self.recipe, outputs), held)
        features = torch.as_tensor(held.features)
        return LabelData(
            labels,
            validation_labels,
            test_labels,
            features,
            None if held.validation_features is None else torch.as_tensor(held.validation_features),
            None if held.test_features is None else torch.as_tensor(held.test_features),
            bottom,
            find_embedding_width(f"{section.path}.model:", bottom, features),
            held.preparation,
            coding,
            None if held.unaligned_features is None else torch.as_tensor(held.unaligned_features),
            owners,
        )

    def load_label_party(self, section: LabelSection, data: LabelData, widths: Sequence[int]) -> LabelParty:
        """The label party whose top model takes embeddings of the feature parties' `widths`, and its own last."""
        top = self.build_top(section, widths if data.width is None else [*widths, data.width], data.coding)
        held = {field: value for field, value in vars(data).items() if field not in ("width", "owners")}
        with at("label_party"):
            party = LabelParty(
                section.name,
                top=top,
                fusion=section.fusion,
                loss=LOSSES[section.loss],
                class_weights=section.class_weights,
                optimizer=None if section.optimizer is None else build_optimizer("optimizer", section.optimizer),
                **held,
            )
        if isinstance(top, BiasTop):
            _require_width(top.width, count_label_outputs(section, data.labels, data.coding))
            if may_use_base_rate(self.recipe):
                with at("label_party.labels"):
                    top.begin_at(find_base_rate(party.loss, party.labels, top.width))
        return party

    def build_top(self, section: LabelEntry, widths: Sequence[int], coding: LabelCoding | None = None) -> nn.Module:
        """The same first weights wherever it is built; how many classes there are follows from the labels' coding."""
        with at("label_party.fusion"):
            width = fusion_width(section.fusion, widths)
        if section.top is None:
            raise BadInput.of("label_party.top", "is missing")
        seed = derive_weight_seed(self.seed, section.name, "top")
        follows = {} if coding is None else {"classes": coding.outputs(section.loss)}
        with at("label_party"):
            table = complete_top(section, follows.get("classes"))
            return build_module("top", table, [width], seed, self.code, follows)

    def build_bottom(self, section: PartyEntry, held: PartyTables) -> nn.Module:
        """The section's bottom model for rows like these."""
        seed, shape = derive_weight_seed(self.seed, section.name, "bottom"), held.features.shape[1:]
        found = build_module(f"{section.path}.model", section.model or {}, shape, seed, self.code, held.follows)
        if held.preparation is not None and held.preparation.keeps_gaps and not accepts_gaps(found):
            name = type(found).__name__
            says = f"is 'keep', but {name} takes no missing values; use 'median', 'mean', boosted_trees or scorecard"
            raise BadInput.of(f"{section.path}.prepare.missing", says)
        return found


def count_label_outputs(section: LabelEntry, labels: Tensor, coding: LabelCoding | None) -> int:
    """How many outputs a row has: what the file says, or one for each class of the labels."""
    if (stated := count_outputs(section)) is not None:
        return stated
    return int(labels.max()) + 1 if coding is None else coding.outputs(section.loss)


def _require_width(width: int, outputs: int) -> None:
    """Of what a bias is added to."""
    if width != outputs:
        raise BadInput.of(
            "label_party.top",
            f"adds a bias to embeddings that are {width} wide, but a row has {outputs} outputs: one for two classes "
            "under binary_cross_entropy and for squared_error, one per class under cross_entropy; give every "
            f"party's model width = {outputs}, and add embeddings up by fusion = 'sum'",
        )


def find_loss(section: LabelEntry) -> Loss:
    """By its name, without class weights."""
    if section.loss not in LOSSES:
        hint = did_you_mean(section.loss, LOSSES)
        raise BadInput.of("label_party.loss", f"must be one of {', '.join(LOSSES)}, got {section.loss!r}{hint}")
    return LOSSES[section.loss]


class JobSource:
    """A job file with `key=value` settings on top, read once; `code` may run, or what is beside the file."""

    def __init__(self, path: str | Path, overrides: Sequence[str] = (), code: CodeSources | None = None) -> None:
        path = Path(path)
        self._code = CodeSources.beside(path) if code is None else code
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

    def load(self, on_progress: Progress | None = None) -> Job:
        """With data and models; refuses whatever cannot run. `on_progress` counts columns as they are prepared."""
        with self._text.locate_errors():
            settings = build_settings(self._file.job, self._folder, self._file.pretrain)
            return self._load(self._file, settings, on_progress)

    def _load(self, file: JobFile, settings: RunSettings, on_progress: Progress | None) -> Job:
        storage = settings.storage
        tables = TableStore(storage if file.encryption is None else storage.require_folder())
        _require_one_alignment(file, self._folder, tables)
        pretrains = settings.pretraining is not None
        grouped = {section.name: section.group for section in file.party if section.group is not None}
        columns, split = list(grouped.values()), file.job.split
        sections = PartyLoader(
            self._folder, settings.seed, self._recipe, split, self._code, pretrains, columns, tables, on_progress
        )
        data = sections.load_label_data(file.label_party)
        require_groups(data.owners, grouped)
        outputs = count_label_outputs(file.label_party, data.labels, data.coding)
        parties = [
            sections.load_feature_party(complete_model(section, file.label_party, self._recipe, outputs))
            for section in file.party
        ]
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
            link=None if file.link is None else build_link(file.link, [party.name for party in parties]),
            encryption_key=None if file.encryption is None else self._folder / file.encryption.key,
            **vars(settings),
        )
        job.check(widths, from_file=True)
        with at("job.budget"):
            job.limit_rounds(widths)
        check_outputs(label_party, list(widths.values()), settings)
        return job


def load_job(
    path: str | Path,
    overrides: Sequence[str] = (),
    code: CodeSources | None = None,
    on_progress: Progress | None = None,
) -> Job:
    """The job of a file, with `key=value` settings on top; refuses whatever cannot run."""
    return JobSource(path, overrides, code).load(on_progress)


def resolve_job(path: str | Path, overrides: Sequence[str] = ()) -> str:
    """The job file as it was meant, without its data."""
    return JobSource(path, overrides).resolve()


def _require_one_alignment(file: JobFile, folder: Path, tables: TableStore) -> None:
    for prefix in ("", "test_"):
        every = [RowSource(section, folder, prefix, tables) for section in (*file.party, file.label_party)]
        require_one_alignment(every)
        require_same_rows(every)


def build_link(section: LinkSection, names: Sequence[PartyName]) -> Link:
    """What `[link]` says of parties of these names."""
    for name in section.parties or {}:
        if name not in names:
            known = f"there are {', '.join(names)}{did_you_mean(name, names)}"
            raise BadInput(f"no feature party has this name; {known}").at(f"link.parties.{name}")
    given = section.model_dump(exclude_none=True, exclude={"parties"})
    return Link(**given, parties={name: build_link(part, names) for name, part in (section.parties or {}).items()})
