"""Ranks as threads, over gloo: whatever way rows fall among them, they embed and learn as one process does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from job.small import JOB, write_job
from thinwire.base.errors import BadInput, ThinwireError
from thinwire.engine.models import SGD, Adam
from thinwire.engine.programs.program import Batches
from thinwire.engine.protocols.bottom import Bottom, Learner, OwnBottom
from thinwire.engine.protocols.evaluation import HeldOut
from thinwire.job.party_view import read_party_view
from thinwire.training.ranks.batch_norm import share_batch_norm
from thinwire.training.ranks.parallel_bottom import RankFollower, RankModel, RowShares
from thinwire.training.ranks.rank_share import (
    RankGroup,
    TensorTable,
    join_party_ranks,
    load_share,
    open_group_bottom,
    require_divisible,
)
from thinwire.training.ranks.ranks import GroupBroken, RankOrder, Ranks

WIDTH, COLUMNS = 3, 4
SECONDS = timedelta(seconds=60)


def join_threads(run: Callable[[Ranks], Any], size: int) -> list[Any]:
    """What `run` returns at every rank; each is a thread, over gloo as between processes."""
    store, found, errors = HashStore(), {}, []

    def enter(rank: int) -> None:
        try:
            group = dist.ProcessGroup(store, rank, size)
            gloo = dist.ProcessGroupGloo(store, rank, size, SECONDS)
            group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
            found[rank] = run(Ranks(rank, size, group))
        except (ThinwireError, RuntimeError) as error:
            errors.append(error)

    threads = [Thread(target=enter, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SECONDS.total_seconds())
    for error in sorted(errors, key=lambda error: isinstance(error, GroupBroken)):
        raise error  # the first cause before its consequences
    return [found[rank] for rank in range(size)]


def _rows_of(shares: RowShares, rank: int) -> slice:
    own = shares.of(rank)
    return slice(own.start, own.stop)


class _Floats(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def model(*last: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(COLUMNS, 5), nn.Tanh(), nn.Linear(5, WIDTH), *last).double()


def table(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def use(bottom: Bottom, batches: Batches) -> list[Tensor]:
    """What a run asks of a bottom model, and what it says."""
    said = []
    for t in range(batches.rounds):
        bottom.begin(t)
        rows = batches.rows(t)
        h = bottom.embed(t, rows)
        said.append(h.detach())
        with torch.no_grad():
            bottom.embed(t, rows.flip(0))  # nothing is learned from it
            said.append(bottom.embed_all())
        h = bottom.embed(t, rows)
        bottom.learn(rows, h, torch.cos(h.detach()))
        if t % 3 == 1:  # an earlier exchange once more
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
    check_ranks(lambda: model(_Floats()), 2, Batches(20, 7, 1, 0), 5, Adam(lr=0.05), within=1e-6)


@pytest.mark.parametrize(
    ("size", "batches", "tests"),
    [
        (2, Batches(20, 7, 2, 0), 5),
        (3, Batches(12, 2, 1, 0, announced=True), 2),  # of two rows in three ranks, one has none
        (2, Batches(3, None, 3, 0), 0),
    ],
)
def test_ranks_together_are_one_process(size: int, batches: Batches, tests: int) -> None:
    check_ranks(model, size, batches, tests, Adam(lr=0.05))


def test_ranks_embed_what_is_not_trained() -> None:
    check_ranks(lambda: model().requires_grad_(False), 2, Batches(20, 7, 1, 0), 5, None)


def normalised(norm: Callable[[int], nn.Module], x: Callable[[int, int], nn.Module]) -> nn.Module:
    """Normalised twice, so that derivatives pass one on their way to the other."""
    torch.manual_seed(1)
    first = [nn.Linear(COLUMNS, 12), x(3, 4), norm(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 8), x(2, 4), norm(2)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(8, WIDTH)).double()


@pytest.mark.parametrize(
    "make",
    [
        lambda: normalised(nn.BatchNorm1d, lambda channels, more: nn.Unflatten(1, (channels, more))),
        lambda: normalised(nn.BatchNorm2d, lambda channels, more: nn.Unflatten(1, (channels, 2, more // 2))),
        lambda: model(nn.BatchNorm1d(WIDTH, momentum=None, dtype=torch.float64)),
        lambda: model(nn.BatchNorm1d(WIDTH, affine=False, dtype=torch.float64)),
        lambda: nn.BatchNorm1d(COLUMNS, dtype=torch.float64),
    ],
    ids=["1d", "2d", "all batches alike", "no weights", "nothing else"],
)
def test_batch_normalisation_is_over_all_ranks(make: Callable[[], nn.Module]) -> None:
    check_ranks(make, 3, Batches(12, 4, 1, 0), 5, SGD(lr=0.05, momentum=0.9))


def check_ranks(
    make: Callable[[], nn.Module], size: int, batches: Batches, tests: int, spec: Any, within: float = 1e-12
) -> None:
    rows = batches._rows
    features, held_out = table(rows, 2), {HeldOut.TEST: table(tests, 3)} if tests else {}
    alone = make()
    expected = use(OwnBottom(Learner("m", alone, spec, 0, batches.rounds), features, held_out), batches)
    shares, test_shares = RowShares(rows, size), RowShares(tests, size)
    modules = [make() for _ in range(size)]  # the threads share torch's generator

    def run(ranks: Ranks) -> tuple[nn.Module, list[Tensor]]:
        module = share_batch_norm(modules[ranks.rank], ranks)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(float(ranks.is_first))  # rank 0's weights count
        own = features[_rows_of(shares, ranks.rank)]
        held = {which: one[_rows_of(test_shares, ranks.rank)] for which, one in held_out.items()}
        if ranks.is_first:
            group = RankGroup(ranks, rows, dict.fromkeys(held_out, tests))
            learner = Learner("m", module, spec, 0, batches.rounds)
            found = use(open_group_bottom(group, learner, batches, (own, held)), batches)
            ranks.tell(RankOrder.END)
            return module, found

        def open_model(rounds: int) -> RankModel:
            return RankModel(Learner("m", module, spec, 0, rounds), ranks, shares, own, held)

        RankFollower(ranks, open_model, batches).follow()
        return module, []

    (first, found), *others = join_threads(run, size)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=within, atol=within)
    for key, tensor in alone.state_dict().items():
        torch.testing.assert_close(first.state_dict()[key], tensor, rtol=within, atol=within)
    for module, _ in others:
        for key, tensor in first.state_dict().items():
            assert torch.equal(module.state_dict()[key], tensor)


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
    counts = {HeldOut.VALIDATION: 5, HeldOut.TEST: 4}

    def run(ranks: Ranks) -> None:
        group = RankGroup(ranks, 9, counts)
        features, held_out = table(9, 1).float(), {kind: table(rows, 2).float() for kind, rows in counts.items()}
        for changed in (False, True):
            if changed and not ranks.is_first:
                (features if which is None else held_out[which])[-1, 0] += 1  # the last rows are rank 1's
            tables = TensorTable(features), {kind: TensorTable(one) for kind, one in held_out.items()}
            if ranks.is_first:
                group.require_same_rows(*tables)
            else:
                group.send_digest(*tables)

    with pytest.raises(BadInput, match="rank 1 has read other rows than rank 0"):
        join_threads(run, 2)


def test_a_rank_that_is_gone_breaks_the_group() -> None:
    def run(ranks: Ranks) -> None:
        if ranks.is_first:
            ranks.tell(RankOrder.READ)
            ranks.receive(torch.zeros(1), 1)

    with pytest.raises(GroupBroken, match=r"rank 0 of 2, (telling the other ranks what to do|waiting for rank 1): "):
        join_threads(run, 2)


class _Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class _Norm(nn.BatchNorm1d):
    """Of somebody else's: what it computes is not known."""


@pytest.mark.parametrize(
    ("looks", "says"),
    [
        (_Norm(3), r".*Start this party without torchrun, or compute every row"),
        (_Centred(), r".*Start this party without torchrun, or compute every row"),
        (nn.BatchNorm1d(3, track_running_stats=False), "1 has track_running_stats = False"),
    ],
    ids=["another batch normalisation", "a mean over rows", "no running averages"],
)
def test_a_model_that_looks_across_rows_is_refused(tmp_path: Path, looks: nn.Module, says: str) -> None:
    own = read_party_view(write_job(tmp_path), "bank")
    rows = torch.randn(8, 3)
    require_divisible(own, nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), rows)
    with pytest.raises(BadInput, match=f"party.bank.model: {says}"):
        require_divisible(own, nn.Sequential(nn.Linear(3, 3), looks), rows)


def test_what_only_one_process_can_do_is_refused_before_the_others_are_met(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    with pytest.raises(BadInput, match="'clinic' is a label party without features"):
        join_party_ranks(read_party_view(job, "clinic"))
    private = 'batch_size = 32\ntraining = { name = "DPBottom", clip = 1.0, noise_multiplier = 1.0 }'
    job.write_text(JOB.replace("batch_size = 32", private))
    with pytest.raises(BadInput, match=r"job.training: DPBottom adds its noise in one process"):
        join_party_ranks(read_party_view(job, "bank"))
    job.write_text(JOB + "[pretrain]\nepochs = 1\n")
    with pytest.raises(BadInput, match=r"pretrain: models are pre-trained in one process"):
        join_party_ranks(read_party_view(job, "bank"))


def test_more_processes_than_rows_of_a_batch_are_refused(tmp_path: Path) -> None:
    own = read_party_view(write_job(tmp_path), "bank")
    with pytest.raises(BadInput, match="'bank' has 33 processes for batches of 32 rows; start 32 at most, or give"):
        load_share(own, Ranks(0, 33))
