"""A party's own half of a finished run: its rows, and its models as the run's folder holds them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from thinwire.align import Alignment, Ids, OwnerIds, read_alignment, ristretto, write_alignment
from thinwire.align import Terms as AlignTerms
from thinwire.align.party import AligningParty
from thinwire.base.errors import BadInput
from thinwire.base.numbering import number_by_appearance
from thinwire.base.types import PartyName
from thinwire.engine.models.losses import Outputs
from thinwire.engine.programs.parties import FeatureParty, accepts_gaps
from thinwire.engine.streams import RowOwners
from thinwire.job.id_table import IdTable, IdTexts, UnmatchedRows
from thinwire.job.job_loader import LabelData, find_loss
from thinwire.job.own_code import CodeSources
from thinwire.job.party_view import PartyView, count_rows, read_party_view
from thinwire.job.row_selection import RowSet
from thinwire.job.schema import LabelEntry
from thinwire.net.grpc.service import Refused
from thinwire.net.handshake import CacheTerms, OfferedModel, PredictionHello
from thinwire.predict.model_store import PinnedModels, RunFolder, load_model
from thinwire.predict.rows import (
    NamedColumns,
    count_row_set,
    digest_parts,
    join_owners,
    join_tables,
    read_named_columns,
    read_new_features,
    read_new_ids,
    read_new_owners,
    resolve_row_set,
)
from thinwire.predict.scoring import (
    BottomScorer,
    LedgerRows,
    PrivacySource,
    ScoreFormat,
    TopScorer,
    make_silent_context,
    open_encoder,
    run_in_blocks,
)
from thinwire.storage import layout
from thinwire.storage.atomic_file import make_folder
from thinwire.storage.encrypted_files import Files

_MOST_MODELS = 2  # the one in use, and the next
_MEAN_OF = 65_536  # rows that a mean embedding is taken over


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows that were not there at the training, after their alignment."""

    file: Path | None  # None at a label party without features
    chosen: Any  # which of the file's rows, in the common order
    digest: str
    ids: IdTable | None = None
    unmatched: UnmatchedRows | None = None
    owners: Mapping[PartyName, RowOwners] = field(default_factory=dict)  # of the rows, at parties with a group


@dataclass(frozen=True, eq=False)
class PartyRows:
    """This party's rows to be asked for."""

    features: Tensor | None
    count: int
    digest: str | None  # of their ids
    ids: IdTable | None
    counted: LedgerRows
    unmatched: UnmatchedRows | None = None  # of the tables that they come from; None where these have no ids
    columns: NamedColumns | None = None  # of the label party's own table, where it has names
    takes_gaps: bool = False  # features may be missing
    owners: Mapping[PartyName, RowOwners] = field(default_factory=dict)  # of the rows, at parties with a group

    def introduce(
        self, own: PartyView, models: Sequence[OfferedModel] = (), cache: CacheTerms | None = None
    ) -> PredictionHello:
        """What this party says of itself when it meets another one."""
        parties = [*own.feature_parties, own.label_party]
        return PredictionHello(
            party=own.me, parties=parties, rows=self.count, row_ids=self.digest, models=list(models), cache=cache
        )


def read_party_rows(own: PartyView, held: FeatureParty | LabelData, source: RunSource, run: Path) -> PartyRows:
    """The job's own rows, or new ones, prepared as those of the run."""
    count, held_out = count_rows(held)
    columns = read_named_columns(own.section, own.folder, run) if own.is_label_party else None
    gaps = accepts_gaps(held.bottom)
    if (new := source.new) is not None:
        fresh, size = None, new.owners[own.me].rows if own.me in new.owners else len(new.chosen)
        if new.file is not None:
            fresh = torch.as_tensor(read_new_features(own.section, own.folder, new.file, run))[new.chosen]
        counted = LedgerRows(digest_parts(new.digest, *([] if fresh is None else [fresh])), rows=size)
        return PartyRows(fresh, size, new.digest, new.ids, counted, new.unmatched, columns, gaps, new.owners)
    which = resolve_row_set(source.which, held_out)
    features = None if held.features is None else join_tables(which, held, own.tables.storage)
    found = [own.row_ids()] if RowSet.TRAINING in which.kinds else []
    found += [own.held_out_row_ids(kind) for kind in held_out if RowSet(kind) in which.kinds]
    digest = " ".join(one.digest for one in found if one is not None) if None not in found else None
    with own.text.locate_errors():
        ids = own.rows.list_ids(which) if own.is_label_party else None
        unmatched = own.rows.count_unmatched_rows(which)
    offset, size = count_row_set(which, count, held_out)
    counted = LedgerRows(offset=offset, rows=count + sum(held_out.values()))
    groups = held.owners if isinstance(held, LabelData) else {} if held.owners is None else {own.me: held.owners}
    owners = {name: join_owners(which, one) for name, one in groups.items()}
    return PartyRows(features, size, digest, ids, counted, unmatched, columns, gaps, owners)


@dataclass(frozen=True)
class RunSource:
    """A party's part of the job, the path to its run, which may lead elsewhere later, and which rows to score."""

    own: PartyView
    path: Path
    which: RowSet | None = None
    new: NewRows | None = None

    def folder(self) -> RunFolder:
        """Where the path leads now."""
        return RunFolder(self.path.resolve())


class FeatureModel:
    """A feature party's model of one run."""

    def __init__(self, source: RunSource, folder: RunFolder) -> None:
        me, identity = source.own.me, source.own.network_party.identity()
        own = read_party_view(folder.job, me, code=source.own.code)
        party = own.load_features()
        self.rows = read_party_rows(own, party, source, folder.path)
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
        self.scorer = BottomScorer(self._module, self.rows.features, self.encoder, self.rows.owners.get(me))
        self._training = party.list_rows()

    @cached_property
    def _mean(self) -> list[float]:
        """Of the training rows' embeddings."""
        few = self._training[:_MEAN_OF]
        h = run_in_blocks(self._module, few, torch.arange(len(few)))
        return [float(value) for value in h.double().mean(dim=0)]

    @cached_property
    def _key(self) -> str | None:
        sealing = self.encoder.sealing
        key = None if sealing is None else sealing.offer()
        return None if key is None else base64.b64encode(key).decode()

    def make_offer(self, when_missing: str) -> OfferedModel:
        """With an embedding to take where this party is missing: the "mean", "zeros", or none on "error"."""
        zeros = [0.0] * self.width if when_missing == "zeros" else None
        return OfferedModel(
            run=self.run,
            hash=self.hash,
            recipe=self._recipe,
            width=self.width,
            key=self._key,
            next_number=self.encoder.next_number,
            default=self._mean if when_missing == "mean" else zeros,
        )


class LabelModel:
    """The label party's models of one run; whole once the others' widths are known."""

    def __init__(self, source: RunSource, folder: RunFolder) -> None:
        me = source.own.me
        self._own = own = read_party_view(folder.job, me, code=source.own.code)
        self._data = data = own.load_label_data()
        self._folder = folder
        self.rows = read_party_rows(own, data, source, folder.path)
        self.run, self.hash = folder.run, folder.hash_party_models(me, is_label_party=True)
        self.recipe = own.recipe.digest()
        if not isinstance(own.section, LabelEntry):
            raise BadInput(f"{me!r} is not the label party")
        self.outputs = ScoreFormat.load(Outputs.of(find_loss(own.section)), folder.path, me)
        self.pins = PinnedModels(folder.path / layout.SERVING, folder.files)
        if data.bottom is not None:
            load_model(folder.path, me, data.bottom)
            data.bottom.to(own.settings.device).eval()

    def find_reference_hash(self, party: PartyName) -> str | None:
        """Of a feature party's model: as it was first served, or as the folder of a simulated run holds it."""
        if (served := self.pins.find(self.run, party)) is not None:
            return served.hash
        return self._folder.hash_party_models(party, is_label_party=False) if self._folder.is_simulation else None

    def build_scorer(self, widths: dict[PartyName, int]) -> TopScorer:
        own, data = self._own, self._data
        party = own.build_label_party(data, widths)
        load_model(self._folder.path, "top", party.top)
        context = make_silent_context(
            own.me, own.label_party, own.feature_parties, own.recipe, own.settings.seed, own.settings.effort
        )
        every = widths if data.width is None else {**widths, own.me: data.width}
        top = party.top.to(own.settings.device).eval()
        rows = self.rows
        return TopScorer(context, top, party.fusion, self.outputs, every, data.bottom, rows.features, rows.owners)


_AnyModel = TypeVar("_AnyModel", FeatureModel, LabelModel)


def is_new_run(model: _AnyModel, held: Mapping[str, _AnyModel]) -> bool:
    """Whether a model is of a run beside those that are held; refuses other rows.

    A run's models stay what they were when they were first loaded: refuses a file that has changed.
    """
    first = next(iter(held.values())).rows
    if (model.rows.count, model.rows.digest) != (first.count, first.digest):
        raise BadInput("the new run has other rows than the one in use; restart every party with it")
    if model.run not in held:
        return True
    before, now = held[model.run].hash, model.hash
    if before != now:
        raise BadInput(
            f"it is the run that is in use, but its file has changed: its model was {before[:12]} and is {now[:12]} "
            "now. Restore the file that the run wrote, or train a new run"
        )
    return False


def drop_surplus(held: dict[str, _AnyModel], serving: str | None) -> list[_AnyModel]:
    """Takes out the oldest, and gives them; the one in use and the next one stay."""
    old = [run for run in held if run != serving][:-1]
    return [held.pop(run) for run in old[: max(0, len(held) - _MOST_MODELS)]]


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
        others = [f"{party} {one}\n" for party, one in sorted(self.hashes.items())]
        return digest_parts(f"{self.run} {self.model.hash}\n", *others)


# From what a user names, a job file or a run's folder, to this party's half ---------------------------------------


def find_run(
    source: Path,
    name: PartyName,
    run: Path | None,
    settings: Sequence[str] = (),
    which: RowSet | None = None,
    code: Sequence[str] = (),
) -> RunSource:
    """A folder is a run with its own job.toml; a file is a job whose run lies in runs/<job>/<name> unless given.

    Modules of one's own come from what `code` names, or from beside the job file; never from the run.
    """
    if source.is_dir():
        if run is not None:
            raise BadInput(f"{source} is already a run folder; remove --run")
        return RunSource(read_party_view(source / layout.JOB, name, settings, CodeSources.parse(code)), source, which)
    own = read_party_view(source, name, settings, CodeSources.beside(source, code))
    return RunSource(own, run or Path("runs") / source.stem / name, which)


def align_new_rows(found: RunSource, features: Path | None, ids: Path | None, say: Callable[[str], None]) -> NewRows:
    """This party's half of a private alignment of new rows: nobody shows an id that the others lack.

    It is kept in the run's folder. A party that is started again with the same ids goes on with it, since the others,
    who are at work, would not align once more.
    """
    own = found.own
    if features is None and not own.is_label_party:
        raise BadInput(f"--features {own.me}=FILE is missing: where this party's new rows are")
    grouped = own.roster.grouped
    with own.text.locate_errors():
        own_ids = read_new_ids(own.section, features, ids)
        groups = read_new_owners(own.section, features, ids, grouped if own.is_label_party else {})
    if own_ids is None:
        raise BadInput("new rows are matched by their ids, but this party's section names none")
    folder = found.folder()
    kept = folder.path / layout.NEW_ROWS / f"{own.me}.alignment"
    alignment = _kept(kept, folder.files, own, own_ids, groups)
    if alignment is None:
        alignment = _align(own, own_ids, groups, kept, say)
        make_folder(kept.parent)
        write_alignment(kept, alignment, folder.files)
    else:
        when = f"{alignment.when:%Y-%m-%d %H:%M} UTC"
        say(
            f"these ids were aligned on {when}, and that alignment is reused; to align again, all parties "
            f"remove theirs: {kept}"
        )
    shared = IdTable(IdTexts.of(own_ids, alignment.rows), held=(own_ids,))
    unmatched = UnmatchedRows.outside_alignment(alignment)
    rows, indices = alignment.rows, dict(alignment.owners)
    if alignment.is_grouped:
        rows, indices[own.me] = number_by_appearance(rows)
    owners = {name: RowOwners.of(torch.from_numpy(index)) for name, index in indices.items()}
    return NewRows(features, rows, alignment.digest, shared, unmatched, owners)


def _kept(
    file: Path, files: Files, own: PartyView, ids: Ids, groups: Mapping[PartyName, OwnerIds]
) -> Alignment | None:
    """The last alignment, where it was of these ids with these parties, and of the same owners."""
    if not file.exists():
        return None
    found = read_alignment(file, files)
    parties = (*own.feature_parties, own.label_party)
    same = (found.me, found.parties, found.ids_digest) == (own.me, parties, ids.digest())
    if not same or set(found.grouped) != set(own.roster.grouped):
        return None
    indices = {name: number_by_appearance(group.index[found.rows])[1] for name, group in groups.items()}
    return found if all(np.array_equal(found.owners[name], index) for name, index in indices.items()) else None


def _align(
    own: PartyView, ids: Ids, groups: Mapping[PartyName, OwnerIds], kept: Path, say: Callable[[str], None]
) -> Alignment:
    try:
        with ristretto() as backend:
            party = AligningParty(own.network_party, "rows to score", say, tuple(own.roster.grouped))
            return party.align(ids, backend, AlignTerms(), lambda *_: None, groups)
    except Refused as error:
        raise BadInput(
            f"{error}. This party's ids are new ({kept.name}, the last alignment, is of other ids or missing). If "
            "the others continue with an earlier one, restore the ids that were aligned then; or stop all, remove "
            f"{layout.NEW_ROWS}/ from every party's run, and start them together"
        ) from None
