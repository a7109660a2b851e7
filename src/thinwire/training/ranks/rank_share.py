"""A party's several processes: how its rows are shared out, read and checked, and how each one begins."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from thinwire.base.errors import BadInput
from thinwire.base.types import PartyName
from thinwire.data.readers.large_table import LargeTable
from thinwire.engine.models.encoders import Encoder
from thinwire.engine.models.learners import BoostedTrees
from thinwire.engine.models.regression import Linear
from thinwire.engine.privacy.accounting.ledger import Frozen
from thinwire.engine.privacy.dp_bottom import APART, DPBottom, find_row_coupling
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.bottom import FrozenLearner, Learner
from thinwire.engine.protocols.evaluation import HeldOut, begin_training
from thinwire.job.job_loader import LabelData
from thinwire.job.job_snapshot import digest_pieces, digest_tables
from thinwire.job.messages import at
from thinwire.job.party_view import PartyView
from thinwire.job.row_selection import RowSource
from thinwire.job.schema import PartySection, Source
from thinwire.job.table_reader import PartyTables
from thinwire.training.ranks.batch_norm import SHARED_NORMS, find_unshared_norm, share_batch_norm
from thinwire.training.ranks.parallel_bottom import GroupBottom, RankFollower, RankModel, RowShares, ShardedBottom
from thinwire.training.ranks.ranks import RankOrder, Ranks, join_ranks
from thinwire.training.ranks.sharded_learner import ShardedLearner

Tables: TypeAlias = tuple[Tensor, Mapping[HeldOut, Tensor]]  # training rows, and those that are kept back

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

    def select_first(self, features: Tensor, held_out: Mapping[HeldOut, Tensor]) -> Tables:
        """Rank 0's rows, which are the first of each table."""
        shares = self.held_out_shares
        return features[: len(self.shares.of(0))], {
            which: table[: len(shares[which].of(0))] for which, table in held_out.items()
        }

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


# One rank's share of a party's rows: read by itself where the files allow it, else cut from all of them ---


_LARGE = (".parquet", ".arrow")


@dataclass(frozen=True)
class RankShare:
    """What a rank reads; the tables are all of the party's rows, wherever they lie."""

    data: FeatureParty | LabelData  # a feature party has this rank's rows alone, the label party all of its own
    group: RankGroup
    features: RowTable
    held_out: Mapping[HeldOut, RowTable]

    def digests(self, name: PartyName) -> dict[str, str]:
        """Of the whole tables, as one process computes them; they are read once through, a piece at a time."""
        if isinstance(self.data, LabelData):
            return digest_tables(name, self.data)
        tables = {"features": self.features, **{f"{which}_features": one for which, one in self.held_out.items()}}
        return {
            f"{name}.{field}": digest_pieces(
                torch.float32, (len(table), *table.read(0, 1).shape[1:]), read_pieces(table, range(len(table)))
            )
            for field, table in tables.items()
        }

    @property
    def bottom(self) -> nn.Module:
        if self.data.bottom is None:
            raise BadInput("the label party has no bottom model; start it without torchrun")
        return self.data.bottom

    def own_rows(self) -> Tables:
        """This rank's training rows, and those of its rows that are kept back."""
        if isinstance(self.data, FeatureParty):
            return self.data.features, self.data.held_out
        rank, shares = self.group.ranks.rank, self.group.held_out_shares
        held_out = {which: _copy_rows(table, shares[which].of(rank)) for which, table in self.held_out.items()}
        return _copy_rows(self.features, self.group.shares.of(rank)), held_out


def load_share(own: PartyView, ranks: Ranks) -> RankShare:
    """This rank's rows of the party's tables, its bottom model, and how the rows are shared out."""
    section = own.section
    if not isinstance(section, PartySection):
        return _share_label_data(own, ranks)
    if section.group is not None:
        raise BadInput.of(f"{section.path}.group", "is for a party in one process; start it without other ranks")
    sources = [source for source in (section.features, section.test_features) if source is not None]
    as_it_stands = section.prepare is None and own.job.split is None  # else the whole table is looked at
    if as_it_stands and all(_is_large_file(source, own.folder) for source in sources):
        with own.text.locate_errors():
            return _read(own, section, ranks)
    party = own.load_features()
    held_out = {which: TensorTable(table) for which, table in party.held_out.items()}
    return _share_rows(own, party, TensorTable(party.features), held_out, ranks)


def _share_label_data(own: PartyView, ranks: Ranks) -> RankShare:
    """All of the label party's rows: rank 0 needs its labels, and the others cut theirs."""
    data = own.load_label_data()
    tables = {which: getattr(data, f"{which}_features") for which in HeldOut}
    held_out = {which: TensorTable(table) for which, table in tables.items() if table is not None}
    if data.features is None:
        raise BadInput(describe_no_features(own))
    return RankShare(
        data, _open_group(own, ranks, len(data.features), held_out), TensorTable(data.features), held_out
    )


def _open_group(own: PartyView, ranks: Ranks, rows: int, held_out: Mapping[HeldOut, RowTable]) -> RankGroup:
    batch = own.settings.divide_rows(rows).size
    if batch < ranks.size:
        raise BadInput(
            f"party {own.me!r} has {ranks.size} processes for batches of {batch} rows; start {batch} at most, or "
            "give a larger job.batch_size"
        )
    return RankGroup(ranks, rows, {which: len(table) for which, table in held_out.items()})


def _is_large_file(source: Source, folder: Path) -> bool:
    origin = source.find_origin(folder)
    return origin.is_local_file and origin.suffix in _LARGE


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
    features = _open_table(own, f"{path}.features", section.features, RowSource(section, own.folder))
    held_out: dict[HeldOut, RowTable] = {}
    if section.test_features is not None:
        rows = RowSource(section, own.folder, "test_")
        tests = _open_table(own, f"{path}.test_features", section.test_features, rows)
        if tests.table.columns != features.table.columns:
            raise BadInput(f"{path}.test_features has other columns than features; name the same ones")
        held_out[HeldOut.TEST] = tests
    few = PartyTables(features.read(0, min(3, len(features))).numpy())
    party = FeatureParty(own.me, few.features, own.loader.build_bottom(section, few), optimizer=own.optimizer)
    share = _share_rows(own, party, features, held_out, ranks)
    own.check_features(party, share.group.rows, share.group.held_out_rows)
    return share


def _open_table(own: PartyView, path: str, source: Source, every: RowSource) -> _FileTable:
    rows = every.select()
    with at(path):
        table = LargeTable(source.find_origin(own.folder).path, source.columns, source.all_but or ())
    rows.require_size(len(table), path)
    return _FileTable(path, table, None if rows.rows is None else torch.from_numpy(rows.rows.copy()))


def _share_rows(
    own: PartyView, party: FeatureParty, features: RowTable, held_out: Mapping[HeldOut, RowTable], ranks: Ranks
) -> RankShare:
    group = _open_group(own, ranks, len(features), held_out)
    party.features = _copy_rows(features, group.shares.of(ranks.rank))
    for which, table in held_out.items():
        setattr(party, f"{which}_features", _copy_rows(table, group.held_out_shares[which].of(ranks.rank)))
    return RankShare(party, group, features, held_out)


def _copy_rows(table: RowTable, rows: range) -> Tensor:
    """A copy: the rest need not stay in memory."""
    found = table.read(0, 1).new_empty((len(rows), *table.read(0, 1).shape[1:]))
    done = 0
    for piece in read_pieces(table, rows):
        found[done : done + len(piece)] = piece
        done += len(piece)
    return found


# How a party's several processes begin, each with its own rows ------------------------------------------------------


_MOST_WAITS = 7  # a peer that is connected has six times wait_seconds, and one before that
_COMPUTING_SECONDS = 600.0


def join_party_ranks(own: PartyView) -> Ranks:
    """This party's processes, met; refuses what only one process can do, before any data is read."""
    if own.section.features is None:
        raise BadInput(describe_no_features(own))
    if isinstance(own.settings.training, DPBottom):
        raise BadInput("job.training: DPBottom adds its noise in one process; start this party without torchrun")
    if own.settings.pretraining is not None:
        raise BadInput("pretrain: models are pre-trained in one process; start this party without torchrun")
    seconds, device = _MOST_WAITS * own.network.wait_seconds + _COMPUTING_SECONDS, own.settings.device
    if torch.device(device).type == "cuda" and torch.device(device).index is not None:
        raise BadInput(f'job.device is {device!r}, one GPU for all processes; give "cuda", and each takes its own')
    return join_ranks(seconds, device, shards=own.section.parallel == "fsdp2")


def describe_no_features(own: PartyView) -> str:
    return (
        f"{own.me!r} is a label party without features: there is no bottom model to share out, and its top model "
        "runs in one process; start it without torchrun"
    )


def load_first_share(own: PartyView, ranks: Ranks) -> RankShare:
    """At rank 0: its own rows, once all ranks are known to have read the same tables."""
    share = load_share(own, ranks)
    require_divisible(own, share.bottom, share.features.read(0, 3))
    share.group.require_same_rows(share.features, share.held_out)
    return share


def open_group_bottom(group: RankGroup, learner: Learner, batches: Batches, share: Tables) -> GroupBottom:
    """At rank 0: its part of the model, while all other ranks build theirs."""
    group.ranks.tell(RankOrder.OPEN, batches.rounds)
    part = RankModel(learner, group.ranks, group.shares, *share)
    return GroupBottom(part, batches, group.held_out_shares)


def open_sharded_bottom(
    group: RankGroup, learn: Callable[[nn.Module], ShardedLearner], module: nn.Module, batches: Batches, share: Tables
) -> ShardedBottom:
    """The same, with weights that are shared out: those of `module`, which stays as it is."""
    group.ranks.tell(RankOrder.OPEN, batches.rounds)
    learner = learn(share_batch_norm(copy.deepcopy(module), group.ranks))
    part = RankModel(learner, group.ranks, group.shares, *share)
    return ShardedBottom(part, batches, group.held_out_shares, module)


def follow_party(own: PartyView, ranks: Ranks) -> None:
    """At every other rank: reads its rows once rank 0 says so, and works until rank 0 says that it is over."""
    if ranks.receive_order().order is not RankOrder.READ:
        return
    share = load_share(own, ranks)
    group, bottom = share.group, share.bottom
    group.send_digest(share.features, share.held_out)
    features, held_out = share.own_rows()
    del share  # the label party's other rows

    def open_model(rounds: int) -> RankModel:
        device = own.settings.device
        moved = {which: table.to(device) for which, table in held_out.items()}
        learner = _open_learner(own, ranks, bottom, rounds)
        return RankModel(learner, ranks, group.shares, features.to(device), moved)

    RankFollower(ranks, open_model, own.settings.divide_rows(group.rows)).follow()


def _open_learner(own: PartyView, ranks: Ranks, bottom: nn.Module, rounds: int) -> Learner:
    """With an optimiser of its own: its gradients are those of all ranks, so that weights stay the same."""
    # A name of its own: dropout must not draw alike for different rows.
    name, seed = f"{own.me}/bottom/rank {ranks.rank}", own.settings.seed
    module = begin_training(share_batch_norm(bottom, ranks).to(own.settings.device))
    if isinstance(own.settings.training, Frozen):
        return FrozenLearner(name, module, seed, rounds)
    kind = ShardedLearner if ranks.shards else Learner
    return kind(name, module, own.optimizer, seed, rounds)


def require_divisible(own: PartyView, bottom: nn.Module, rows: Tensor) -> None:
    """Refuses a bottom model of which a part of a batch would come out otherwise than in the whole."""
    path = f"{own.section.path}.model"
    if isinstance(bottom, BoostedTrees | Linear | Encoder):
        kind = type(bottom).__name__
        raise BadInput(f"{path}: {kind} is fitted in one process; start this party without torchrun")
    norm = find_unshared_norm(bottom)
    if norm is not None:
        raise BadInput(
            f"{path}: {norm} has track_running_stats = False, so that rows see each other in evaluations too; set it "
            "to True, or start this party without torchrun"
        )
    like = next(bottom.parameters(), rows)
    why = find_row_coupling(_drop_batch_norm(copy.deepcopy(bottom)), rows.to(like.device))
    if why is not None:
        raise BadInput(
            f"{path}: {why}; its rows would be spread over several processes, and give different results than in "
            f"one. Start this party without torchrun, or {APART}"
        )


def _drop_batch_norm(module: nn.Module) -> nn.Module:
    """Ranks compute it together; do rows see each other in any other way?"""
    if type(module) in SHARED_NORMS:
        return nn.Identity()
    for name, child in module.named_children():
        setattr(module, name, _drop_batch_norm(child))
    return module
