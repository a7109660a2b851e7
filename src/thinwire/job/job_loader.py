"""From a job file to a job: tables read, rows selected and prepared, models built.

For the simulator and for one party alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadColumn, BadFile, BadInput, BadLabels
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName
from thinwire.data.prepare import LabelCoding, Preparation
from thinwire.data.readers.features import Values, compare_columns, read_features, read_labels
from thinwire.data.readers.tables import Cells, column_names, read_cells, select_columns
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
from thinwire.job.schema import (
    ColumnSource,
    JobFile,
    LabelEntry,
    LabelSection,
    LinkSection,
    PartyEntry,
    PartySection,
    Source,
    SplitSection,
)
from thinwire.job.settings import RunSettings


@dataclass(frozen=True, eq=False)
class PartyTables:
    """One party's rows as numbers."""

    features: Any  # [N, ...]
    validation_features: Any = None
    test_features: Any = None
    preparation: Preparation | None = None
    unaligned_features: Any = None  # of rows that others lack
    groups: Mapping[str, Any] = field(default_factory=dict)  # with a group: "group", "validation_group", "test_group"

    @property
    def follows(self) -> dict[str, Any]:
        """Sizes of a model that follow from the preparation."""
        if self.preparation is None or self.preparation.categories != "codes":
            return {}
        return {"fields_vocab": list(self.preparation.vocabularies)}


@dataclass(frozen=True)
class TableReader:
    """Reads what one party's section names."""

    section: PartyEntry
    folder: Path
    split: SplitSection | None
    keeps_unaligned: bool = False  # rows that others lack, for models that learn without labels
    owner_columns: Sequence[str] = ()  # ids of the rows' owners, in the label party's table: no features

    @cached_property
    def rows(self) -> RowSelection:
        return RowSelection(self.section, self.folder, self.split)

    def read_features(self, source: Source, taken: Sequence[str] = ()) -> PartyTables:
        """`taken` are columns of the same file that are no features: the label."""
        settings, test_source = self.section.prepare, self.section.test_features
        read = self._read_numbers if settings is None else self._read_cells
        table = read("features", source, taken)

        def read_test() -> Values | Cells | None:
            test = None if test_source is None else read("test_features", test_source, taken)
            if test is not None:
                _require_alike(f"{self.section.path}.test_features", table, test)
            return test

        tables = self.rows.divide("features", table, read_test)
        spare = self.rows.take_unaligned(table) if self.keeps_unaligned else None
        if settings is None:
            rows, steering, test, others = (None if one is None else one.array for one in (*tables, spare))
            return PartyTables(rows, steering, test, unaligned_features=others, groups=self._list_groups())
        with at(f"{self.section.path}.prepare"):
            preparation = Preparation.fit(tables[0], settings)
        converted = self.convert("features", preparation.apply, tables)
        spare = None if spare is None else preparation.apply(spare)
        return PartyTables(*converted, preparation, spare, self._list_groups())

    def _list_groups(self) -> dict[str, Any]:
        kinds = {"group": self.rows.training, "validation_group": self.rows.validation, "test_group": self.rows.test}
        return {field: rows.index for field, rows in kinds.items() if rows is not None and rows.index is not None}

    def convert(
        self, field: str, apply: Callable[[Cells], Tensor], tables: tuple[Cells, Cells | None, Cells | None]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """All as tensors; what is refused names the field whose file it stands in."""
        training, validation, test = tables
        with at(f"{self.section.path}.{field}"):
            rows, steering = apply(training), None if validation is None else apply(validation)
        if test is None:
            return rows, steering, None
        with at(f"{self.section.path}.{field if self.section.test_source is None else f'test_{field}'}"):
            return rows, steering, apply(test)

    def _read_numbers(self, field: str, source: Source, taken: Sequence[str]) -> Values:
        with at(f"{self.section.path}.{field}"):
            found = read_features(
                self.folder / source.file,
                source.key,
                source.columns,
                source.all_but or (),
                source.text_format,
                self.section.takes_gaps,
            )
        for name in taken:
            if name in (found.names or ()):  # a label among the features leaks the answer
                says = f"holds the label {name!r}; write all_but = [{name!r}]"
                raise BadColumn.of(f"{self.section.path}.{field}", says)
        for name in self.owner_columns:
            if name in (found.names or ()):
                says = f"holds {name!r}, the ids of the rows' owners; write all_but = [{name!r}]"
                raise BadColumn.of(f"{self.section.path}.{field}", says)
        return found

    def _read_cells(self, field: str, source: Source, taken: Sequence[str]) -> Cells:
        """Without the id, where it stands in the same file, and without what is `taken`."""
        with at(f"{self.section.path}.{field}"):
            file, form = self.folder / source.file, source.text_format
            if source.key is not None:
                raise BadFile(f"{file}: prepare is for tables, .csv and .parquet; an NPZ file's arrays are ready")
            own = [*self._id_columns(source), *self.owner_columns]
            there = column_names(file, form)
            left_out = [name for name in [*own, *taken] if name in there]
            asked = select_columns(file, there, source.columns, source.all_but or ())
            for name in left_out:
                if name in (source.columns or ()):
                    what = "the rows' id" if name in own else "the label"
                    raise BadColumn(f"{file}: column {name!r} is {what}, not a feature; remove it from columns")
            return read_cells(file, [name for name in asked if name not in left_out], (), form)

    def _id_columns(self, source: Source) -> list[str]:
        """What the ids are called, in the files that hold them; test rows call them alike."""
        named = [ids for ids in (self.section.ids, self.section.test_ids) if ids is not None and ids.column]
        here = [ids for ids in named if self.is_same_file(ids.file, source.file)]
        return [str(ids.column) for ids in here or named]

    def is_same_file(self, one: str, other: str) -> bool:
        """However the two paths are written."""
        return (self.folder / one).resolve() == (self.folder / other).resolve()


def _require_alike(path: str, training: Values | Cells, test: Values | Cells) -> None:
    """Test rows, at `path`, of the same columns or of the same shape as training rows."""
    what = compare_columns(training.names, test.names)
    if what is not None:
        raise BadColumn.of(path, f"{what}; name the same columns as in features")
    if isinstance(training, Values) and isinstance(test, Values) and test.shape != training.shape:
        raise BadInput(f"{path} has rows of shape {test.shape}, features {training.shape}")


def read_label_column(
    reader: TableReader, section: LabelSection
) -> tuple[Tensor, Tensor | None, Tensor | None, LabelCoding | None]:
    """Training, validation and test labels, and what their numbers stand for where they have a task."""
    source, test_source = section.labels, section.test_labels
    coded = source.task is not None or source.classes is not None
    read: Callable[[TableReader, str, ColumnSource], Any] = _read_label_cells if coded else _read_label_numbers
    tables = reader.rows.divide(
        "labels",
        read(reader, "labels", source),
        lambda: None if test_source is None else read(reader, "test_labels", test_source),
    )
    if not coded:
        return *tables, None
    coding = _fit_coding(section, tables[0])
    return *reader.convert("labels", coding.apply, tables), coding


def _fit_coding(section: LabelSection, training: Cells) -> LabelCoding:
    source = section.labels
    with at("label_party.labels"):
        classes = None if source.classes is None else tuple(source.classes)
        coding = LabelCoding.fit(training, str(source.column), source.task or "auto", classes)
    fitting = section.loss in ("squared_error", "poisson")
    if fitting != (coding.task == "regression"):
        right = "squared_error" if coding.task == "regression" else "cross_entropy"
        raise BadLabels.of("label_party.loss", f"is {section.loss!r}, but {coding.says}; write loss = {right!r}")
    # Counts are not standardised.
    return coding.model_copy(update={"mean": 0.0, "deviation": 1.0}) if section.loss == "poisson" else coding


def _read_label_numbers(reader: TableReader, field: str, source: ColumnSource) -> Tensor:
    with at(f"label_party.{field}"):
        file = reader.folder / source.file
        return torch.as_tensor(read_labels(file, source.key, source.column, source.text_format))


def _read_label_cells(reader: TableReader, field: str, source: ColumnSource) -> Cells:
    with at(f"label_party.{field}"):
        if source.key is not None or source.column is None:
            raise BadColumn('task applies to a column of a table; name it with column = "..."')
        return read_cells(reader.folder / source.file, [source.column], (), source.text_format)


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
        return TableReader(section, self.folder, self.split, learns_alone, columns)

    def load_label_data(self, section: LabelSection) -> LabelData:
        reader = self._open_tables(section)
        find_loss(section)
        owners = list_owners(reader.rows)
        labels, validation_labels, test_labels, coding = read_label_column(reader, section)
        if section.features is None:
            return LabelData(labels, validation_labels, test_labels, coding=coding, owners=owners)
        if section.model is None:
            raise BadInput.of(f"{section.path}.model", "is missing: features need a bottom model")
        own = section.labels.column if reader.is_same_file(section.labels.file, section.features.file) else None
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

    def load(self) -> Job:
        """With data and models; refuses whatever cannot run."""
        with self._text.locate_errors():
            return self._load(self._file, build_settings(self._file.job, self._folder, self._file.pretrain))

    def _load(self, file: JobFile, settings: RunSettings) -> Job:
        _require_one_alignment(file, self._folder)
        pretrains = settings.pretraining is not None
        grouped = {section.name: section.group for section in file.party if section.group is not None}
        sections = PartyLoader(
            self._folder, settings.seed, self._recipe, file.job.split, self._code, pretrains, list(grouped.values())
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


def load_job(path: str | Path, overrides: Sequence[str] = (), code: CodeSources | None = None) -> Job:
    """The job of a file, with `key=value` settings on top; refuses whatever cannot run."""
    return JobSource(path, overrides, code).load()


def resolve_job(path: str | Path, overrides: Sequence[str] = ()) -> str:
    """The job file as it was meant, without its data."""
    return JobSource(path, overrides).resolve()


def _require_one_alignment(file: JobFile, folder: Path) -> None:
    for prefix in ("", "test_"):
        every = [RowSource(section, folder, prefix) for section in (*file.party, file.label_party)]
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
