"""The engine beside the papers' pseudo-code: methods, their settings crossed, against naive loops (`naive.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thinwire as tw
from engine.identities import naive
from engine.identities.naive import Compress, Network
from thinwire.base.seeds import derive_seed
from thinwire.engine.compress import QSGD, Compressor, Identity, PoissonBinomial, TopK, Uniform
from thinwire.engine.compress.randomness import keystream
from thinwire.engine.compress.symbols import Counts
from thinwire.engine.methods import celu, cvfl, efvfl, fedbcd, pbm, svfl
from thinwire.engine.streams import RoundSeeds

ROWS, PARTIES, WIDTH, CLASSES = 17, 3, 4, 3
BATCHES: dict[str, dict[str, Any]] = {
    "full": {"batch_size": None, "epochs": 3},
    "mini": {"batch_size": 9, "epochs": 2},  # the last one is shorter
}
BATCH_KINDS = pytest.mark.parametrize("batches", BATCHES)


def uniform(k: int, t: int, count: int) -> Tensor:
    """The draws that a party's stream makes in this round, of a run with seed 0."""
    name = "lab/top" if k == naive.TOP else f"p{k}/uplink"
    return torch.from_numpy(keystream(RoundSeeds(0, name)(t)).uniform(count))


COMPRESSORS: dict[str, tuple[Compressor, Compress]] = {
    "identity": (Identity(), naive.identity),
    "topk": (TopK(0.3), naive.top_k(0.3)),
    "qsgd": (QSGD(levels=4), naive.qsgd(4, uniform)),
    "bins": (Uniform(3, dither=False), naive.bins(3)),
    "topk of rows": (TopK(0.5, scope="row"), naive.top_k_of_rows(0.5)),
}


def bottoms() -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Sequential(nn.Linear(5, WIDTH), nn.Tanh()) for _ in range(PARTIES)]


def top(fusion: str) -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(WIDTH * (PARTIES if fusion == "concat" else 1), CLASSES)


def tables() -> tuple[list[Tensor], Tensor]:
    rng = torch.Generator().manual_seed(3)
    x = [torch.randn(ROWS, 5, generator=rng) for _ in range(PARTIES)]
    return x, torch.randint(0, CLASSES, (ROWS,), generator=rng)


def compare(
    recipe: tw.Recipe, batches: str, loop: Callable[[Network], Any], fusion: str = "sum", exact: bool = False
) -> None:
    """Trains the same network by both, and compares every weight; the loop's must have moved."""
    x, y = tables()
    job = tw.Job(
        parties=[tw.FeatureParty(f"p{k}", features=x[k], bottom=f) for k, f in enumerate(bottoms())],
        label_party=tw.LabelParty("lab", labels=y, top=top(fusion), fusion=fusion),
        recipe=recipe,
        optimizer=tw.SGD(lr=0.5),
        eval_every=1000,
        noise_secret=bytes(32) if recipe.name == "pbm" else None,
        **BATCHES[batches],
    )
    rows = job.divide_rows()
    # Before the run: whoever records its draws hands them over by then.
    result = tw.train(job)
    net = Network(bottoms(), top(fusion), x, y, [rows.rows(t) for t in range(rows.rounds)], 0.5, fusion)
    loop(net)
    start = Network(bottoms(), top(fusion), x, y, [], 0.5, fusion)
    for name, module in net.modules().items():
        before = start.modules()[name].state_dict()
        for key, theirs in module.state_dict().items():
            assert float((theirs - before[key]).abs().max()) > 1e-3
            difference = float((result.models[name].state_dict()[key] - theirs).abs().max())
            assert difference == 0 if exact else difference < 2e-6, (name, key, difference)


@BATCH_KINDS
@pytest.mark.parametrize("fusion", ["sum", "mean", "concat"])
def test_svfl(batches: str, fusion: str) -> None:
    compare(svfl(), batches, naive.train_svfl, fusion)


@BATCH_KINDS
@pytest.mark.parametrize("steps", [2, 4])
def test_fedbcd(batches: str, steps: int) -> None:
    compare(fedbcd(steps), batches, lambda net: naive.Celu(net, 1, steps).run(), exact=True)


@BATCH_KINDS
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("compressor", ["identity", "topk", "qsgd", "topk of rows"])
def test_cvfl(batches: str, steps: int, compressor: str) -> None:
    ours, theirs = COMPRESSORS[compressor]
    compare(cvfl(ours, local_steps=steps), batches, lambda net: naive.train_cvfl(net, theirs, steps))


@BATCH_KINDS
@pytest.mark.parametrize("compressor", ["topk", "qsgd", "bins", "topk of rows"])
def test_cvfl_private(batches: str, compressor: str) -> None:
    ours, theirs = COMPRESSORS[compressor]
    compare(cvfl(ours, labels="private"), batches, lambda net: naive.train_cvfl_private(net, theirs))


@BATCH_KINDS
@pytest.mark.parametrize("compressor", ["topk", "qsgd"])
def test_cvfl_with_a_compressed_top_model(batches: str, compressor: str) -> None:
    ours, theirs = COMPRESSORS[compressor]
    recipe = cvfl(ours, local_steps=2, top_compressor=ours)
    compare(recipe, batches, lambda net: naive.train_cvfl(net, theirs, 2, theirs))


@BATCH_KINDS
def test_cvfl_by_columns(batches: str) -> None:
    recipe = cvfl(TopK(0.5, select="columns"), local_steps=2)
    compare(recipe, batches, lambda net: naive.train_cvfl_by_columns(net, 0.5, 2))


@BATCH_KINDS
@pytest.mark.parametrize("compressor", ["topk", "qsgd"])
@pytest.mark.parametrize("broadcast", ["symbols", "surrogates"])
@pytest.mark.parametrize("scope", ["rows", "table"])
@pytest.mark.parametrize("order", ["exchange_first", "update_first"])
def test_efvfl(batches: str, compressor: str, broadcast: str, scope: str, order: str) -> None:
    ours, theirs = COMPRESSORS[compressor]
    literal = order == "update_first"
    recipe = efvfl(ours, scope=scope, broadcast=broadcast, order=order, warm_start=literal)
    loop: Callable[..., None] = naive.train_exchange_first
    if literal:
        loop = naive.train_algorithm_1 if broadcast == "symbols" else naive.train_poster
    compare(recipe, batches, lambda net: loop(net, compress=theirs, whole_table=scope == "table"))


@BATCH_KINDS
@pytest.mark.parametrize("compressor", ["topk", "qsgd"])
@pytest.mark.parametrize("scope", ["rows", "table"])
@pytest.mark.parametrize("order", ["exchange_first", "update_first"])
def test_efvfl_private(batches: str, compressor: str, scope: str, order: str) -> None:
    ours, theirs = COMPRESSORS[compressor]
    literal = order == "update_first"
    recipe = efvfl(ours, labels="private", scope=scope, order=order, warm_start=literal)
    loop = naive.train_algorithm_2 if literal else naive.train_exchange_first_private
    compare(recipe, batches, lambda net: loop(net, compress=theirs, whole_table=scope == "table"))


@BATCH_KINDS
@pytest.mark.parametrize("order", ["exchange_first", "update_first"])
@pytest.mark.parametrize("kind", ["local steps", "compressed top model"])
def test_efvfl_with_more(batches: str, order: str, kind: str) -> None:
    ours, theirs = COMPRESSORS["topk"]
    literal = order == "update_first"
    more: dict[str, Any] = {"local_steps": 3} if kind == "local steps" else {"top_compressor": TopK(0.5)}
    recipe = efvfl(ours, order=order, warm_start=True, **more)
    if "top_compressor" in more:
        more = {"compress_top": naive.top_k(0.5)}
    if literal:
        compare(recipe, batches, lambda net: naive.train_algorithm_1(net, compress=theirs, **more))
    else:
        compare(recipe, batches, lambda net: naive.train_exchange_first(net, warm=True, compress=theirs, **more))


@pytest.mark.parametrize("labels", ["shared", "private"])
def test_the_papers_order_is_not_ours_on_mini_batches(labels: str) -> None:
    literal = efvfl(TopK(0.3), labels=labels, order="update_first", warm_start=True)
    loop = naive.train_exchange_first if labels == "shared" else naive.train_exchange_first_private
    with pytest.raises(AssertionError):
        compare(literal, "mini", lambda net: loop(net, compress=naive.top_k(0.3)))


@BATCH_KINDS
@pytest.mark.parametrize("sampling", ["round_robin", "consecutive", "random"])
@pytest.mark.parametrize("xi", [None, 60.0])
def test_celu(batches: str, sampling: str, xi: float | None) -> None:
    def loop(net: Network) -> None:
        naive.Celu(net, 3, 4, xi, sampling, lambda draw, n: derive_seed(0, "workset", draw) % n).run()

    compare(celu(3, 4, xi_degrees=xi, sampling=sampling), batches, loop, exact=xi is None)


@BATCH_KINDS
@pytest.mark.parametrize(("trials", "bound"), [(16, 1.0), (64, 2.0)])
def test_pbm(batches: str, trials: int, bound: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Tensor, Tensor]] = []
    whole = PoissonBinomial.compress

    def record(self: PoissonBinomial, x: Tensor, *rest: Any) -> Counts:
        counts = whole(self, x, *rest)
        chances = 0.5 + self.beta * x.detach() / self.bound
        drawn.append((chances, torch.from_numpy(counts.counts.astype("int64")).reshape(x.shape)))
        return counts

    monkeypatch.setattr(PoissonBinomial, "compress", record)

    def draw(m: int, t: int, chances: Tensor) -> Tensor:
        then, counts = drawn[PARTIES * t + m]
        assert torch.allclose(chances, then, atol=1e-6)
        return counts

    compare(pbm(trials, 0.25, bound), batches, lambda net: naive.train_pbm(net, trials, 0.25, bound, draw))
