"""Ranks as threads: whatever way rows fall among them, they embed and learn as one process does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from job.small import JOB, write_job
from thinwire.base.errors import BadInput
from thinwire.engine.models import Adam
from thinwire.engine.programs.parties import FeatureParty
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.bottom import Learner, OwnBottom
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.party_view import read_party_view
from thinwire.training.ranks.parallel_bottom import GroupBottom, RankModel, RowShares, follow
from thinwire.training.ranks.rank_share import RankGroup, TensorTable, join_party_ranks, require_separate_rows
from thinwire.training.ranks.ranks import RankCommand, RankOrder, Ranks

WIDTH, COLUMNS = 3, 4


class _Lines:
    """What travels between the threads."""

    def __init__(self, size: int) -> None:
        self.between = {(a, b): Queue[Any]() for a in range(size) for b in range(size)}
        self.size = size
        self.barrier = Barrier(size, timeout=300)


def _rows_of(shares: RowShares, rank: int) -> slice:
    own = shares.of(rank)
    return slice(own.start, own.stop)


@dataclass(frozen=True)
class ThreadRanks(Ranks):
    """The same calls, between threads."""

    lines: _Lines

    def tell(self, order: RankOrder, round: int = 0, rows: Tensor | None = None) -> None:
        for rank in range(1, self.size):
            self._put(RankCommand(order, round, None if rows is None else rows.clone()), rank)

    def receive_order(self) -> RankCommand:
        found = self._get(0)
        assert isinstance(found, RankCommand)
        return found

    def share(self, tensor: Tensor) -> None:
        if self.is_first:
            for rank in range(1, self.size):
                self._put(tensor.clone(), rank)
        else:
            tensor.copy_(self._get(0))

    def add_up(self, tensor: Tensor) -> None:
        if self.is_first:
            for rank in range(1, self.size):
                tensor += self._get(rank)
        else:
            self._put(tensor.clone(), 0)

    def send(self, tensor: Tensor, to: int) -> None:
        self._put(tensor.clone(), to)

    def receive(self, into: Tensor, sender: int) -> None:
        found = self._get(sender)
        assert (found.shape, found.dtype) == (into.shape, into.dtype)
        into.copy_(found)

    def _put(self, value: Any, to: int) -> None:
        self.lines.between[self.rank, to].put(value)

    def _get(self, sender: int) -> Any:
        return self.lines.between[sender, self.rank].get(timeout=300)


class _Floats(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def model(*last: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(COLUMNS, 5), nn.Tanh(), nn.Linear(5, WIDTH), *last).double()


def table(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def used(bottom: OwnBottom | GroupBottom, batches: Batches) -> list[Tensor]:
    """What a run asks of a bottom model, and what it says."""
    said = []
    for t in range(batches.rounds):
        bottom.begin(t)
        rows = batches.rows(t)
        h = bottom.embed(t, rows)
        said.append(h.detach())
        bottom.learn(rows, h, torch.cos(h.detach()))
        if t % 3 == 2:  # an earlier exchange once more
            bottom.learn(batches.rows(t - 1), again := bottom.embed(t - 1, batches.rows(t - 1)), again.detach())
        said.append(bottom.embed_all())
    tests = bottom.embed_held_out(HeldOut.TEST)
    if tests is None:
        return said
    last = {name: tensor.clone() for name, tensor in bottom.module.state_dict().items()}
    bottom.load_weights({name: tensor / 2 for name, tensor in last.items()})  # another round's
    halved = bottom.embed_held_out(HeldOut.TEST)
    assert halved is not None
    bottom.load_weights(last)
    return [*said, tests, halved]


def test_an_embedding_of_another_type_than_the_weights_travels() -> None:
    check_ranks(lambda: model(_Floats()), 2, Batches(20, 7, 3, 0, False), 5, Adam(lr=0.05), within=1e-6)


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    ("size", "rows", "batch", "tests"), [(2, 20, 7, 5), (3, 20, 2, 2), (4, 3, 3, 0), (2, 1, 1, 1), (3, 50, None, 7)]
)
def test_ranks_together_are_one_process(
    size: int, rows: int, batch: int | None, tests: int, frozen: bool, announced: bool
) -> None:
    spec = None if frozen else Adam(lr=0.05)
    check_ranks(lambda: model().requires_grad_(not frozen), size, Batches(rows, batch, 3, 0, announced), tests, spec)


def check_ranks(
    make: Callable[[], nn.Module], size: int, batches: Batches, tests: int, spec: Any, within: float = 1e-12
) -> None:
    rows = batches._rows
    features, held_out = table(rows, 2), {HeldOut.TEST: table(tests, 3)} if tests else {}
    alone = make()
    expected = used(OwnBottom(Learner("m", alone, spec, 0, batches.rounds), features, held_out), batches)

    lines, shares, test_shares = _Lines(size), RowShares(rows, size), RowShares(tests, size)
    modules = [make() for _ in range(size)]
    with torch.no_grad():
        for module in modules[1:]:
            for parameter in module.parameters():
                parameter.zero_()  # rank 0's weights count

    def part(rank: int) -> RankModel:
        learner = Learner("m", modules[rank], spec if rank == 0 else None, 0, batches.rounds)
        held = {which: one[_rows_of(test_shares, rank)] for which, one in held_out.items()}
        return RankModel(learner, rank, shares, features[_rows_of(shares, rank)], held)

    ranks = [ThreadRanks(rank, size, lines) for rank in range(size)]
    followers = [Thread(target=follow, args=(ranks[r], part(r), batches, WIDTH)) for r in range(1, size)]
    for follower in followers:
        follower.start()
    found = used(GroupBottom(ranks[0], part(0), batches, WIDTH, dict.fromkeys(held_out, test_shares)), batches)
    ranks[0].tell(RankOrder.END)
    for follower in followers:
        follower.join(30)
        assert not follower.is_alive()

    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=within)
    for module in modules:
        for one, other in zip(module.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=within)


@pytest.mark.parametrize(("rows", "ranks"), [(1, 1), (1, 4), (10, 3), (1000, 7)])
def test_every_row_is_at_one_rank(rows: int, ranks: int) -> None:
    shares = RowShares(rows, ranks)
    held = [row for rank in range(ranks) for row in shares.of(rank)]
    assert held == list(range(rows))
    sizes = [len(shares.of(rank)) for rank in range(ranks)]
    assert max(sizes) - min(sizes) <= 1
    batch = torch.randperm(rows, generator=torch.Generator().manual_seed(0))[: max(1, rows // 2)]
    places = torch.cat([shares.places(batch, rank) for rank in range(ranks)])
    assert sorted(places.tolist()) == list(range(len(batch)))


@pytest.mark.parametrize("which", [None, *HeldOut])
def test_a_rank_with_other_rows_is_named(which: HeldOut | None) -> None:
    lines = _Lines(2)
    counts = {HeldOut.VALIDATION: 5, HeldOut.TEST: 4}
    first, second = (RankGroup(ThreadRanks(rank, 2, lines), 9, counts) for rank in range(2))
    features, held_out = table(9, 1).float(), {kind: table(rows, 2).float() for kind, rows in counts.items()}

    def tables() -> tuple[TensorTable, dict[HeldOut, TensorTable]]:
        return TensorTable(features.clone()), {kind: TensorTable(one.clone()) for kind, one in held_out.items()}

    second.send_digest(*tables())
    first.require_same_rows(*tables())
    before = tables()
    (features if which is None else held_out[which])[-1, 0] += 1  # the last rows are rank 1's
    second.send_digest(*tables())
    with pytest.raises(BadInput, match="rank 1 has read other rows than rank 0"):
        first.require_same_rows(*before)


class _Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize("looks", [nn.BatchNorm1d(3), _Centred()], ids=["batch normalisation", "a mean over rows"])
def test_a_model_that_looks_across_rows_is_refused(tmp_path: Path, looks: nn.Module) -> None:
    own = read_party_view(write_job(tmp_path), "bank")
    party = FeatureParty("bank", torch.randn(8, 3), nn.Sequential(nn.Linear(3, 3), looks))
    with pytest.raises(
        BadInput, match=r"party.bank.model: .*Start this party without torchrun, or compute every row"
    ):
        require_separate_rows(own, party)


def test_what_only_one_process_can_do_is_refused_before_the_others_are_met(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with pytest.raises(BadInput, match="'clinic' is the label party, which runs in one process"):
        join_party_ranks(read_party_view(job, "clinic"))
    private = 'batch_size = 32\ntraining = { name = "DPBottom", clip = 1.0, noise_multiplier = 1.0 }'
    job.write_text(JOB.replace("batch_size = 32", private))
    with pytest.raises(BadInput, match=r"job.training: DPBottom adds its noise in one process"):
        join_party_ranks(read_party_view(job, "bank"))
