"""One party's part of a job: of the others it knows the names, and nothing else.

own = read_party_view("bank.toml", "bank")    # no data is read, no module of anybody's imported
own.agreement(), own.who_sees()               # to compare, and to show, before anything is sent
party = own.load_features()                   # a feature party's data and bottom model

data = own.load_label_data()                  # the label party's, while it waits for the others
party = own.build_label_party(data, {"bank": 16, "shop": 16})"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from thinwire.base.errors import BadInput
from thinwire.base.format import did_you_mean
from thinwire.base.types import PartyName, Progress
from thinwire.data.readers.sources import TableStore
from thinwire.engine.compress import Codebook
from thinwire.engine.models import MODELS
from thinwire.engine.models.losses import Loss, with_class_weights
from thinwire.engine.models.optimizers import OptimizerSpec
from thinwire.engine.models.scorecard import POINTS_TO_DOUBLE_ODDS
from thinwire.engine.privacy import Labels
from thinwire.engine.privacy.accounting import Parties
from thinwire.engine.programs.parties import FeatureParty, LabelParty
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.engine.recipe import Recipe
from thinwire.job.checks import (
    check_batch_norm,
    check_column_importance,
    check_early_stopping,
    check_feature_party,
    check_label_party,
    check_module,
    check_names,
    check_outputs,
    check_rows,
    find_embedding_width,
    require_held_out_rows,
)
from thinwire.job.disclosure import Consent, Participants, describe_agreement, describe_budget, describe_training
from thinwire.job.job_file import JobText, read_text, resolve_document, toml_text
from thinwire.job.job_loader import LabelData, PartyLoader, find_loss, require_groups
from thinwire.job.messages import at, within
from thinwire.job.own_code import CodeSources, find_modules
from thinwire.job.privacy_plan import PrivacyPlan
from thinwire.job.registry import (
    build_optimizer,
    build_recipe,
    build_settings,
    complete_model,
    find_curvature,
    look_up,
)
from thinwire.job.row_selection import RowDigest, RowSelection, RowSet
from thinwire.job.schema import (
    JobSection,
    LabelEntry,
    LabelSection,
    NetworkSection,
    PartyEntry,
    PartySection,
    RosterFile,
    ServeSection,
)
from thinwire.job.settings import RunSettings
from thinwire.net.pki.certificates import CertificateFiles

if TYPE_CHECKING:
    from thinwire.net.links.network_party import NetworkParty

_WIDEST = 1 << 20  # an embedding that a peer may announce


@dataclass(frozen=True)
class PartyView:
    """What one party knows of a job before it meets the others."""

    me: PartyName
    roster: Participants
    recipe: Recipe
    optimizer: OptimizerSpec  # its own, or the job's
    job: JobSection  # as it is written
    settings: RunSettings  # what it means
    network: NetworkSection
    serve: ServeSection
    certificate_files: CertificateFiles
    certificate_names: dict[PartyName, str]  # of every party
    folder: Path  # of the job file
    section: PartySection | LabelSection  # its own
    shared_top: LabelEntry | None  # the top model, where every party builds it: under shared labels
    document: dict[str, Any]  # the job as this party reads it, defaults said
    code: CodeSources  # whose modules may be built
    text: JobText = field(compare=False, repr=False)  # where it was read
    on_progress: Progress | None = field(default=None, compare=False, repr=False)  # while its tables are read

    @property
    def label_party(self) -> PartyName:
        return self.roster.label_party

    @property
    def feature_parties(self) -> tuple[PartyName, ...]:
        """In the job's order."""
        return self.roster.feature_parties

    @property
    def is_label_party(self) -> bool:
        return self.me == self.label_party

    @property
    def encryption_key(self) -> Path | None:
        """Of its run's folder."""
        section = self.document.get("encryption")
        return None if section is None else Path(section["key"])

    @property
    def network_party(self) -> NetworkParty:
        """What meeting the others takes."""
        from thinwire.net.links.network_party import NetworkParty  # gRPC is for those who meet

        return NetworkParty(
            self.me,
            self.label_party,
            self.feature_parties,
            self.certificate_files,
            self.certificate_names,
            self.network.listen,
            self.network.address,
            self.network.wait_seconds,
        )

    # Meeting the others ------------------------------------------------------------------------------------

    def agreement(self) -> dict[str, str]:
        """Every field that all parties must read alike; `differences` compares two of them."""
        return describe_agreement(self.recipe, self.job, self.roster, self.shared_top)

    @property
    def consent(self) -> Consent:
        """What this party is asked to agree to."""
        return Consent(self.section, self.recipe, self.roster, self.budget(), self.agreement())

    def who_sees(self) -> dict[PartyName, list[str]]:
        """In words, for every party."""
        return describe_training(self.recipe, self.roster)

    def budget(self) -> str:
        """What protects the rows, in one sentence."""
        return describe_budget(self.recipe, self.settings.training, self.settings.budget)

    def privacy_plan(self, widths: Mapping[PartyName, int]) -> PrivacyPlan:
        """What rows cost; the same at every party. `widths` has the label party's where it holds features."""
        noisy = Parties(len(self.feature_parties), self.label_party in widths)
        width = widths[self.feature_parties[0] if self.is_label_party else self.me]
        return PrivacyPlan(self.recipe, self.settings.training, self.settings.budget, width, noisy)

    def format_document(self) -> str:
        """The job as this party reads it, for its run directory: of the other parties, the names."""
        return toml_text(self.document)

    # Its own data ------------------------------------------------------------------------------------------

    def load_data(self) -> FeatureParty | LabelData:
        """What it holds, whichever role it has."""
        return self.load_label_data() if self.is_label_party else self.load_features()

    def load_features(self) -> FeatureParty:
        """A feature party's data, bottom model and optimiser; refuses what cannot run, as far as it can know."""
        if not isinstance(self.section, PartySection):
            raise BadInput(f"{self.me!r} is the label party: load its label data")
        with self.text.locate_errors():
            party = self.loader.load_feature_party(self.section)
            party.optimizer = self.optimizer
            self.check_features(party, *count_rows(party))
        self.tables.clear()
        return party

    def check_features(self, party: FeatureParty, rows: int, held_out: Mapping[HeldOut, int]) -> None:
        """Refuses what cannot run; `party` may hold some of its rows alone, where it has several processes."""
        self._check_rows(rows, held_out)
        where = f"{self.section.path}.model:"
        check_module(self.me, party.bottom)
        width = find_embedding_width(where, party.bottom, party.features)
        check_feature_party(where, party, width, self.recipe, self.settings)
        check_batch_norm(self.me, party.bottom, self.settings, rows)
        party.width = width
        plan = self.privacy_plan({self.me: width})  # the label party's own come to light when it is met
        with at("job.budget"):
            plan.limit(self.settings, self.me, rows, sum(held_out.values()))

    def load_label_data(self) -> LabelData:
        """What the label party holds before it knows the others' widths."""
        section = self._label_section
        with self.text.locate_errors():
            data = self.loader.load_label_data(section)
            self._check_rows(*count_rows(data))
            require_groups(data.owners, self.roster.grouped)
        self.tables.clear()
        return data

    def build_label_party(self, data: LabelData, widths: Mapping[PartyName, int]) -> LabelParty:
        """The label party with the top model for embeddings of the parties' `widths`; its own may be left out."""
        section = self._label_section
        if widths.get(self.me, data.width) != data.width:
            raise BadInput(f"party {self.me!r}: its own embedding is {data.width} wide, not {widths[self.me]}")
        others = _checked({name: width for name, width in widths.items() if name != self.me}, self.feature_parties)
        with self.text.locate_errors():
            party = self.loader.load_label_party(section, data, list(others.values()))
            party.optimizer = self.optimizer
            every = others if data.width is None else {**others, self.me: data.width}
            check_rows(party, party)
            check_module("top", party.top)
            if party.bottom is not None:
                check_module(self.me, party.bottom)
            with at("label_party"):
                check_label_party(party, list(every.values()), self.recipe, self.settings)
            plan = self.privacy_plan(every)
            with at("job.budget"):
                plan.limit(self.settings, self.feature_parties[0], len(party.labels), len(party.held_out))
            check_outputs(party, list(every.values()), self.settings)
        return party

    def build_top(self, widths: Mapping[PartyName, int]) -> tuple[nn.Module, Loss, str]:
        """Under shared labels: the top model as the label party builds it, the loss and the fusion.

        `widths` are those of all parties with features, the label party's among them where it has any.
        """
        if self.shared_top is None:
            raise BadInput("labels are private: the top model is the label party's alone")
        names = (*self.feature_parties, self.label_party) if self.label_party in widths else self.feature_parties
        ordered = _checked(widths, names)
        with self.text.locate_errors():
            top = self.loader.build_top(self.shared_top, list(ordered.values()))
            loss, weights = find_loss(self.shared_top), self.shared_top.class_weights
            with at("label_party"):
                return top, loss if weights is None else with_class_weights(loss, weights), self.shared_top.fusion

    def row_ids(self) -> RowDigest | None:
        """Which training rows these are, in order; None where the section does not say."""
        with self.text.locate_errors():
            return self.rows.training.digest

    def held_out_row_ids(self, which: HeldOut) -> RowDigest | None:
        with self.text.locate_errors():
            rows = self.rows.select(RowSet(which))
            return None if rows is None else rows.digest

    def row_digests(self) -> dict[str, str | None]:
        """As parties compare them: equal where they hold the same rows in one order."""
        found = {"row_ids": self.row_ids(), **{f"{which}_row_ids": self.held_out_row_ids(which) for which in HeldOut}}
        return {name: None if ids is None else ids.digest for name, ids in found.items()}

    @cached_property
    def rows(self) -> RowSelection:
        """Which rows of this party's tables train, and which are kept back."""
        return RowSelection(self.section, self.folder, self.job.split, self.tables)

    @cached_property
    def tables(self) -> TableStore:
        """Opens what its section names, each table once."""
        room = self.settings.storage
        return TableStore(room if self.encryption_key is None else room.require_folder())

    def _check_rows(self, rows: int, held_out: Mapping[HeldOut, int]) -> None:
        with at("job"):
            self.settings.divide_rows(rows)
            require_held_out_rows(self.settings, *(held_out.get(which, 0) for which in HeldOut))
        tests = held_out.get(HeldOut.TEST)
        for name, chosen, held in (("ids", self.rows.training, rows), ("test_ids", self.rows.test, tests)):
            ids = None if chosen is None else chosen.digest
            if ids is not None and ids.count != held:
                says = f"has {ids.count} ids, but there are {held or 'no'} such rows"
                raise BadInput.of(f"{self.section.path}.{name}", says)

    @property
    def loader(self) -> PartyLoader:
        """Reads what its section names, and builds its models."""
        seed, columns = self.settings.seed, list(self.roster.grouped.values())
        held = (self.settings.pretraining is not None, columns, self.tables, self.on_progress)
        return PartyLoader(self.folder, seed, self.recipe, self.job.split, self.code, *held)

    @property
    def modules(self) -> dict[str, str]:
        """Code that its own section names, by the place where it does."""
        return find_modules(self.section.path, self.section.model_dump())

    @property
    def _label_section(self) -> LabelSection:
        if not isinstance(self.section, LabelSection):
            raise BadInput(f"{self.me!r} is a feature party: load its features")
        return self.section


def count_rows(data: FeatureParty | LabelData) -> tuple[int, dict[HeldOut, int]]:
    """Training rows, and those that are kept back."""
    if isinstance(data, FeatureParty):
        return data.count_rows(), {which: data.count_rows(which) for which in data.held_out}
    tables = {which: getattr(data, f"{which}_labels") for which in HeldOut}
    return len(data.labels), {which: len(table) for which, table in tables.items() if table is not None}


def _checked(widths: Mapping[PartyName, int], names: Sequence[PartyName]) -> dict[PartyName, int]:
    """In the order of the names; what comes from peers is not believed."""
    if set(widths) != set(names):
        raise BadInput(f"widths of {', '.join(widths) or 'nobody'} are known; there must be {', '.join(names)}")
    for name in names:
        width = widths[name]
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _WIDEST:
            raise BadInput(f"party {name!r}: an embedding's width is from 1 to {_WIDEST}, got {width!r}")
    return {name: widths[name] for name in names}


_OF_OTHERS = ("name", "certificate_name", "group")
_OF_THE_TOP = ("top", "fusion", "loss", "class_weights")


def read_party_view(
    path: str | Path, name: PartyName, overrides: Sequence[str] = (), code: CodeSources | None = None
) -> PartyView:
    """The part of party `name`, with `key=value` settings on top; refuses whatever cannot run.

    `code` may run later on, or what is beside the file.
    """
    path = Path(path)
    with within(str(path)):
        text = read_text(path, overrides, name)
    with text.locate_errors():
        return build_party_view(text, name, code)


def read_roster(text: JobText) -> RosterFile:
    """What all parties share, and who they are; refuses what no party could run, whatever its own section says."""
    file = text.validate(RosterFile)
    recipe = build_recipe("recipe", file.recipe)
    build_optimizer("optimizer", file.optimizer)
    if recipe.labels is Labels.SHARED:
        _shared_top(file.label_party)
    _check_shared(file, recipe, text.path.resolve().parent)
    return file


def build_party_view(text: JobText, me: PartyName, code: CodeSources | None = None) -> PartyView:
    """The part of party `me` in a job that was read as its own."""
    folder = text.path.resolve().parent
    file = text.validate(RosterFile)
    section = _own_section(text, file, me)
    recipe = build_recipe("recipe", file.recipe)
    if isinstance(section, PartySection):  # the label party's waits for its labels
        section = complete_model(section, file.label_party, recipe)
        file = file.model_copy(update={"party": [section if one.name == me else one for one in file.party]})
    optimizer = build_optimizer("optimizer", file.optimizer)
    if section.optimizer is not None:
        optimizer = build_optimizer(f"{section.path}.optimizer", section.optimizer)
    settings = _check_shared(file, recipe, folder)
    network = file.network or NetworkSection()
    return PartyView(
        me=me,
        roster=_roster(file, section, recipe),
        recipe=recipe,
        optimizer=optimizer,
        job=file.job,
        settings=settings,
        network=network,
        serve=file.serve or ServeSection(),
        certificate_files=find_certificate_files(section, folder / network.certs, folder),
        certificate_names=list_certificate_names([*file.party, file.label_party]),
        folder=folder,
        section=section,
        shared_top=_shared_top(file.label_party) if recipe.labels is Labels.SHARED else None,
        document=_document(file.model_copy(update={"network": network}), me, recipe, folder),
        code=CodeSources.beside(text.path) if code is None else code,
        text=text,
    )


def _own_section(text: JobText, file: RosterFile, me: PartyName) -> PartySection | LabelSection:
    if file.label_party.name == me:
        return text.validate(LabelSection, ("label_party",))
    names = [party.name for party in file.party]
    if me in names:
        return text.validate(PartySection, ("party", names.index(me)))
    known = [*names, file.label_party.name]
    raise BadInput(f"no party is called {me!r}; there are {', '.join(known)}{did_you_mean(me, known)}")


def _roster(file: RosterFile, section: PartyEntry, recipe: Recipe) -> Participants:
    split = file.job.split
    boosts = section.has_trees or isinstance(recipe.uplink.compressor, Codebook)
    return Participants(
        label_party=file.label_party.name,
        feature_parties=tuple(party.name for party in file.party),
        label_party_has_features=file.label_party.features is not None,
        has_test_rows=section.test_source is not None or (split is not None and bool(split.test)),
        has_validation_rows=split is not None and bool(split.validation),
        measures_columns=file.job.column_importance,
        is_regression=_is_regression(section),
        has_products=bool((section.model or {}).get("pairs")) or _has_top(section, "interaction_top"),
        tree_curvature=find_curvature(file.label_party, recipe) if boosts else None,
        points_to_double_odds=_find_points(section),
        grouped={party.name: party.group for party in file.party if party.group is not None},
    )


def _has_top(section: PartyEntry, name: str) -> bool:
    top = section.top if isinstance(section, LabelEntry) else None
    return str((top or {}).get("name", "")).lower() == name


def _is_regression(section: PartyEntry) -> bool:
    """Does this party, with its columns or its top model, take part in an exact regression?"""
    model = _find_last_model(section)
    name = str(model.get("name", "")).lower()
    return name in ("scorecard", "scorecard_top", "regression_top") or (name == "linear" and "width" not in model)


def _find_points(section: PartyEntry) -> Any:
    """Of a scorecard, as the section has it; None where the model is another one."""
    model = _find_last_model(section)
    is_card = str(model.get("name", "")).lower() in ("scorecard", "scorecard_top")
    return model.get("points_to_double_odds", POINTS_TO_DOUBLE_ODDS) if is_card else None


def _find_last_model(section: PartyEntry) -> Mapping[str, Any]:
    """The top model, where this is its owner."""
    top = section.top if isinstance(section, LabelEntry) else None
    return top or section.model or {}


def _check_shared(file: RosterFile, recipe: Recipe, folder: Path) -> RunSettings:
    """What all parties read alike: names, [job], and that the recipe fits as many parties."""
    settings = build_settings(file.job, folder, file.pretrain)
    check_names([*(party.name for party in file.party), file.label_party.name])
    with at("recipe"):
        recipe.check(len(file.party), file.label_party.fusion, settings.batches)
    with at("job"):
        check_early_stopping(recipe, settings)
        check_column_importance(recipe, settings)
    return settings


def _shared_top(entry: LabelEntry) -> LabelEntry:
    """What every party must know of the label party under shared labels."""
    if entry.top is None:
        raise BadInput.of(
            "label_party.top",
            "is missing: under shared labels every party builds the top model, so put its table "
            "into the part of the job that all parties share",
        )
    if "module" in entry.top:
        raise BadInput(
            "under shared labels every party runs the top model, and no party runs code that another one names; "
            "use a built-in one, such as mlp_top, or private labels"
        ).at("label_party.top.module")
    look_up("label_party.top", entry.top, "name", MODELS)
    find_loss(entry)
    return LabelEntry(
        name=entry.name, top=entry.top, fusion=entry.fusion, loss=entry.loss, class_weights=entry.class_weights
    )


def _document(file: RosterFile, me: PartyName, recipe: Recipe, folder: Path) -> dict[str, Any]:
    """The resolved job, without what is no matter of this party's."""
    document = resolve_document(file, folder)
    document.pop("link", None)
    shared = _OF_THE_TOP if recipe.labels is Labels.SHARED else ()
    document["party"] = [party if party["name"] == me else _only(party, _OF_OTHERS) for party in document["party"]]
    if file.label_party.name != me:
        document["label_party"] = _only(document["label_party"], (*_OF_OTHERS, *shared))
    return document


def _only(table: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def find_certificate_files(section: PartyEntry, certs: Path, folder: Path) -> CertificateFiles:
    """What the section names, from the job file's folder; the rest as `thinwire certs` leaves it in `certs`."""
    named = section.model_dump(include={"authority", "certificate", "key", "revoked"}, exclude_none=True)
    given = {field: folder / path for field, path in named.items()}
    return replace(CertificateFiles.in_folder(certs, section.name), **given)


def list_certificate_names(sections: Sequence[PartyEntry]) -> dict[PartyName, str]:
    """The name that each party's certificate carries: the party's own unless given."""
    found: dict[PartyName, str] = {}
    for section in sections:
        name = section.certificate_name or section.name
        other = next((party for party, taken in found.items() if taken == name), None)
        if other is not None:
            raise BadInput(
                f"certificate_name: {other!r} and {section.name!r} would both be {name!r}; give each a different name"
            )
        found[section.name] = name
    return found
