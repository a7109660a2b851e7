"""One rank's share of a feature party's rows: read by itself where the files allow it, else cut from all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from thinwire.base.errors import BadInput
from thinwire.data.readers.large_table import LargeTable, open_columns
from thinwire.engine.programs.parties import FeatureParty
from thinwire.job.job_snapshot import digest_pieces
from thinwire.job.messages import at
from thinwire.job.party_tables import PartyTables
from thinwire.job.party_view import PartyView
from thinwire.job.row_selection import RowSource, SelectedRows
from thinwire.job.schema import PartySection, Source
from thinwire.training.ranks import Group, Ranks, Table, TensorTable, pieces

_LARGE = (".parquet", ".arrow")


@dataclass(frozen=True)
class Share:
    """A party with this rank's rows alone; the tables are all of its rows, wherever they lie."""

    party: FeatureParty
    group: Group
    features: Table
    test_features: Table | None

    def digests(self) -> dict[str, str]:
        """Of the whole tables, as one process computes them; they are read once through, a piece at a time."""
        tables = {"features": self.features, "test_features": self.test_features}
        return {
            f"{self.party.name}.{field}": digest_pieces(
                torch.float32,
                (len(table), *table.read(0, 1).shape[1:]),
                pieces(table, range(len(table))),
            )
            for field, table in tables.items()
            if table is not None
        }


def load_share(own: PartyView, ranks: Ranks) -> Share:
    """This rank's rows of the party's tables, its bottom model, and how the rows are shared out."""
    section = own.section
    if not isinstance(section, PartySection):
        raise BadInput(f"{own.me!r} is the label party, which is one process")
    sources = [source for source in (section.features, section.test_features) if source is not None]
    as_it_stands = section.prepare is None and own.job.split is None  # else the whole table is looked at
    if as_it_stands and all(Path(source.file).suffix.lower() in _LARGE for source in sources):
        with own.text.located():
            share = _read(own, section, ranks)
            own.check_features(share.party, share.group.rows, share.group.test_rows or None)
            return share
    party = own.load_features()
    tests = None if party.test_features is None else TensorTable(party.test_features)
    return _shared(party, TensorTable(party.features), tests, ranks)


@dataclass(frozen=True)
class _FileTable:
    """Rows of a file, in the order of the alignment; read when they are asked for."""

    where: str
    table: LargeTable
    order: torch.Tensor | None  # None: the file's own

    def __len__(self) -> int:
        return len(self.table) if self.order is None else len(self.order)

    def read(self, start: int, stop: int) -> Tensor:
        rows = np.arange(start, stop) if self.order is None else self.order[start:stop].numpy()
        found = torch.from_numpy(self.table.take(rows))
        if not bool(torch.isfinite(found).all()):
            row, column = torch.nonzero(~torch.isfinite(found))[0].tolist()
            name = self.table.columns[column]
            raise BadInput(
                f"{self.where}: {self.table.file}: column {name!r}, row {int(rows[row]) + 1} holds "
                "NaN, infinity, or a number too large for float32; fill it in or drop the row at every party"
            )
        return found


def _read(own: PartyView, section: PartySection, ranks: Ranks) -> Share:
    path = f"party.{own.me}"
    features = _opened(
        own, f"{path}.features", section.features, RowSource.training(path, section, own.folder).select()
    )
    tests = None
    if section.test_features is not None:
        tests = _opened(
            own, f"{path}.test_features", section.test_features, RowSource.test(path, section, own.folder).select()
        )
        if tests.table.columns != features.table.columns:
            raise BadInput(f"{path}.test_features has other columns than features; name the same ones")
    few = PartyTables(features.read(0, min(3, len(features))).numpy(), None)
    party = FeatureParty(own.me, few.features, own.bottom_of(section, few), optimizer=own.optimizer)
    return _shared(party, features, tests, ranks)


def _opened(own: PartyView, path: str, source: Source, rows: SelectedRows) -> _FileTable:
    with at(path):
        table = open_columns(own.folder / source.file, source.columns, source.all_but or ())
    rows.require_size(len(table), path)
    return _FileTable(path, table, None if rows.rows is None else torch.from_numpy(rows.rows.copy()))


def _shared(party: FeatureParty, features: Table, tests: Table | None, ranks: Ranks) -> Share:
    group = Group(ranks, len(features), 0 if tests is None else len(tests))
    if group.rows < ranks.size:
        raise BadInput(f"party {party.name!r} has {group.rows} rows for {ranks.size} processes; start fewer")
    party.features = _whole(features, group.shares.of(ranks.rank))
    party.test_features = None if tests is None else _whole(tests, group.test_shares.of(ranks.rank))
    return Share(party, group, features, tests)


def _whole(table: Table, rows: range) -> Tensor:
    """A copy: the rest need not stay in memory."""
    found = table.read(0, 1).new_empty((len(rows), *table.read(0, 1).shape[1:]))
    done = 0
    for piece in pieces(table, rows):
        found[done : done + len(piece)] = piece
        done += len(piece)
    return found
