"""A feature party's several processes: how its rows are shared out, read and checked, and how each one begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from thinwire.base.errors import BadInput
from thinwire.data.readers.large_table import LargeTable
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.privacy.dp_bottom import APART, DPBottom, find_row_coupling
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.protocols.bottom import FrozenLearner, Learner
from thinwire.engine.protocols.evaluation import HeldOut, begin_training
from thinwire.job.job_loader import PartyTables
from thinwire.job.job_snapshot import digest_pieces
from thinwire.job.messages import at
from thinwire.job.party_view import PartyView
from thinwire.job.row_selection import RowSource
from thinwire.job.schema import PartySection, Source
from thinwire.training.ranks.parallel_bottom import RankModel, RowShares, follow
from thinwire.training.ranks.ranks import RankOrder, Ranks, join_ranks

_DIGEST = 16  # bytes
_ROWS = 65_536  # read at a time


class RowTable(Protocol):
    """A party's rows in the order of the alignment, wherever they lie."""

    def __len__(self) -> int: ...

    def read(self, start: int, stop: int) -> Tensor:
        """float32 [stop - start, ...]."""
        ...


@dataclass(frozen=True)
class TensorTable:
    """In memory."""

    tensor: Tensor

    def __len__(self) -> int:
        return len(self.tensor)

    def read(self, start: int, stop: int) -> Tensor:
        return self.tensor[start:stop]


def read_pieces(table: RowTable, rows: range) -> Iterator[Tensor]:
    """These rows, some at a time."""
    for start in range(rows.start, rows.stop, _ROWS):
        yield table.read(start, min(start + _ROWS, rows.stop))


@dataclass(frozen=True, slots=True)
class RankGroup:
    """A party's processes, and how its rows are shared out among them."""

    ranks: Ranks
    rows: int
    held_out_rows: Mapping[HeldOut, int]

    @property
    def shares(self) -> RowShares:
        return RowShares(self.rows, self.ranks.size)

    @property
    def held_out_shares(self) -> dict[HeldOut, RowShares]:
        return {which: RowShares(rows, self.ranks.size) for which, rows in self.held_out_rows.items()}

    def require_same_rows(self, features: RowTable, held_out: Mapping[HeldOut, RowTable]) -> None:
        """At rank 0: refuses where another rank has read other rows."""
        for rank in range(1, self.ranks.size):
            told = torch.zeros(_DIGEST, dtype=torch.uint8)
            self.ranks.receive(told, rank)
            if not torch.equal(told, self._digest(features, held_out, rank)):
                raise BadInput(
                    f"rank {rank} has read other rows than rank 0: its copy of the party's files differs; copy the "
                    "files again"
                )

    def send_digest(self, features: RowTable, held_out: Mapping[HeldOut, RowTable]) -> None:
        """At the other ranks."""
        self.ranks.send(self._digest(features, held_out, self.ranks.rank), 0)

    def _digest(self, features: RowTable, held_out: Mapping[HeldOut, RowTable], rank: int) -> Tensor:
        """Of one rank's rows, and of how many there are in all."""
        digest = xxhash.xxh3_128(f"{self.rows} {sorted(self.held_out_rows.items())}".encode())
        shares = self.held_out_shares
        for table, share in ((features, self.shares), *((held_out[which], shares[which]) for which in shares)):
            for piece in read_pieces(table, share.of(rank)):
                digest.update(f"{tuple(piece.shape)}".encode())
                digest.update(piece.reshape(-1).numpy().data)
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


# One rank's share of a feature party's rows: read by itself where the files allow it, else cut from all of them ---


_LARGE = (".parquet", ".arrow")


@dataclass(frozen=True)
class RankShare:
    """A party with this rank's rows alone; the tables are all of its rows, wherever they lie."""

    party: FeatureParty
    group: RankGroup
    features: RowTable
    held_out: Mapping[HeldOut, RowTable]

    def digests(self) -> dict[str, str]:
        """Of the whole tables, as one process computes them; they are read once through, a piece at a time."""
        tables = {"features": self.features, **{f"{which}_features": one for which, one in self.held_out.items()}}
        return {
            f"{self.party.name}.{field}": digest_pieces(
                torch.float32, (len(table), *table.read(0, 1).shape[1:]), read_pieces(table, range(len(table)))
            )
            for field, table in tables.items()
        }


def load_share(own: PartyView, ranks: Ranks) -> RankShare:
    """This rank's rows of the party's tables, its bottom model, and how the rows are shared out."""
    section = own.section
    if not isinstance(section, PartySection):
        raise BadInput(f"{own.me!r} is the label party, which is one process")
    if section.group is not None:
        raise BadInput.of(f"{section.path}.group", "is for a party in one process; start it without other ranks")
    sources = [source for source in (section.features, section.test_features) if source is not None]
    as_it_stands = section.prepare is None and own.job.split is None  # else the whole table is looked at
    if as_it_stands and all(Path(source.file).suffix.lower() in _LARGE for source in sources):
        with own.text.locate_errors():
            share = _read(own, section, ranks)
            own.check_features(share.party, share.group.rows, share.group.held_out_rows)
            return share
    party = own.load_features()
    held_out = {which: TensorTable(table) for which, table in party.held_out.items()}
    return _shared(party, TensorTable(party.features), held_out, ranks)


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


def _read(own: PartyView, section: PartySection, ranks: Ranks) -> RankShare:
    path = section.path
    features = _opened(own, f"{path}.features", section.features, RowSource(section, own.folder))
    held_out: dict[HeldOut, RowTable] = {}
    if section.test_features is not None:
        rows = RowSource(section, own.folder, "test_")
        tests = _opened(own, f"{path}.test_features", section.test_features, rows)
        if tests.table.columns != features.table.columns:
            raise BadInput(f"{path}.test_features has other columns than features; name the same ones")
        held_out[HeldOut.TEST] = tests
    few = PartyTables(features.read(0, min(3, len(features))).numpy())
    party = FeatureParty(own.me, few.features, own.loader.build_bottom(section, few), optimizer=own.optimizer)
    return _shared(party, features, held_out, ranks)


def _opened(own: PartyView, path: str, source: Source, every: RowSource) -> _FileTable:
    rows = every.select()
    with at(path):
        table = LargeTable(own.folder / source.file, source.columns, source.all_but or ())
    rows.require_size(len(table), path)
    return _FileTable(path, table, None if rows.rows is None else torch.from_numpy(rows.rows.copy()))


def _shared(party: FeatureParty, features: RowTable, held_out: Mapping[HeldOut, RowTable], ranks: Ranks) -> RankShare:
    group = RankGroup(ranks, len(features), {which: len(table) for which, table in held_out.items()})
    if group.rows < ranks.size:
        raise BadInput(f"party {party.name!r} has {group.rows} rows for {ranks.size} processes; start fewer")
    party.features = _whole(features, group.shares.of(ranks.rank))
    for which, table in held_out.items():
        setattr(party, f"{which}_features", _whole(table, group.held_out_shares[which].of(ranks.rank)))
    return RankShare(party, group, features, held_out)


def _whole(table: RowTable, rows: range) -> Tensor:
    """A copy: the rest need not stay in memory."""
    found = table.read(0, 1).new_empty((len(rows), *table.read(0, 1).shape[1:]))
    done = 0
    for piece in read_pieces(table, rows):
        found[done : done + len(piece)] = piece
        done += len(piece)
    return found


# A feature party's several processes: how they begin, each with its own rows --------------------------------------


_MOST_WAITS = 7  # a peer that is connected has six times wait_seconds, and one before that
_COMPUTING_SECONDS = 600.0


def join_party_ranks(own: PartyView) -> Ranks:
    """This party's processes, met; refuses what only one process can do, before any data is read."""
    if own.is_label_party:
        raise BadInput(
            f"{own.me!r} is the label party, which runs in one process: start it without torchrun; only a feature "
            "party's bottom model can be on several"
        )
    if isinstance(own.settings.training, DPBottom):
        raise BadInput("job.training: DPBottom adds its noise in one process; start this party without torchrun")
    return join_ranks(_MOST_WAITS * own.network.wait_seconds + _COMPUTING_SECONDS)


def load_first_share(own: PartyView, ranks: Ranks) -> RankShare:
    """At rank 0: its own rows, once all ranks are known to have read the same tables."""
    share = load_share(own, ranks)
    require_separate_rows(own, share.party)
    share.group.require_same_rows(share.features, share.held_out)
    return share


def follow_party(own: PartyView, ranks: Ranks) -> None:
    """At every other rank: reads its rows once rank 0 says so, and works until rank 0 says that it is over."""
    if ranks.receive_order().order is not RankOrder.READ:
        return
    share = load_share(own, ranks)
    party, group = share.party, share.group
    group.send_digest(share.features, share.held_out)
    batches = own.settings.divide_rows(group.rows)
    device = own.settings.device
    # A name of its own: dropout must not draw alike for different rows.
    name, module = f"{own.me}/bottom/rank {ranks.rank}", begin_training(party.bottom.to(device))
    learner = Learner(name, module, None, own.settings.seed, batches.rounds)
    if isinstance(own.settings.training, Frozen):
        learner = FrozenLearner(name, module, own.settings.seed, batches.rounds)
    held_out = {which: table.to(device) for which, table in party.held_out.items()}
    follow(
        ranks,
        RankModel(learner, ranks.rank, group.shares, party.features.to(device), held_out),
        batches,
        party.width or 0,
    )


def require_separate_rows(own: PartyView, party: FeatureParty) -> None:
    """Refuses a bottom model in which rows see each other: a part of a batch would come out otherwise."""
    if isinstance(party.bottom, BoostedTrees):
        raise BadInput(
            f"party.{own.me}.model: boosted trees are fitted in one process; start this party without torchrun"
        )
    like = next(party.bottom.parameters(), party.features)
    why = find_row_coupling(party.bottom, party.features[:3].to(like.device))
    if why is not None:
        raise BadInput(
            f"party.{own.me}.model: {why}; its rows would lie in several processes, and come out otherwise than in "
            f"one. Start this party without torchrun, or {APART}"
        )
