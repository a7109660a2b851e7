"""A finished run in this process: its models together, scoring rows.

run = thinwire.load_run("runs/job-1")                         # models as the job file describes them
run = thinwire.load_run("runs/mine", modules={"bank": bottom, "shop": other, "top": top})
run.predict({"bank": x_bank, "shop": x_shop})                 # the top model's outputs, [rows, ...]
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.align import AlignmentResult, Ids, intersect
from thinwire.align.ids import join_texts
from thinwire.base.errors import BadInput
from thinwire.base.numbering import number_by_appearance
from thinwire.base.types import PartyName, Progress
from thinwire.data.readers.sources import TableStore
from thinwire.engine.compress import COMPRESSORS
from thinwire.engine.methods import svfl
from thinwire.engine.models.losses import Outputs
from thinwire.engine.privacy import in_process_identities
from thinwire.engine.programs.parties import accepts_gaps, to_float_tensor
from thinwire.engine.recipe import Recipe
from thinwire.engine.streams import RowOwners
from thinwire.job.checks import find_embedding_width
from thinwire.job.id_table import IdTable, IdTexts, UnmatchedRows, add_unmatched, compare_id_columns
from thinwire.job.job import Job
from thinwire.job.job_file import read_job_file
from thinwire.job.job_loader import load_job
from thinwire.job.own_code import CodeSources
from thinwire.job.registry import build_compressor
from thinwire.job.row_selection import RowSelection, RowSet, RowSource
from thinwire.job.schema import JobFile, PartyEntry
from thinwire.predict.export import LOOKED_AT, ExportedModels, export_models, find_format
from thinwire.predict.model_store import RunFolder, hash_models, list_models, load_model
from thinwire.predict.rows import (
    count_row_set,
    digest_parts,
    join_owners,
    join_tables,
    read_new_features,
    read_new_ids,
    read_new_owners,
    resolve_row_set,
)
from thinwire.predict.scoring import (
    BottomScorer,
    EmbeddingEncoder,
    LedgerRows,
    PrivacySource,
    ScoreFormat,
    TopScorer,
    make_silent_context,
    open_encoder,
)
from thinwire.storage import layout
from thinwire.training.train import describe_models

ASKED_AT_ONCE = 4096  # rows of one question
NO_OWNERS: Mapping[PartyName, RowOwners] = MappingProxyType({})


def load_run(
    folder: str | Path,
    modules: Mapping[PartyName, nn.Module] | None = None,
    job: Job | None = None,
    code: CodeSources | None = None,
    weights: str = "delivered",
    on_progress: Progress | None = None,
) -> TrainedRun:
    """Loads a run of `train` for predictions, with the weights that it delivered or with the "last" ones.

    `modules` must have the shapes that they were trained with; their weights are replaced by the run's. Without them,
    the models are built from the job file in the folder. Your own classes come from `code` alone, never from the
    folder.

    Args:
        folder: a finished run of `tw.train` or `thinwire train`.
        modules: bottom models by party, and the top model under "top".
        job: the job that was trained, where the folder has no job file; a secure sum needs it.
        code: where your own classes may come from.
        weights: "delivered" or "last".
        on_progress: called with columns done, columns in all, and whose they are, while the job's tables are read.

    Returns:
        The run's models together; `predict` takes features by party.

    Raises:
        BadInput: not a run folder, the folder of a single party, or modules of other shapes.

    Examples:
        >>> result = tw.train(job, callbacks=[], out="run")
        >>> tw.load_run("run", job=job).predict({"bank": torch.rand(3, 4)}).shape
        torch.Size([3, 2])
    """
    path = Path(folder)
    if not path.is_dir():
        raise BadInput(f"{path} is not a run folder")
    there = RunFolder(path)
    if job is None and modules is None:
        there.require_whole("every party runs its half: thinwire predict ... --name PARTY")
        job = load_job(there.job, code=code or CodeSources.parse(), on_progress=on_progress)
    if job is not None:
        shape = describe_models(job)
        found: Mapping[PartyName, nn.Module] = modules or job.modules()
    else:
        shape, found = _described(path), modules or {}
        _read_recipe(path)  # refuses what needs its job
    names = list_models(path)
    if set(found) != set(names):
        raise BadInput(f"modules are for {', '.join(sorted(found)) or 'nobody'}; the run has {', '.join(names)}")
    for name, module in found.items():
        if not isinstance(module, nn.Module):
            raise BadInput(f"modules[{name!r}] must be a torch module, got {type(module).__name__}")
        load_model(path, name, module, weights)
        module.eval()
    return TrainedRun(there, dict(found), shape, job)


@dataclass
class TrainedRun:
    """All parties' models in one process."""

    folder: RunFolder
    models: dict[PartyName, nn.Module]  # the top model under "top"
    shape: dict[str, Any]  # who is who, and how embeddings meet
    job: Job | None = None

    @property
    def feature_parties(self) -> tuple[PartyName, ...]:
        return tuple(self.shape["feature_parties"])

    @property
    def label_party(self) -> PartyName:
        return str(self.shape["label_party"])

    @property
    def parties(self) -> tuple[PartyName, ...]:
        """Those with features."""
        own = (self.label_party,) if self.label_party in self.models else ()
        return (*self.feature_parties, *own)

    @property
    def outputs(self) -> ScoreFormat:
        return ScoreFormat.load(Outputs(self.shape["outputs"]), self.folder.path, self.label_party)

    @property
    def version(self) -> str:
        """A hash over all models' files."""
        return hash_models(self.folder.path, list_models(self.folder.path))

    def predict(self, features: Mapping[PartyName, Any]) -> Tensor:
        """The top model's outputs for rows whose features are given by party, in one order; on the CPU."""
        tables = self.check_tables(features)
        rows = torch.arange(len(next(iter(tables.values()))))
        return torch.cat(list(self.score_rows(tables, rows)))

    def probabilities(self, features: Mapping[PartyName, Any]) -> Tensor:
        """As a table of scores has them: probabilities of classes, or values."""
        return self.outputs.format_scores(self.predict(features))

    def export(
        self,
        to: str,
        out: str | Path,
        features: Mapping[PartyName, Any] | None = None,
        on_progress: Progress | None = None,
    ) -> dict[str, Path]:
        """Every model as a file of its own in the folder `out`: see `thinwire.predict.export`.

        `to` is "exported-program", "onnx" or "torchscript". The models' inputs are shaped as the job's features, or
        as a few rows of `features` by party. `on_progress` is called with models done, models in all, and "models".
        """
        find_format(to)
        if features is None:
            features = self._training_features()
        few = min(LOOKED_AT, *map(len, features.values()))  # a party of owners may have fewer
        tables = self.check_tables({name: values[:few] for name, values in features.items()})
        held = ExportedModels.of_run(self.models, tables, self.shape["fusion"], Outputs(self.shape["outputs"]))
        return export_models(self.folder.path, held, to, Path(out), on_progress)

    def _training_features(self) -> Mapping[PartyName, Any]:
        if self.job is None:
            raise BadInput("this run has no job file: give export a few rows of features by party")
        return {party.name: party.features for party in self.job.everyone if party.features is not None}

    def check_tables(
        self, features: Mapping[PartyName, Any], owners: Mapping[PartyName, RowOwners] = NO_OWNERS
    ) -> dict[PartyName, Tensor]:
        """Checked: every party's, finite but for gaps that its model takes; as many rows each, or `owners`."""
        if set(features) != set(self.parties):
            raise BadInput(f"features are for {sorted(features)}, expected those of {', '.join(self.parties)}")
        tables = {
            name: to_float_tensor(name, "features", features[name], accepts_gaps(self.models[name]))
            for name in self.parties
        }
        counts = {name: owners[name].rows if name in owners else len(table) for name, table in tables.items()}
        if len(set(counts.values())) > 1:
            said = ", ".join(f"{name} has {count}" for name, count in counts.items())
            raise BadInput(f"all parties must hold the same rows in the same order: {said}")
        return tables

    def score_rows(
        self,
        tables: Mapping[PartyName, Tensor],
        rows: Tensor,
        counted: LedgerRows | None = None,
        owners: Mapping[PartyName, RowOwners] = NO_OWNERS,
    ) -> Iterator[Tensor]:
        """Outputs of these rows of the tables, a question at a time; charged where the recipe makes a promise.

        `owners` of the rows, at parties whose tables have one row for each.
        """
        with ExitStack() as stack:
            halves, label, first = self._halves(tables, counted, stack, owners)
            for number, asked in enumerate(rows.split(ASKED_AT_ONCE), first):
                bodies = {name: half.encode_rows(asked, number) for name, half in halves.items()}
                yield label.score(label.combine(bodies, asked, number), asked)

    def _halves(
        self,
        tables: Mapping[PartyName, Tensor],
        counted: LedgerRows | None,
        stack: ExitStack,
        owners: Mapping[PartyName, RowOwners],
    ) -> tuple[dict[PartyName, BottomScorer], TopScorer, int]:
        widths = {
            name: find_embedding_width(f"party {name!r}: the bottom model", self.models[name], table)
            for name, table in tables.items()
        }
        recipe = _read_recipe(self.folder.path) if self.job is None else self.job.recipe
        seed = 0 if self.job is None else self.job.seed
        effort = "fast" if self.job is None else self.job.effort
        contexts = {
            name: make_silent_context(name, self.label_party, self.feature_parties, recipe, seed, effort)
            for name in (*self.feature_parties, self.label_party)
        }
        encoders: dict[PartyName, EmbeddingEncoder] = {}
        for name, means in self._means(tables, widths, counted).items():
            encoders[name] = open_encoder(contexts[name], means)
            stack.callback(encoders[name].close)
        _agree(encoders)
        halves = {
            name: BottomScorer(self.models[name], tables[name], encoder, owners.get(name))
            for name, encoder in encoders.items()
        }
        label = TopScorer(
            contexts[self.label_party],
            self.models["top"],
            self.shape["fusion"],
            self.outputs,
            widths,
            self.models.get(self.label_party),
            tables.get(self.label_party),
            owners,
        )
        return halves, label, max(encoder.next_number for encoder in encoders.values())

    def _means(
        self, tables: Mapping[PartyName, Tensor], widths: Mapping[PartyName, int], counted: LedgerRows | None
    ) -> dict[PartyName, PrivacySource | None]:
        if self.job is None:
            return dict.fromkeys(self.feature_parties)
        plan = self.job.privacy_plan(widths)
        identities = in_process_identities(self.feature_parties)
        if counted is None:
            heads = {name: f"{name} {table.dtype} {tuple(table.shape)}\n" for name, table in tables.items()}
            parts = [part for name, table in tables.items() for part in (heads[name], table)]
            counted = LedgerRows(digest_parts(*parts), rows=len(tables[self.feature_parties[0]]))
        return {name: PrivacySource(self.folder, plan, counted, identities[name]) for name in self.feature_parties}


def _agree(encoders: Mapping[PartyName, EmbeddingEncoder]) -> None:
    """Signed keys pass between all, as the label party would pass them on."""
    keys = {name: encoder.sealing.offer() for name, encoder in encoders.items() if encoder.sealing is not None}
    offers = {name: key for name, key in keys.items() if key is not None}
    for name, encoder in encoders.items():
        if encoder.sealing is not None:
            encoder.sealing.take({other: offer for other, offer in offers.items() if other != name})


def _described(folder: Path) -> dict[str, Any]:
    """What `train` wrote about the model's shape."""
    try:
        found = json.loads((folder / layout.MODEL).read_text())
        if found["format"] != 1:
            raise BadInput(f"{folder / layout.MODEL} has format {found['format']}, this version reads 1")
        Outputs(found["outputs"])
        return {key: found[key] for key in ("feature_parties", "label_party", "fusion", "outputs")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{folder / layout.MODEL} cannot be read ({error}): the run is of an older version; give load_run its job"
        ) from None


def _read_recipe(folder: Path) -> Recipe:
    """As much of it as scores depend on."""
    try:
        recipe = json.loads((folder / layout.RECIPE).read_text())
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / layout.RECIPE} cannot be read: {error}") from None
    protects_alone = {kind.__name__ for kind in COMPRESSORS if kind.protects_alone}
    sent = recipe.get("uplink", {}).get("compressor", {}).get("is")
    is_summed = recipe.get("aggregation", {}).get("is") == "SecureSum"
    if is_summed or sent in protects_alone:
        under = "a secure sum" if is_summed else f"the noise of {sent}"
        raise BadInput(f"{folder} was trained under {under}; give load_run its job: what rows cost follows from it")
    scoring = recipe.get("scoring", {"is": "Identity"})
    return replace(svfl(), scoring=build_compressor("scoring", {"name": scoring.pop("is"), **scoring}))


@dataclass(frozen=True, eq=False)
class SimulatedRows:
    """Every party's features of the same rows."""

    tables: Mapping[PartyName, Tensor]
    ids: IdTable | None
    counted: LedgerRows
    unmatched: Mapping[PartyName, UnmatchedRows] = field(default_factory=dict)  # by party, where all have ids
    owners: Mapping[PartyName, RowOwners] = field(default_factory=dict)  # of the rows, at parties with a group

    @property
    def count(self) -> int:
        name, table = next(iter(self.tables.items()))
        return self.owners[name].rows if name in self.owners else len(table)


def read_own_rows(run: TrainedRun, which: RowSet | None) -> SimulatedRows:
    """The job's own rows: test rows where there are any, unless told otherwise."""
    job = run.job
    if job is None:
        raise BadInput("the run has no job file; use run.predict(...)")
    held_out = {kind: len(labels) for kind, labels in job.label_party.held_out.items()}
    which = resolve_row_set(which, held_out)
    room = job.storage if job.encryption_key is None else job.storage.require_folder()
    tables = {one.name: join_tables(which, one, room) for one in job.everyone if one.features is not None}
    file, folder = _file(run)
    rows = RowSelection(file.label_party, folder, file.job.split, TableStore(room))
    counted = LedgerRows(offset=count_row_set(which, job.rows, held_out)[0], rows=job.all_rows)
    owners = {name: join_owners(which, groups) for name, groups in job.owners.items()}
    return SimulatedRows(tables, rows.list_ids(which), counted, _compare_own_ids(file, rows, which), owners)


def _compare_own_ids(file: JobFile, own: RowSelection, which: RowSet) -> dict[PartyName, UnmatchedRows]:
    """Of tables that all parties name ids of."""
    every = [replace(own, section=section) for section in (*file.party, file.label_party)]
    if any(section.group is not None for section in file.party):  # ids of rows, and of their owners
        counts = {one.section.name: one.count_unmatched_rows(which) for one in every}
        return {name: count for name, count in counts.items() if count is not None}
    held = {one.section.name: {source.prefix: source for source in one.list_sources(which)} for one in every}
    if not all(held.values()):
        return {}
    # An id among training rows is no partner of the same id among test rows.
    prefixes = dict.fromkeys(prefix for sources in held.values() for prefix in sources)
    return add_unmatched([_compare_tables({name: held[name].get(one) for name in held}) for one in prefixes])


def _compare_tables(held: Mapping[PartyName, RowSource | None]) -> dict[PartyName, UnmatchedRows]:
    """Equal columns, which are the rule without an alignment, are never in memory together."""
    digests = {(len(ids), ids.digest()) for ids in map(_read_ids, held.values())}
    if len(digests) == 1:
        ((count, _),) = digests
        return {name: UnmatchedRows(0, count, {}, 0) for name in held}
    return compare_id_columns({name: _read_ids(source) for name, source in held.items()})


def _read_ids(source: RowSource | None) -> Ids:
    return join_texts([]) if source is None else source.read_ids()


def read_new_rows(
    run: TrainedRun, files: Mapping[PartyName, Path], id_files: Mapping[PartyName, Path]
) -> SimulatedRows:
    """Rows of other files, one for every party with features; brought into one order where the job has ids."""
    file, folder = _file(run)
    if set(files) != set(run.parties):
        missing = [name for name in run.parties if name not in files]
        extra = [name for name in files if name not in run.parties]
        what = f"{', '.join(missing)} is missing" if missing else f"{', '.join(extra)} is not a party with features"
        raise BadInput(f"--features: give a file for each of {', '.join(run.parties)}; {what}")
    sections: dict[PartyName, PartyEntry] = {one.name: one for one in (*file.party, file.label_party)}
    tables = {
        name: torch.as_tensor(read_new_features(sections[name], folder, path, run.folder.path))
        for name, path in files.items()
    }
    grouped = {one.name: one.group for one in file.party if one.group is not None}
    if grouped:
        return _join_new_rows(run, tables, NewIds(sections, files, id_files, grouped))
    found = {name: read_new_ids(sections[name], path, id_files.get(name)) for name, path in files.items()}
    ids = {name: one for name, one in found.items() if one is not None}
    shared, unmatched = None, {}
    if ids and len(ids) == len(files) and len(files) > 1:
        for name, one in ids.items():
            if len(one) != len(tables[name]):
                raise BadInput(f"--features {name}: {len(tables[name])} rows, but {len(one)} ids")
        first = run.label_party if run.label_party in ids else next(iter(ids))
        unmatched = compare_id_columns(ids)
        aligned = intersect(ids, first)
        tables = {name: table[torch.from_numpy(aligned[name].rows)] for name, table in tables.items()}
        shared = IdTable(IdTexts.of(ids[first], aligned[first].rows))
    elif len(ids) == len(files) == 1:
        (one,) = ids.values()
        shared = IdTable(IdTexts.of(one))
    tables = run.check_tables(tables)
    counted = LedgerRows(digest_parts(*tables.values()), rows=len(next(iter(tables.values()))))
    return SimulatedRows(tables, shared, counted, unmatched)


@dataclass(frozen=True)
class NewIds:
    """Where the ids of new rows and of their owners are."""

    sections: Mapping[PartyName, PartyEntry]
    files: Mapping[PartyName, Path]
    id_files: Mapping[PartyName, Path]
    grouped: Mapping[PartyName, str]

    def align(self, label_party: PartyName) -> tuple[AlignmentResult, Ids]:
        """And the ids of the label party's rows."""
        ids = {}
        for name, section in self.sections.items():
            one = read_new_ids(section, self.files.get(name), self.id_files.get(name))
            if one is None:
                raise BadInput.of(f"{section.path}.ids", "is missing: rows are joined with their owners by ids")
            ids[name] = one
        label, files = self.sections[label_party], (self.files.get(label_party), self.id_files.get(label_party))
        groups = read_new_owners(label, *files, self.grouped)
        return intersect(ids, label_party, groups=groups), ids[label_party]


def _join_new_rows(run: TrainedRun, tables: Mapping[PartyName, Tensor], new: NewIds) -> SimulatedRows:
    """Rows that the label party names, joined with their owners."""
    aligned, ids = new.align(run.label_party)
    chosen, owners = {}, {}
    for name, table in tables.items():
        rows = aligned[name].rows
        if len(table) != aligned[name].sizes[name]:
            raise BadInput(f"--features {name}: {len(table)} rows, but {aligned[name].sizes[name]} ids")
        if aligned[name].is_grouped:
            rows, index = number_by_appearance(rows)
            owners[name] = RowOwners.of(torch.from_numpy(index))
        chosen[name] = table[torch.from_numpy(rows)]
    checked = run.check_tables(chosen, owners)
    shared = IdTable(IdTexts.of(ids, aligned[run.label_party].rows))
    counted = LedgerRows(digest_parts(*checked.values()), rows=len(shared.ids))
    unmatched = {name: UnmatchedRows.outside_alignment(one) for name, one in aligned.items()}
    return SimulatedRows(checked, shared, counted, unmatched, owners)


def _file(run: TrainedRun) -> tuple[JobFile, Path]:
    return read_job_file(run.folder.job), run.folder.path.resolve()
