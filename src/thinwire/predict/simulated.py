"""Scores of a simulated run's rows: which rows, their ids, and what they are charged to."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from thinwire.align import intersect
from thinwire.errors import BadInput
from thinwire.job import Job
from thinwire.job.job_file import read_job_file
from thinwire.job.row_selection import IdTable, RowSelection, RowSet
from thinwire.job.schema import JobFile, PartyEntry
from thinwire.party import FeatureParty, LabelParty
from thinwire.predict.new_rows import new_features, new_ids
from thinwire.predict.run import Run
from thinwire.predict.sealing import Counted
from thinwire.types import PartyName

__all__ = ["SimulatedRows", "new_rows", "own_rows"]


@dataclass(frozen=True, eq=False)
class SimulatedRows:
    """Every party's features of the same rows."""

    tables: Mapping[PartyName, Tensor]
    ids: IdTable | None
    counted: Counted

    @property
    def count(self) -> int:
        return len(next(iter(self.tables.values())))


def own_rows(run: Run, which: RowSet | None) -> SimulatedRows:
    """The job's own rows: test rows where there are any, unless told otherwise."""
    job = _job(run)
    tests = 0 if job.label_party.test_labels is None else len(job.label_party.test_labels)
    which = which or (RowSet.TEST if tests else RowSet.TRAINING)
    if which is RowSet.TEST and not tests:
        raise BadInput("--table test: the job has no test rows; give --table training")
    tables = {}
    everyone: list[FeatureParty | LabelParty] = [*job.parties, job.label_party]
    for party in everyone:
        if party.features is None:
            continue
        parts = {RowSet.TEST: [party.test_features], RowSet.TRAINING: [party.features]}
        chosen = parts.get(which, [party.features, *([] if party.test_features is None else [party.test_features])])
        tables[party.name] = torch.cat(chosen)
    file, folder = _file(run)
    rows = RowSelection("label_party", file.label_party, folder, file.job.split)
    ids = rows.list_ids(which if tests else RowSet.TRAINING)
    offset = job.rows if which is RowSet.TEST else 0
    return SimulatedRows(tables, ids, Counted(offset=offset, rows=job.rows + tests))


def new_rows(run: Run, files: Mapping[PartyName, Path], id_files: Mapping[PartyName, Path]) -> SimulatedRows:
    """Rows of other files, one for every party with features; brought into one order where the job has ids."""
    file, folder = _file(run)
    if set(files) != set(run.parties):
        missing = [name for name in run.parties if name not in files]
        extra = [name for name in files if name not in run.parties]
        what = f"{', '.join(missing)} is missing" if missing else f"{', '.join(extra)} is no party with features"
        raise BadInput(f"--features: give a file for each of {', '.join(run.parties)}; {what}")
    sections: dict[PartyName, tuple[str, PartyEntry]] = {
        **{party.name: (f"party.{party.name}", party) for party in file.party},
        file.label_party.name: ("label_party", file.label_party),
    }
    tables = {
        name: torch.as_tensor(new_features(sections[name][1], sections[name][0], folder, path, run.folder.path))
        for name, path in files.items()
    }
    found = {name: new_ids(sections[name][1], files[name], id_files.get(name)) for name in files}
    ids = {name: one for name, one in found.items() if one is not None}
    shared = None
    if ids and len(ids) == len(files) and len(files) > 1:
        for name, one in ids.items():
            if len(one) != len(tables[name]):
                raise BadInput(f"--features {name}: {len(tables[name])} rows, but {len(one)} ids")
        first = run.label_party if run.label_party in ids else next(iter(ids))
        aligned = intersect(ids, first)
        tables = {name: table[torch.from_numpy(aligned[name].rows)] for name, table in tables.items()}
        shared = IdTable([text.decode() for text in ids[first].texts(aligned[first].rows)])
    elif len(ids) == len(files) == 1:
        (one,) = ids.values()
        shared = IdTable(one.decode())
    tables = run.tables(tables)
    digest = hashlib.sha256()
    for table in tables.values():
        digest.update(table.contiguous().numpy().data)
    return SimulatedRows(tables, shared, Counted(digest.hexdigest(), rows=len(next(iter(tables.values())))))


def _job(run: Run) -> Job:
    if run.job is None:
        raise BadInput("the run has no job file; use run.predict(...)")
    return run.job


def _file(run: Run) -> tuple[JobFile, Path]:
    return read_job_file(run.folder.job), run.folder.path.resolve()
