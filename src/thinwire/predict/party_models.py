"""A party's own half of a finished run: its rows, and its models as the run's folder holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.engine.models.losses import Outputs
from thinwire.engine.privacy import PartyIdentity
from thinwire.engine.programs.parties import FeatureParty
from thinwire.job.job_loader import LabelData, find_loss
from thinwire.job.party_view import PartyView, read_party_view
from thinwire.job.row_selection import IdTable, RowSet
from thinwire.job.schema import LabelEntry
from thinwire.net.handshake import OfferedModel
from thinwire.predict.fixed_batch import run_in_blocks
from thinwire.predict.model_store import PinnedModels, RunFolder, load_model
from thinwire.predict.rows import join_tables, read_new_features, resolve_row_set
from thinwire.predict.scoring import (
    BottomScorer,
    LedgerRows,
    PrivacySource,
    ScoreFormat,
    TopScorer,
    make_silent_context,
    open_encoder,
)
from thinwire.storage import layout

_MEAN_OF = 65_536  # rows that a mean embedding is taken over


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows that were not there at the training, after their alignment."""

    file: Path | None  # None at a label party without features
    chosen: Any  # which of the file's rows, in the common order
    digest: str
    ids: IdTable | None = None


@dataclass(frozen=True, eq=False)
class PartyRows:
    """This party's rows to be asked for."""

    features: Tensor | None
    count: int
    digest: str | None  # of their ids
    ids: IdTable | None
    counted: LedgerRows


def read_party_rows(
    own: PartyView, held: FeatureParty | LabelData, which: RowSet | None, new: NewRows | None, run: Path
) -> PartyRows:
    """The job's own rows, or new ones, prepared as those of the run."""
    tests = held.test_labels if isinstance(held, LabelData) else held.test_features
    count = len(held.labels if isinstance(held, LabelData) else held.features)
    more = 0 if tests is None else len(tests)
    path = "label_party" if own.is_label_party else f"party.{own.me}"
    if new is not None:
        fresh = None
        if new.file is not None:
            fresh = torch.as_tensor(read_new_features(own.section, path, own.folder, new.file, run))[new.chosen]
        size = len(new.chosen)
        counted = LedgerRows(_digest(new.digest, fresh), rows=size)
        return PartyRows(fresh, size, new.digest, new.ids, counted)
    which = resolve_row_set(which, more)
    features = None if held.features is None else join_tables(which, held.features, held.test_features)
    found = [own.row_ids()] if which is not RowSet.TEST else []
    found += [own.test_row_ids()] if which is not RowSet.TRAINING else []
    digest = " ".join(one.digest for one in found if one is not None) if None not in found else None
    with own.text.locate_errors():
        ids = own.rows.list_ids(which) if own.is_label_party else None
    size = {RowSet.TRAINING: count, RowSet.TEST: more, RowSet.ALL: count + more}[which]
    counted = LedgerRows(offset=count if which is RowSet.TEST else 0, rows=count + more)
    return PartyRows(features, size, digest, ids, counted)


class FeatureModel:
    """A feature party's model of one run."""

    def __init__(
        self, me: PartyName, folder: RunFolder, which: RowSet | None, new: NewRows | None, identity: PartyIdentity
    ) -> None:
        own = read_party_view(folder.job, me)
        party = own.load_features()
        self.rows = read_party_rows(own, party, which, new, folder.path)
        load_model(folder.path, me, party.bottom)
        self.run, self.hash = folder.run, folder.hash_party_models(me, is_label_party=False)
        self._recipe = own.recipe.digest()
        self._module: nn.Module = party.bottom.to(own.settings.device).eval()
        if self.rows.features is None:
            raise BadInput(f"{me!r} has no features to answer with")
        first = self.rows.features[:1]
        self.width = int(run_in_blocks(self._module, first, torch.zeros(1, dtype=torch.long)).shape[1])
        context = make_silent_context(
            me, own.label_party, own.feature_parties, own.recipe, own.settings.seed, own.settings.effort
        )
        adds = folder.label_party_adds(own.label_party)
        widths = {me: self.width} | ({own.label_party: self.width} if adds else {})
        plan = own.privacy_plan(widths)
        self.encoder = open_encoder(context, PrivacySource(folder, plan, self.rows.counted, identity))
        self.scorer = BottomScorer(self._module, self.rows.features, self.encoder)
        self._training = party.features

    def compute_mean(self) -> list[float]:
        """Of the training rows' embeddings."""
        few = self._training[:_MEAN_OF]
        h = run_in_blocks(self._module, few, torch.arange(len(few)))
        return [float(value) for value in h.double().mean(dim=0)]

    def make_offer(self, default: list[float] | None, key: str | None) -> OfferedModel:
        return OfferedModel(
            run=self.run,
            hash=self.hash,
            recipe=self._recipe,
            width=self.width,
            key=key,
            next_number=self.encoder.next_number,
            default=default,
        )


class LabelModel:
    """The label party's models of one run; whole once the others' widths are known."""

    def __init__(self, me: PartyName, folder: RunFolder, which: RowSet | None, new: NewRows | None) -> None:
        self._own = own = read_party_view(folder.job, me)
        self._data = data = own.load_label_data()
        self._folder = folder
        self.rows = read_party_rows(own, data, which, new, folder.path)
        self.run, self.hash = folder.run, folder.hash_party_models(me, is_label_party=True)
        self.recipe = own.recipe.digest()
        if not isinstance(own.section, LabelEntry):
            raise BadInput(f"{me!r} is no label party")
        self.outputs = ScoreFormat.load(Outputs.of(find_loss(own.section)), folder.path, me)
        self.pins = PinnedModels(folder.path / layout.SERVING, folder.files)
        if data.bottom is not None:
            load_model(folder.path, me, data.bottom)
            data.bottom.to(own.settings.device).eval()

    def find_reference_hash(self, party: PartyName) -> str | None:
        """Of a feature party's model: as it was first served, or as the folder of a simulated run holds it."""
        served = self.pins.find_hash(self.run, party)
        if served is not None or not self._folder.is_simulation:
            return served
        return self._folder.hash_party_models(party, is_label_party=False)

    @property
    def own_features(self) -> Tensor | None:
        return self.rows.features

    def build_scorer(self, widths: dict[PartyName, int]) -> TopScorer:
        own, data = self._own, self._data
        party = own.build_label_party(data, widths)
        load_model(self._folder.path, "top", party.top)
        context = make_silent_context(
            own.me, own.label_party, own.feature_parties, own.recipe, own.settings.seed, own.settings.effort
        )
        every = widths if data.width is None else {**widths, own.me: data.width}
        top = party.top.to(own.settings.device).eval()
        return TopScorer(context, top, party.fusion, self.outputs, every, data.bottom, self.rows.features)


_AnyModel = TypeVar("_AnyModel", FeatureModel, LabelModel)


def is_new_run(model: _AnyModel, held: Mapping[str, _AnyModel]) -> bool:
    """Whether a model is of a run beside those that are held; refuses other rows.

    A run's models stay what they were when they were first loaded: refuses a file that has changed.
    """
    first = next(iter(held.values())).rows
    if (model.rows.count, model.rows.digest) != (first.count, first.digest):
        raise BadInput("the new run has other rows than the one in use; start anew with it at every party")
    if model.run not in held:
        return True
    before, now = held[model.run].hash, model.hash
    if before != now:
        raise BadInput(
            f"it is the run that is in use, but its file has changed: its model was {before[:12]} and is {now[:12]} "
            "now. Bring back the file that the run wrote, or train a new run"
        )
    return False


def _digest(of: str, table: Tensor | None) -> str:
    digest = hashlib.sha256(of.encode())
    if table is not None:
        digest.update(table.contiguous().numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class ReadyModel:
    """The label party's half and everybody's hash."""

    model: LabelModel
    scorer: TopScorer
    hashes: Mapping[PartyName, str]
    defaults: Mapping[PartyName, Sequence[float]]  # of parties that state one

    @property
    def run(self) -> str:
        return self.model.run

    @cached_property
    def version(self) -> str:
        """One hash over all parties' models."""
        digest = hashlib.sha256(f"{self.run} {self.model.hash}\n".encode())
        for party, one in sorted(self.hashes.items()):
            digest.update(f"{party} {one}\n".encode())
        return digest.hexdigest()
