"""One party's part of a job: of the others it knows the names, and nothing else.

own = read_own_part("bank.toml", "bank")      # no data is read, no module of anybody's imported
own.agreement(), own.who_sees()               # to compare, and to show, before anything is sent
party = own.load_features()                   # a feature party's data and bottom model

data = own.load_label_data()                  # the label party's, while it waits for the others
party = own.label_party_of(data, {"bank": 16, "shop": 16})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from thinwire.errors import BadInput
from thinwire.job import agreement as agreements
from thinwire.job import who_sees as sights
from thinwire.job.aligned import RowsOf
from thinwire.job.calls import training_of
from thinwire.job.fates import SplitRows
from thinwire.job.held import Held, Reader
from thinwire.job.job import embedding_width
from thinwire.job.judged import budget_of, judge, judge_batch_size
from thinwire.job.messages import at
from thinwire.job.privacy_plan import PrivacyPlan
from thinwire.job.reading import JobText
from thinwire.job.row_ids import RowIds, read_ids
from thinwire.job.saved import table_digests
from thinwire.job.schema import (
    ColumnSource,
    JobSection,
    LabelEntry,
    LabelSection,
    NetworkSection,
    PartySection,
    ServeSection,
)
from thinwire.job.sections import LabelData, Sections, loss_of
from thinwire.job.stand_ins import Rows, absent_feature_party, absent_label_party, job_of
from thinwire.job.toml_text import toml_text
from thinwire.job.who_sees import Roster
from thinwire.models.losses import Loss, weighted
from thinwire.models.optimizers import OptimizerSpec
from thinwire.party import FeatureParty, LabelParty
from thinwire.privacy.accounting import Parties
from thinwire.privacy.dp_bottom import Training
from thinwire.recipe import Recipe
from thinwire.transport.certificates import CertificateFiles
from thinwire.types import PartyName

__all__ = ["OwnPart"]

_WIDEST = 1 << 20  # an embedding that a peer may announce


@dataclass(frozen=True)
class OwnPart:
    """What one party knows of a job before it meets the others."""

    me: PartyName
    roster: Roster
    recipe: Recipe
    optimizer: OptimizerSpec  # its own, or the job's
    settings: JobSection
    network: NetworkSection
    serve: ServeSection
    certificate_files: CertificateFiles
    certificate_names: dict[PartyName, str]  # of every party
    folder: Path  # of the job file
    section: PartySection | LabelSection  # its own
    shared_top: LabelEntry | None  # the top model, where every party builds it: under shared labels
    document: dict[str, Any]  # the job as this party reads it, defaults said
    text: JobText = field(compare=False, repr=False)  # where it was read

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
    def authority(self) -> Path:
        return self.certificate_files.authority

    @property
    def certificate(self) -> Path:
        return self.certificate_files.certificate

    @property
    def key(self) -> Path:
        return self.certificate_files.key

    @property
    def revoked(self) -> Path | None:
        return self.certificate_files.revoked

    @property
    def encryption_key(self) -> Path | None:
        """Of its run's folder."""
        section = self.document.get("encryption")
        return None if section is None else Path(section["key"])

    # Meeting the others ------------------------------------------------------------------------------------

    @property
    def approved(self) -> str | None:
        """The digest of the recipe that this organisation has approved, or its first digits."""
        return self.section.approved

    def agreement(self) -> dict[str, str]:
        """Every field that all parties must read alike; `differences` compares two of them."""
        return agreements.agreement(self.recipe, self.settings, self.roster, self.shared_top)

    def who_sees(self) -> dict[PartyName, list[str]]:
        """In words, for every party."""
        return sights.who_sees(self.recipe, self.roster)

    def budget(self) -> str:
        """What protects the rows, in one sentence."""
        return sights.budget(self.recipe, self.training, budget_of(self.settings))

    @property
    def training(self) -> Training:
        """How the bottom models learn."""
        return training_of("job.training", self.settings.training)

    def privacy_plan(self, widths: Mapping[PartyName, int]) -> PrivacyPlan:
        """What rows cost; the same at every party. `widths` has the label party's where it holds features."""
        noisy = Parties(len(self.feature_parties), self.label_party in widths)
        width = widths[self.feature_parties[0] if self.is_label_party else self.me]
        return PrivacyPlan(self.recipe, self.training, budget_of(self.settings), width, noisy)

    def resolved_text(self) -> str:
        """The job as this party reads it, for its run directory: of the other parties, the names."""
        return toml_text(self.document)

    # Its own data ------------------------------------------------------------------------------------------

    def load_features(self) -> FeatureParty:
        """A feature party's data, bottom model and optimiser; refuses what cannot run, as far as it can know."""
        if not isinstance(self.section, PartySection):
            raise BadInput(f"{self.me!r} is the label party: load its label data")
        with self.text.located():
            party = self._sections.feature_party(self.section)
            party.optimizer = self.optimizer
            rows = Rows(len(party.features), None if party.test_features is None else len(party.test_features))
            self._judge_rows(rows)
            self._judge_features(party, rows)
        return party

    def bottom_of(self, section: PartySection, few: Held) -> nn.Module:
        """A feature party's bottom model for rows like these."""
        return self._sections.bottom(f"party.{section.name}", section.name, section.model, few)

    def judge_share(self, party: FeatureParty, rows: Rows) -> None:
        """Refuses what cannot run, where this process holds some of the party's rows."""
        self._judge_rows(rows)
        own, tests = party.features, party.test_features
        try:  # as many rows as there are, without the memory for them
            party.features = own[:1].expand(rows.training, *own.shape[1:])
            party.test_features = None if rows.test is None else own[:1].expand(rows.test, *own.shape[1:])
            self._judge_features(party, rows)
        finally:
            party.features, party.test_features = own, tests

    def load_label_data(self) -> LabelData:
        """What the label party holds before it knows the others' widths."""
        section = self._label_section
        with self.text.located():
            data = self._sections.label_data(section)
            self._judge_rows(Rows(len(data.labels), None if data.test_labels is None else len(data.test_labels)))
        return data

    def label_party_of(self, data: LabelData, widths: Mapping[PartyName, int]) -> LabelParty:
        """The label party with the top model for embeddings of the parties' `widths`; its own may be left out."""
        section = self._label_section
        if widths.get(self.me, data.width) != data.width:
            raise BadInput(f"party {self.me!r}: its own embedding is {data.width} wide, not {widths[self.me]}")
        others = _checked({name: width for name, width in widths.items() if name != self.me}, self.feature_parties)
        with self.text.located():
            party = self._sections.label_party(section, data, list(others.values()))
            party.optimizer = self.optimizer
            rows = Rows(len(party.labels), None if party.test_labels is None else len(party.test_labels))
            absent = [absent_feature_party(name, rows, width) for name, width in others.items()]
            judge(job_of(self.recipe, self.settings, absent, party))
        return party

    def top_module(self, widths: Mapping[PartyName, int]) -> tuple[nn.Module, Loss, str]:
        """Under shared labels: the top model as the label party builds it, the loss and the fusion.

        `widths` are those of all parties with features, the label party's among them where it has any.
        """
        if self.shared_top is None:
            raise BadInput("labels are private: the top model is the label party's alone")
        names = (*self.feature_parties, self.label_party) if self.label_party in widths else self.feature_parties
        ordered = _checked(widths, names)
        with self.text.located():
            top = self._sections.top(self.shared_top, list(ordered.values()))
            loss, weights = loss_of(self.shared_top), self.shared_top.class_weights
            with at("label_party"):
                return top, loss if weights is None else weighted(loss, weights), self.shared_top.fusion

    def data_digests(self, data: FeatureParty | LabelData) -> dict[str, str]:
        """One digest for each table, so that a resumed party can tell whether its data has changed."""
        return table_digests(self.me, data)

    def row_ids(self) -> RowIds | None:
        """Which training rows these are, in order; None where the section does not say."""
        with self.text.located():
            return self._ids

    def test_row_ids(self) -> RowIds | None:
        with self.text.located():
            return self._test_ids

    @cached_property
    def _split(self) -> SplitRows | None:
        return Reader(self._path, self.section, self.folder, self.settings.split).split_rows

    @cached_property
    def _ids(self) -> RowIds | None:
        """Of aligned rows, the alignment's own digest, which all parties have."""
        if self._split is not None:
            return self._split.row_ids()
        aligned = RowsOf.training(self._path, self.section).row_ids(self.folder)
        return aligned or self._read_ids("ids", self.section.ids)

    @cached_property
    def _test_ids(self) -> RowIds | None:
        if self._split is not None:
            return self._split.test_row_ids()
        aligned = RowsOf.test(self._path, self.section).row_ids(self.folder)
        return aligned or self._read_ids("test_ids", self.section.test_ids)

    def _read_ids(self, field: str, source: ColumnSource | None) -> RowIds | None:
        if source is None:
            return None
        with at(f"{self._path}.{field}"):
            return read_ids(self.folder / source.file, source.key, source.column, source.delimiter or ",")

    def _judge_rows(self, rows: Rows) -> None:
        judge_batch_size(self.settings, rows.training)
        for name, ids, held in (("ids", self._ids, rows.training), ("test_ids", self._test_ids, rows.test)):
            if ids is not None and ids.count != held:
                raise BadInput(f"{self._path}.{name} has {ids.count} ids, but there are {held or 'no'} such rows")

    def _judge_features(self, party: FeatureParty, rows: Rows) -> None:
        width = embedding_width(f"{self._path}.model:", party.bottom, party.features)
        parties = [
            party if name == self.me else absent_feature_party(name, rows, width) for name in self.feature_parties
        ]
        job = job_of(self.recipe, self.settings, parties, absent_label_party(self.label_party, rows))
        job.check_separate_rows(f"{self._path}.model:", party, width)
        widths = job.check()
        with at("job.budget"):
            job.limited_batching(widths)

    @property
    def _sections(self) -> Sections:
        return Sections(self.folder, self.settings.seed, self.settings.split)

    @property
    def _label_section(self) -> LabelSection:
        if not isinstance(self.section, LabelSection):
            raise BadInput(f"{self.me!r} is a feature party: load its features")
        return self.section

    @property
    def _path(self) -> str:
        return "label_party" if self.is_label_party else f"party.{self.me}"


def _checked(widths: Mapping[PartyName, int], names: Sequence[PartyName]) -> dict[PartyName, int]:
    """In the order of the names; what comes from peers is not believed."""
    if set(widths) != set(names):
        raise BadInput(f"widths of {', '.join(widths) or 'nobody'} are known; there must be {', '.join(names)}")
    for name in names:
        width = widths[name]
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _WIDEST:
            raise BadInput(f"party {name!r}: an embedding's width is from 1 to {_WIDEST}, got {width!r}")
    return {name: widths[name] for name in names}
